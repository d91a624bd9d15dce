//! DNS questions of the guest, as a client asks them.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
};

use hickory_resolver::proto::{
    op::{Message, MessageType, OpCode, Query},
    rr::{Name, RecordType},
};
use policy::DenyReason;
use report::link::{FromProxy, Open, ToProxy};

use crate::harness::{Proxy, Setup, TIMEOUT};

struct Asking(UdpSocket);

impl Asking {
    fn new(proxy: &Proxy) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.connect(proxy.questions[1]).unwrap();
        Self(socket)
    }

    fn ask(&self, name: &str, kind: RecordType) {
        self.0.send(&question(name, kind)).unwrap();
    }

    fn answer(&self) -> String {
        let mut answer = [0; 1500];
        let length = self.0.recv(&mut answer).unwrap();
        shown(&answer[..length])
    }

    fn asked(&self, name: &str, kind: RecordType) -> String {
        self.ask(name, kind);
        self.answer()
    }
}

pub(crate) fn question(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message.to_vec().unwrap()
}

fn shown(answer: &[u8]) -> String {
    let message = Message::from_vec(answer).unwrap();
    assert_eq!(message.metadata.id, 7);
    let records = message
        .answers
        .iter()
        .map(|record| format!(" {}={}", record.name, record.data));
    let code = format!("{:?}", message.metadata.response_code);
    code + &records.collect::<String>()
}

fn over_tcp(to: SocketAddr, messages: &[&[u8]]) -> Vec<String> {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    for message in messages {
        let length = u16::try_from(message.len()).unwrap();
        stream.write_all(&length.to_be_bytes()).unwrap();
        stream.write_all(message).unwrap();
    }
    let answer = |_| {
        let mut length = [0; 2];
        stream.read_exact(&mut length).ok()?;
        let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut answer).unwrap();
        Some(shown(&answer))
    };
    (0..messages.len()).map_while(answer).collect()
}

#[test]
fn an_allowed_name_is_answered_as_it_was_asked_for_and_others_are_not_asked_for() {
    let proxy = Proxy::start(&["origin.test@127.0.0.0/8"]);
    let asking = Asking::new(&proxy);
    assert_eq!(
        asking.asked("Origin.tEst.", RecordType::A),
        "NoError Origin.tEst.=127.0.0.1"
    );
    assert_eq!(asking.asked("origin.test.", RecordType::AAAA), "NoError");
    assert_eq!(asking.asked("other.test.", RecordType::A), "NXDomain");
    assert_eq!(asking.asked("origin.test.", RecordType::TXT), "NoError");
    assert_eq!(
        proxy.finish().denials(),
        [
            ("origin.test:53", DenyReason::DnsTypeRefused, 1),
            ("other.test:53", DenyReason::DnsNotAllowed, 1),
        ]
    );
}

#[test]
fn one_connection_carries_several_questions() {
    let proxy = Proxy::start(&["origin.test@127.0.0.0/8"]);
    let [allowed, other] =
        ["origin.test.", "other.test."].map(|name| question(name, RecordType::A));
    assert_eq!(
        over_tcp(proxy.questions[0], &[&allowed, &other, &allowed]),
        [
            "NoError origin.test.=127.0.0.1",
            "NXDomain",
            "NoError origin.test.=127.0.0.1"
        ]
    );
    proxy.finish();
}

#[test]
fn a_message_that_is_longer_than_any_question_ends_its_connection() {
    let proxy = Proxy::start(&["origin.test"]);
    let good = question("other.test.", RecordType::A);
    let answers = over_tcp(proxy.questions[0], &[&good, &[0; 5000], &good]);
    assert_eq!(answers, ["NXDomain"]);
    assert_eq!(
        proxy.finish().denials(),
        [
            ("-:53", DenyReason::Malformed, 1),
            ("other.test:53", DenyReason::DnsNotAllowed, 1),
        ]
    );
}

#[test]
fn an_address_that_must_not_be_dialled_is_not_told() {
    let proxy = Proxy::start(&["origin.test"]);
    let asking = Asking::new(&proxy);
    assert_eq!(asking.asked("origin.test.", RecordType::A), "NoError");
    assert_eq!(
        proxy.finish().denials(),
        [("origin.test:53", DenyReason::PrivateAddress, 1)]
    );
}

#[test]
fn a_name_that_the_resolver_does_not_know_is_no_denial() {
    let setup = Setup {
        names: &[],
        ..Setup::default()
    };
    let proxy = Proxy::with(&["origin.test"], &setup);
    let asking = Asking::new(&proxy);
    assert_eq!(asking.asked("origin.test.", RecordType::A), "NXDomain");
    assert_eq!(proxy.finish().denials(), []);
}

#[test]
fn an_answer_waits_until_the_guest_can_use_it() {
    let mut proxy = Proxy::start(&["origin.test:22@127.0.0.0/8"]);
    let asking = Asking::new(&proxy);
    for (opened, answer) in [
        (true, "NoError origin.test.=127.0.0.1"),
        (false, "ServFail"),
    ] {
        asking.ask("origin.test.", RecordType::A);
        let message = proxy.pid1.receive();
        let FromProxy::Open(Open {
            id,
            generation,
            name,
            endpoints,
            seconds,
        }) = message
        else {
            panic!("{message:?}")
        };
        assert_eq!((generation, name.as_str()), (1, "origin.test"));
        assert_eq!(endpoints, ["127.0.0.1:22".parse().unwrap()]);
        assert!((60..=3600).contains(&seconds), "{seconds}");
        asking.0.set_nonblocking(true).unwrap();
        assert!(asking.0.recv(&mut [0; 512]).is_err(), "too early");
        asking.0.set_nonblocking(false).unwrap();
        proxy.pid1.send(&ToProxy::Opened { id, opened });
        assert_eq!(asking.answer(), answer);
    }
    assert_eq!(proxy.finish().denials(), []);
}

#[test]
fn garbage_does_not_keep_others_from_being_answered() {
    let proxy = Proxy::start(&["origin.test"]);
    let asking = Asking::new(&proxy);
    for garbage in [&b""[..], b"x", &[0xff; 600], &[0; 12]] {
        asking.0.send(garbage).unwrap();
    }
    // A header without a question is the only one that can be answered at all.
    let mut answer = [0; 512];
    assert_eq!(asking.0.recv(&mut answer).unwrap(), 12);
    assert_eq!(answer[3] & 0x0f, 1);
    assert_eq!(asking.asked("other.test.", RecordType::A), "NXDomain");
    assert_eq!(
        proxy.finish().denials(),
        [
            ("-:53", DenyReason::Malformed, 4),
            ("other.test:53", DenyReason::DnsNotAllowed, 1),
        ]
    );
}
