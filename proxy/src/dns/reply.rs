//! What a question is answered with, as a value and as bytes.

use std::net::IpAddr;

use hickory_resolver::proto::{
    op::{Edns, Message, MessageType, Metadata, ResponseCode},
    rr::{RData, Record, rdata::opt::EdnsOption},
};
use policy::{Denial, DenyReason};
use report::Transport;

use super::question::Question;
use crate::resolve::Records;

/// An answer, and why it is not what was hoped for.
#[derive(Debug)]
pub(super) struct Reply {
    said: Said,
    why: Option<Why>,
}

/// What is said.
#[derive(Debug)]
pub(super) enum Said {
    /// These records, of the name that was asked for.
    Records(Vec<RData>, u32),
    /// The name exists, and has nothing of this type.
    NoData,
    /// There is no such name. Not REFUSED, at which some clients stop searching and others go on.
    NoSuchName,
    /// It cannot be told now.
    Failed,
}

/// An Extended DNS Error (RFC 8914), for those who read it.
#[derive(Debug)]
enum Why {
    Denied(Denial),
    Failed(String),
}

impl Reply {
    /// An answer that needs no explanation.
    pub(super) const fn new(said: Said) -> Self {
        Self { said, why: None }
    }

    /// The answer to what is denied.
    pub(super) const fn denied(said: Said, denial: Denial) -> Self {
        Self {
            said,
            why: Some(Why::Denied(denial)),
        }
    }

    /// The answer to what did not work, which is no denial.
    pub(super) fn failed(cause: &str) -> Self {
        Self {
            said: Said::Failed,
            why: Some(Why::Failed(cause.to_owned())),
        }
    }

    /// The answer that has these records, or says that there are none.
    pub(super) fn records(records: Records) -> Self {
        Self::new(if records.data.is_empty() {
            Said::NoData
        } else {
            Said::Records(records.data, records.ttl)
        })
    }

    /// The reason to count it under; `None` for what is no denial.
    pub(super) fn reason(&self) -> Option<DenyReason> {
        match &self.why {
            Some(Why::Denied(denial)) => Some(denial.reason),
            Some(Why::Failed(_)) | None => None,
        }
    }

    /// The address that is not told, where that is why.
    pub(super) fn address(&self) -> Option<IpAddr> {
        match &self.why {
            Some(Why::Denied(denial)) => denial.address,
            Some(Why::Failed(_)) | None => None,
        }
    }

    /// What would change it, where something would.
    pub(super) fn hint(&self) -> Option<&str> {
        match &self.why {
            Some(Why::Denied(denial)) => denial.hint.as_deref(),
            Some(Why::Failed(_)) | None => None,
        }
    }

    /// The answer as bytes. What does not fit a datagram is left for TCP (RFC 2181 section 9).
    pub(super) fn write(&self, question: &Question, via: Transport) -> Vec<u8> {
        let message = self.message(question);
        let limit = match (via, question.edns) {
            (Transport::Udp, None) => PLAIN_DATAGRAM,
            (Transport::Udp, Some(offer)) => offer.max_payload.clamp(PLAIN_DATAGRAM, LIMIT),
            (Transport::Tcp | Transport::Icmp | Transport::Other, _) => u16::MAX,
        };
        let bytes = message.to_vec().unwrap_or_default();
        if bytes.len() <= usize::from(limit) {
            return bytes;
        }
        message.truncate().to_vec().unwrap_or_default()
    }

    fn message(&self, question: &Question) -> Message {
        let id = question.metadata.id;
        let mut message = Message::new(id, MessageType::Response, question.metadata.op_code);
        message.metadata = Metadata::response_from_request(&question.metadata);
        message.metadata.recursion_available = true;
        message.metadata.response_code = match self.said {
            Said::Records(..) | Said::NoData => ResponseCode::NoError,
            Said::NoSuchName => ResponseCode::NXDomain,
            Said::Failed => ResponseCode::ServFail,
        };
        message.add_query(question.query.clone());
        if let Said::Records(records, ttl) = &self.said {
            let owner = question.query.name();
            let record = |data: &RData| Record::from_rdata(owner.clone(), *ttl, data.clone());
            message.add_answers(records.iter().map(record));
        }
        if let Some(offer) = question.edns {
            let mut edns = Edns::new();
            edns.set_max_payload(LIMIT).set_dnssec_ok(offer.dnssec_ok);
            if let Some(why) = &self.why {
                edns.options_mut().insert(why.option());
            }
            message.set_edns(edns);
        }
        message
    }
}

impl Why {
    /// Code and words; the words stop where a datagram without fragments would be at risk.
    fn option(&self) -> EdnsOption {
        let (code, words) = match self {
            Self::Denied(Denial { reason, hint, .. }) => {
                let hint = hint.as_ref().map(|hint| format!(": {hint}"));
                let hint = hint.unwrap_or_default();
                (PROHIBITED, format!("egress denied: {reason}{hint}"))
            }
            Self::Failed(cause) => (NETWORK_ERROR, cause.clone()),
        };
        let words = words.get(..words.floor_char_boundary(MAX_WORDS));
        let words = words.unwrap_or_default().as_bytes();
        EdnsOption::Unknown(EXTENDED_ERROR, [&code.to_be_bytes()[..], words].concat())
    }
}

/// The option of RFC 8914, and of its codes “Prohibited” and “Network Error”.
const EXTENDED_ERROR: u16 = 15;
const PROHIBITED: u16 = 18;
const NETWORK_ERROR: u16 = 23;
const MAX_WORDS: usize = 180;
/// What a client takes that does not say more (RFC 1035 section 4.2.1).
const PLAIN_DATAGRAM: u16 = 512;
/// What no path has to cut: 1280 less the headers, as resolvers agreed on in 2020.
pub(super) const LIMIT: u16 = 1232;

/// An answer in short: its code and records, and `tc` where it is cut.
#[cfg(test)]
pub(super) fn shown(answer: &[u8]) -> String {
    let message = Message::from_vec(answer).unwrap();
    assert_eq!(message.metadata.message_type, MessageType::Response);
    let mut words = vec![format!("{:?}", message.metadata.response_code)];
    words.extend(
        message
            .answers
            .iter()
            .map(|record| format!("{} {} {}", record.name, record.ttl, record.data)),
    );
    words.extend(message.metadata.truncation.then(|| "tc".to_owned()));
    words.join("; ")
}

#[cfg(test)]
mod tests {
    use hickory_resolver::proto::{
        op::{OpCode, Query},
        rr::{Name, RecordType, rdata::A},
    };

    use super::*;

    fn question(max_payload: Option<u16>) -> Question {
        let name = Name::from_ascii("A.example.").unwrap();
        let mut message = Message::new(7, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(name, RecordType::A));
        if let Some(max_payload) = max_payload {
            let mut edns = Edns::new();
            edns.set_max_payload(max_payload).set_dnssec_ok(true);
            message.set_edns(edns);
        }
        Question::read(&message.to_vec().unwrap()).unwrap()
    }

    fn addresses(count: u8) -> Reply {
        let data = (0..count).map(|n| RData::A(A::new(203, 0, 113, n)));
        Reply::records(Records {
            data: data.collect(),
            ttl: 30,
        })
    }

    #[test]
    fn records_are_of_the_name_as_it_was_asked_for() {
        let bytes = addresses(1).write(&question(None), Transport::Udp);
        assert_eq!(shown(&bytes), "NoError; A.example. 30 203.0.113.0");
        let message = Message::from_vec(&bytes).unwrap();
        assert_eq!((message.metadata.id, message.queries.len()), (7, 1));
        assert!(message.metadata.recursion_desired && message.metadata.recursion_available);
        assert!(!message.metadata.authentic_data && message.edns.is_none());
    }

    #[test]
    fn what_does_not_fit_a_datagram_is_left_for_tcp() {
        for (count, offered, via, cut) in [
            (30, None, Transport::Udp, false),
            (31, None, Transport::Udp, true),
            (31, Some(1232), Transport::Udp, false),
            // More than is sent, and less than everybody takes.
            (80, Some(4096), Transport::Udp, true),
            (25, Some(100), Transport::Udp, false),
            (80, None, Transport::Tcp, false),
        ] {
            let bytes = addresses(count).write(&question(offered), via);
            let is_cut = shown(&bytes) == "NoError; tc";
            assert_eq!(is_cut, cut, "{count} addresses, {offered:?}, {via:?}");
            assert!(via == Transport::Tcp || bytes.len() <= 1232);
        }
    }

    #[test]
    fn a_denial_explains_itself_to_those_who_speak_edns() {
        let denial = Denial {
            hint: Some("é".repeat(200)),
            ..Denial::new(DenyReason::DnsNotAllowed)
        };
        let reply = Reply::denied(Said::NoSuchName, denial);
        assert_eq!(reply.reason(), Some(DenyReason::DnsNotAllowed));
        let plain = Message::from_vec(&reply.write(&question(None), Transport::Udp)).unwrap();
        assert_eq!(plain.metadata.response_code, ResponseCode::NXDomain);
        assert!(plain.edns.is_none());
        let bytes = reply.write(&question(Some(1232)), Transport::Udp);
        let edns = Message::from_vec(&bytes).unwrap().edns.unwrap();
        assert!(edns.flags().dnssec_ok);
        let option = edns.option(EXTENDED_ERROR.into()).unwrap();
        let EdnsOption::Unknown(_, data) = option else {
            panic!("{option:?}")
        };
        assert_eq!(data[..2], [0, 18]);
        let words = String::from_utf8(data[2..].to_vec()).unwrap();
        assert!(
            words.starts_with("egress denied: dns_not_allowed: é"),
            "{words}"
        );
        assert!(words.len() <= MAX_WORDS);
    }

    #[test]
    fn a_failure_is_another_error_and_no_denial() {
        let reply = Reply::failed("the resolver does not answer");
        assert_eq!(reply.reason(), None);
        let bytes = reply.write(&question(Some(1232)), Transport::Udp);
        assert_eq!(shown(&bytes), "ServFail");
        assert!(bytes.windows(2).any(|code| code == [0, 23]));
    }
}
