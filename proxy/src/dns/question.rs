//! Reads DNS messages of the guest: one question of the plainest sort, or nothing that is asked of
//! anybody.

use hickory_resolver::proto::{
    op::{Message, Metadata, OpCode, Query, ResponseCode},
    rr::RecordType,
};

/// A question.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) metadata: Metadata,
    /// As it was asked, its letters' case included: clients compare (0x20 encoding).
    pub(super) query: Query,
    /// What EDNS says, where it was spoken (RFC 6891).
    pub(super) edns: Option<Offer>,
}

/// What a client offers by EDNS.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offer {
    /// The largest datagram that it takes.
    pub(super) max_payload: u16,
    /// Whether it wants signatures; the bit is to be repeated (RFC 3225 section 3).
    pub(super) dnssec_ok: bool,
}

/// A message that is no such question.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// It is answered with this.
    Answer(Vec<u8>),
    /// It is not answered: too short to have a number, or an answer itself, and two that answer
    /// each other's answers never end.
    Silence,
}

impl Question {
    /// Reads a message (RFC 1035 section 4).
    pub(super) fn read(message: &[u8]) -> Result<Self, Unreadable> {
        let header = Header::of(message).ok_or(Unreadable::Silence)?;
        if header.is_answer {
            return Err(Unreadable::Silence);
        }
        if header.op_code != OpCode::Query {
            return Err(header.refusal(ResponseCode::NotImp));
        }
        let malformed = || header.refusal(ResponseCode::FormErr);
        let Message {
            metadata,
            queries,
            answers,
            authorities,
            edns,
            ..
        } = Message::from_vec(message).map_err(|_| malformed())?;
        let Ok([query]) = <[Query; 1]>::try_from(queries) else {
            return Err(malformed());
        };
        if !answers.is_empty() || !authorities.is_empty() {
            return Err(malformed());
        }
        if edns.as_ref().is_some_and(|edns| edns.version() != 0) {
            return Err(malformed());
        }
        let edns = edns.map(|edns| Offer {
            max_payload: edns.max_payload(),
            dnssec_ok: edns.flags().dnssec_ok,
        });
        Ok(Self {
            metadata,
            query,
            edns,
        })
    }

    /// The name in lower case without its last dot, whatever bytes it may be made of.
    pub(super) fn name(&self) -> String {
        let mut name = self.query.name().to_ascii().to_ascii_lowercase();
        if name.ends_with('.') {
            name.pop();
        }
        name
    }

    /// The host that the question is about: the name less the two labels that say which of the host's
    /// services is asked for (RFC 2782), where it asks for one.
    pub(super) fn subject(&self) -> String {
        let name = self.name();
        match self.is_for_service().then(|| name.splitn(3, '.').nth(2)) {
            Some(Some(host)) => host.to_owned(),
            Some(None) | None => name,
        }
    }

    /// Whether it asks where a service of a host is, as package managers and mail programs do before
    /// they go to the host itself.
    pub(super) fn is_for_service(&self) -> bool {
        let name = self.name();
        let mut labels = name.split('.');
        let is_service = |label: Option<&str>| label.is_some_and(|label| label.starts_with('_'));
        self.query.query_type() == RecordType::SRV
            && is_service(labels.next())
            && is_service(labels.next())
            && labels.next().is_some_and(|host| !host.is_empty())
    }

    /// Whether the name is that of one address, and has room for nothing else (RFC 1035 section
    /// 3.5, RFC 3596 section 2.5).
    pub(super) fn is_reverse(&self) -> bool {
        let net = self.query.name().parse_arpa_name();
        net.is_ok_and(|net| net.prefix_len() == net.max_prefix_len())
    }
}

/// The name that a message asks for, if it is a question.
pub(crate) fn name_in(message: &[u8]) -> Option<String> {
    Question::read(message).ok().map(|question| question.name())
}

/// What a message that cannot be read is answered by.
struct Header {
    id: [u8; 2],
    is_answer: bool,
    op_code: OpCode,
    /// The third byte, of which the operation and “recursion desired” are repeated.
    flags: u8,
}

impl Header {
    fn of(message: &[u8]) -> Option<Self> {
        let &[high, low, flags, ..] = message.first_chunk::<12>()?;
        Some(Self {
            id: [high, low],
            is_answer: flags & ANSWER != 0,
            op_code: OpCode::from_u8((flags & OPERATION) >> 3),
            flags,
        })
    }

    /// A header alone.
    fn refusal(&self, code: ResponseCode) -> Unreadable {
        let [high, low] = self.id;
        let flags = ANSWER | (self.flags & (OPERATION | RECURSION_DESIRED));
        let mut answer = vec![high, low, flags, RECURSION_AVAILABLE | code.low()];
        answer.resize(12, 0);
        Unreadable::Answer(answer)
    }
}

const ANSWER: u8 = 0b1000_0000;
const OPERATION: u8 = 0b0111_1000;
const RECURSION_DESIRED: u8 = 0b0000_0001;
const RECURSION_AVAILABLE: u8 = 0b1000_0000;

/// A question as a client would send it, without EDNS.
#[cfg(test)]
pub(super) fn asking(name: &str, kind: RecordType) -> Vec<u8> {
    let name = hickory_resolver::proto::rr::Name::from_ascii(name).unwrap();
    let mut message = Message::new(
        0x1234,
        hickory_resolver::proto::op::MessageType::Query,
        OpCode::Query,
    );
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name, kind));
    message.to_vec().unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(message: &[u8]) -> Option<u8> {
        match Question::read(message) {
            Ok(_) => None,
            Err(Unreadable::Answer(answer)) => Some(answer[3] & 0x0f),
            Err(Unreadable::Silence) => Some(u8::MAX),
        }
    }

    #[test]
    fn the_letters_of_the_name_stay_as_they_were_asked() {
        let question = Question::read(&asking("A.eXample.", RecordType::A)).unwrap();
        assert_eq!(question.query.name().to_ascii(), "A.eXample.");
        assert_eq!(question.name(), "a.example");
        assert!(question.edns.is_none());
    }

    #[test]
    fn what_is_no_single_plain_question_is_answered_with_a_header_or_not_at_all() {
        let good = asking("a.example.", RecordType::A);
        assert_eq!(code(&good), None);
        let with = |place: usize, byte: u8| {
            let mut message = good.clone();
            message[place] = byte;
            message
        };
        for (what, message, expected) in [
            ("nothing", vec![], u8::MAX),
            ("half a header", good[..11].to_vec(), u8::MAX),
            ("an answer", with(2, 0x81), u8::MAX),
            ("a notification", with(2, 0x21), 4),
            ("no question", with(5, 0), 1),
            ("two questions, one of them missing", with(5, 2), 1),
            ("an answer that is missing", with(7, 1), 1),
            ("a label that is too long", with(12, 0x7f), 1),
            (
                "a pointer to itself",
                [&good[..12], &[0xc0, 12, 0, 1, 0, 1]].concat(),
                1,
            ),
        ] {
            assert_eq!(code(&message), Some(expected), "{what}");
        }
        for length in 12..good.len() {
            assert_eq!(code(&good[..length]), Some(1), "cut at {length}");
        }
    }

    #[test]
    fn a_refusal_has_the_number_of_what_it_refuses() {
        let mut message = asking("a.example.", RecordType::A);
        message[5] = 0;
        let refusal = Unreadable::Answer(vec![0x12, 0x34, 0x81, 0x81, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Question::read(&message).unwrap_err(), refusal);
    }

    #[test]
    fn bytes_that_are_no_letters_are_escaped() {
        let mut message = asking("a.example.", RecordType::A);
        message[13] = 0x1b;
        let question = Question::read(&message).unwrap();
        assert_eq!(question.name(), "\\033.example");
    }

    #[test]
    fn whatever_bytes_arrive_nothing_panics() {
        // A walk through the good message: every byte of it replaced by every other.
        let good = asking("a.b.example.", RecordType::HTTPS);
        for place in 0..good.len() {
            for byte in 0..=u8::MAX {
                let mut message = good.clone();
                message[place] = byte;
                if let Ok(question) = Question::read(&message) {
                    let _ = (question.name(), question.is_reverse());
                }
            }
        }
    }
}
