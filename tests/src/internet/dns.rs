//! The authoritative name server of the fake internet, over UDP and TCP (RFC 1035, section 4.2).

use std::{
    net::IpAddr,
    sync::{Arc, Mutex},
};

use anyhow::Context;
use hickory_proto::{
    op::{Message, MessageType, ResponseCode},
    rr::{
        Name, RData, Record, RecordType,
        rdata::{A, AAAA, CNAME},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    task::JoinSet,
};

use super::plan::Zone;

/// How long answers may be kept, in seconds.
const TTL: u32 = 60;

/// Answers from a zone and remembers what it was asked.
#[derive(Debug, Clone)]
pub(crate) struct NameServer {
    zone: Arc<Zone>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl NameServer {
    pub(crate) fn new(zone: Zone) -> Self {
        Self {
            zone: Arc::new(zone),
            asked: Arc::default(),
        }
    }

    /// The questions since the last call, as `name TYPE`.
    pub(crate) fn take_asked(&self) -> Vec<String> {
        self.asked
            .lock()
            .map(|mut asked| std::mem::take(&mut *asked))
            .unwrap_or_default()
    }

    pub(crate) async fn serve_udp(self, socket: UdpSocket) -> anyhow::Result<()> {
        let mut buffer = vec![0; 4096];
        loop {
            let (length, peer) = socket.recv_from(&mut buffer).await?;
            let query = buffer.get(..length).unwrap_or_default();
            if let Ok(answer) = self.answer(query) {
                socket.send_to(&answer, peer).await?;
            }
        }
    }

    pub(crate) async fn serve_tcp(self, listener: TcpListener) -> anyhow::Result<()> {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await?;
            connections.spawn(self.clone().converse(stream));
            while connections.try_join_next().is_some() {}
        }
    }

    async fn converse(self, mut stream: TcpStream) -> anyhow::Result<()> {
        loop {
            let length = stream.read_u16().await?;
            let mut query = vec![0; usize::from(length)];
            stream.read_exact(&mut query).await?;
            let answer = self.answer(&query)?;
            stream.write_u16(u16::try_from(answer.len())?).await?;
            stream.write_all(&answer).await?;
        }
    }

    fn answer(&self, query: &[u8]) -> anyhow::Result<Vec<u8>> {
        let query = Message::from_vec(query).context("parse a query")?;
        let mut answer = Message::new(
            query.metadata.id,
            MessageType::Response,
            query.metadata.op_code,
        );
        answer.metadata.recursion_desired = query.metadata.recursion_desired;
        answer.metadata.recursion_available = true;
        answer.metadata.authoritative = true;
        for question in &query.queries {
            let name = question
                .name()
                .to_ascii()
                .trim_end_matches('.')
                .to_lowercase();
            if let Ok(mut asked) = self.asked.lock() {
                asked.push(format!("{name} {}", question.query_type()));
            }
            let records = self.records(&name, question.query_type())?;
            if records.is_none() {
                answer.metadata.response_code = ResponseCode::NXDomain;
            }
            answer
                .add_query(question.clone())
                .add_answers(records.unwrap_or_default());
        }
        answer.to_vec().context("write an answer")
    }

    /// What is said about `name`, aliases followed; `None` where there is no such name.
    fn records(&self, name: &str, wanted: RecordType) -> anyhow::Result<Option<Vec<Record>>> {
        let Some(entry) = self.zone.get(name) else {
            return Ok(None);
        };
        let owner = Name::from_ascii(format!("{name}."))?;
        let mut records = Vec::new();
        if let Some(target) = &entry.cname {
            let alias = RData::CNAME(CNAME(Name::from_ascii(format!("{target}."))?));
            records.push(Record::from_rdata(owner.clone(), TTL, alias));
            records.extend(self.records(target, wanted)?.unwrap_or_default());
        }
        let addresses = entry
            .addresses
            .iter()
            .filter_map(|address| match (address, wanted) {
                (IpAddr::V4(v4), RecordType::A) => Some(RData::A(A(*v4))),
                (IpAddr::V6(v6), RecordType::AAAA) => Some(RData::AAAA(AAAA(*v6))),
                _ => None,
            });
        records.extend(addresses.map(|data| Record::from_rdata(owner.clone(), TTL, data)));
        Ok(Some(records))
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{OpCode, Query};

    use super::*;
    use crate::internet::plan::{Plan, Subnet};

    fn ask(name: &str, kind: RecordType) -> Message {
        let server = NameServer::new(Plan::read().unwrap().zone(Subnet::new(1)));
        let mut query = Message::new(7, MessageType::Query, OpCode::Query);
        query.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        Message::from_vec(&server.answer(&query.to_vec().unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn names_are_answered_whatever_their_case_and_aliases_are_followed() {
        for (name, kind, count) in [
            ("allowed.test.", RecordType::A, 1),
            ("Allowed.TEST.", RecordType::AAAA, 1),
            ("alias.test.", RecordType::A, 2),
            ("v6only.test.", RecordType::A, 0),
            ("allowed.test.", RecordType::TXT, 0),
        ] {
            let answer = ask(name, kind);
            assert_eq!(answer.answers.len(), count, "{name} {kind}");
            assert_eq!(
                answer.metadata.response_code,
                ResponseCode::NoError,
                "{name} {kind}"
            );
        }
    }

    #[test]
    fn a_name_that_nobody_has_does_not_exist() {
        let code = ask("nobody.test.", RecordType::A).metadata.response_code;
        assert_eq!(code, ResponseCode::NXDomain);
    }
}
