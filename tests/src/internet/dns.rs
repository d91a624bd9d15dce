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
    sync::Notify,
    task::JoinSet,
};

use super::plan::Zone;

/// `asked-N.NAME` is answered once NAME has been asked for N times, so that a guest can wait for
/// somebody else's question.
const WAITS: &str = "asked-";

/// Answers from a zone and remembers what it was asked.
#[derive(Debug, Clone)]
pub(crate) struct NameServer {
    zone: Arc<Zone>,
    asked: Arc<Mutex<Vec<String>>>,
    news: Arc<Notify>,
}

impl NameServer {
    pub(crate) fn new(zone: Zone) -> Self {
        Self {
            zone: Arc::new(zone),
            asked: Arc::default(),
            news: Arc::default(),
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
        let socket = Arc::new(socket);
        let mut answers = JoinSet::new();
        loop {
            let (length, peer) = socket.recv_from(&mut buffer).await?;
            let query = buffer.get(..length).unwrap_or_default().to_vec();
            let (server, socket) = (self.clone(), Arc::clone(&socket));
            answers.spawn(async move {
                if let Ok(answer) = server.answer(&query).await {
                    // Who asked may be gone.
                    let _ = socket.send_to(&answer, peer).await;
                }
            });
            while answers.try_join_next().is_some() {}
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
            let answer = self.answer(&query).await?;
            stream.write_u16(u16::try_from(answer.len())?).await?;
            stream.write_all(&answer).await?;
        }
    }

    async fn answer(&self, query: &[u8]) -> anyhow::Result<Vec<u8>> {
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
            let question_text = format!("{name} {}", question.query_type());
            if let Ok(mut asked) = self.asked.lock() {
                asked.push(question_text.clone());
            }
            self.news.notify_waiters();
            self.wait(&question_text).await;
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

    /// Waits for what the question names, if it is one that waits.
    async fn wait(&self, question: &str) {
        let awaited = question
            .strip_prefix(WAITS)
            .and_then(|rest| rest.split_once('.'))
            .and_then(|(times, question)| Some((times.parse::<usize>().ok()?, question)));
        let Some((times, question)) = awaited else {
            return;
        };
        loop {
            let mut news = std::pin::pin!(self.news.notified());
            news.as_mut().enable();
            if self.times(question) >= times {
                return;
            }
            news.await;
        }
    }

    /// How often this has been asked.
    fn times(&self, question: &str) -> usize {
        self.asked.lock().map_or(0, |asked| {
            asked.iter().filter(|other| *other == question).count()
        })
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
            records.push(Record::from_rdata(owner.clone(), entry.ttl, alias));
            records.extend(self.records(target, wanted)?.unwrap_or_default());
        }
        let has_moved = !entry.then.is_empty() && self.times(&format!("{name} {wanted}")) > 1;
        let addresses = if has_moved {
            &entry.then
        } else {
            &entry.addresses
        };
        let addresses = addresses
            .iter()
            .filter_map(|address| match (address, wanted) {
                (IpAddr::V4(v4), RecordType::A) => Some(RData::A(A(*v4))),
                (IpAddr::V6(v6), RecordType::AAAA) => Some(RData::AAAA(AAAA(*v6))),
                _ => None,
            });
        records.extend(addresses.map(|data| Record::from_rdata(owner.clone(), entry.ttl, data)));
        Ok(Some(records))
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{OpCode, Query};

    use super::*;
    use crate::internet::plan::{Plan, Subnet};

    fn server() -> NameServer {
        NameServer::new(Plan::read().unwrap().zone(Subnet::new(1)))
    }

    async fn ask(server: &NameServer, name: &str, kind: RecordType) -> Message {
        let mut query = Message::new(7, MessageType::Query, OpCode::Query);
        query.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        Message::from_vec(&server.answer(&query.to_vec().unwrap()).await.unwrap()).unwrap()
    }

    #[tokio::test]
    async fn names_are_answered_whatever_their_case_and_aliases_are_followed() {
        for (name, kind, count) in [
            ("allowed.test.", RecordType::A, 1),
            ("Allowed.TEST.", RecordType::AAAA, 1),
            ("alias.test.", RecordType::A, 2),
            ("v6only.test.", RecordType::A, 0),
            ("allowed.test.", RecordType::TXT, 0),
        ] {
            let answer = ask(&server(), name, kind).await;
            assert_eq!(answer.answers.len(), count, "{name} {kind}");
            assert_eq!(
                answer.metadata.response_code,
                ResponseCode::NoError,
                "{name} {kind}"
            );
        }
    }

    #[tokio::test]
    async fn a_name_that_moves_has_moved_for_the_second_who_asks_and_whoever_waits_sees_it() {
        let server = server();
        let address = |answer: Message| answer.answers[0].data.ip_addr().unwrap().to_string();
        let first = ask(&server, "moving.test.", RecordType::A).await;
        assert_eq!(address(first), "198.18.1.10");
        let waits = ask(&server, "asked-2.moving.test.", RecordType::A);
        let second = ask(&server, "moving.test.", RecordType::A);
        let (_, second) = tokio::join!(waits, second);
        assert_eq!(address(second), "198.18.1.11");
    }

    #[tokio::test]
    async fn a_name_that_nobody_has_does_not_exist() {
        let code = ask(&server(), "nobody.test.", RecordType::A)
            .await
            .metadata
            .response_code;
        assert_eq!(code, ResponseCode::NXDomain);
    }
}
