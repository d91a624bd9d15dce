//! Clients that speak SOCKS: from their greeting to a tunnel, or to the number that says why not.
//!
//! A tunnel is asked for in another language than with `CONNECT`; what is decided, and what must be
//! said in the tunnel, is the same.

use std::time::Duration;

use bytes::Buf as _;
use policy::{Denial, DenyReason, Destination, Host};
use report::Target;
use tokio::time::{Instant, timeout_at};

use crate::{
    answer, authority,
    client::{Client, SPEAK_FIRST},
    proxy::Proxy,
    refusal::{Refusal, Refused},
    socks::{self, Address, Command, Greeting, Reply, Request, SocksError},
    tunnel::{self, Opened},
};

/// Why a negotiation leads to no tunnel.
enum Stop {
    /// Something was asked for, or seemed to be: it is counted, and answered with these bytes.
    Refused(Box<Refused>, Box<[u8]>),
    /// The client left, or went silent, where nothing was begun.
    Gone,
}

/// Why a message is not there.
enum Unread {
    Gone,
    /// It was begun, and not ended in time.
    Cut,
    Wrong(SocksError),
}

/// Serves a client that speaks SOCKS5 up to its tunnel. It is told of success only once the far end
/// is connected.
pub(crate) async fn open(client: &mut Client, proxy: &Proxy) -> Option<Opened> {
    match negotiate(client, proxy).await {
        Ok(opened) => {
            let told = client.send(&Reply::Succeeded.to_bytes()).await;
            told.is_ok().then_some(opened)
        }
        Err(Stop::Refused(refused, answer)) => {
            proxy.record(&refused);
            // Whether it could be told or not, the connection ends.
            let _ = client.send(&answer).await;
            None
        }
        Err(Stop::Gone) => None,
    }
}

/// Turns away a client that speaks SOCKS4, in which nobody could be told why something is refused.
pub(crate) async fn decline(client: &mut Client, proxy: &Proxy) {
    proxy.record(&unclear(Target::default(), OLD));
    // Whether it could be told or not, the connection ends.
    let _ = client.send(&socks::OLD_REJECTED).await;
}

async fn negotiate(client: &mut Client, proxy: &Proxy) -> Result<Opened, Stop> {
    let deadline = Instant::now() + PATIENCE;
    let greeting = read(client, deadline, Greeting::parse).await;
    let unheard = |unread: Unread| unread.told(|_| socks::NO_METHOD.into());
    if !greeting.map_err(unheard)?.anonymous {
        let refused = unclear(Target::default(), AUTHENTICATION);
        return Err(Stop::Refused(refused.into(), socks::NO_METHOD.into()));
    }
    let sent = client.send(&socks::ANONYMOUS).await;
    sent.map_err(|_| Stop::Gone)?;
    let request = read(client, deadline, Request::parse).await;
    let request = request.map_err(|unread| unread.told(|error| reply(error).to_bytes().into()))?;
    require_connect(&request)?;
    let refused = |refused: Refused| {
        let answer = answer::socks(&refused.refusal).to_bytes().into();
        Stop::Refused(refused.into(), answer)
    };
    reach(&request, proxy).await.map_err(refused)
}

/// Where a request leads to. A client that resolved a name itself asks for an address which no entry
/// knows; where streams name their host, what it wants is read there, as from a redirected one.
async fn reach(request: &Request, proxy: &Proxy) -> Result<Opened, Refused> {
    let destination = destination(request)?;
    let reached = tunnel::reach(&destination, proxy).await;
    match request.address {
        Address::Ip(address) if proxy.rulings.now().stream_ports.contains(&request.port) => reached
            .or_else(|refused| match refused.refusal.reason() {
                Some(DenyReason::AddressLiteral) => Ok(Opened::Unnamed(
                    (address.to_canonical(), request.port).into(),
                )),
                Some(_) | None => Err(refused),
            }),
        Address::Ip(_) | Address::Domain(_) => reached,
    }
}

/// Takes one message off what the client sends; what follows it stays pending.
async fn read<T>(
    client: &mut Client,
    deadline: Instant,
    parse: impl Fn(&[u8]) -> Result<Option<(T, usize)>, SocksError>,
) -> Result<T, Unread> {
    loop {
        if let Some((message, length)) = parse(&client.pending).map_err(Unread::Wrong)? {
            client.pending.advance(length);
            return Ok(message);
        }
        match timeout_at(deadline, client.more()).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0) | Err(_)) | Err(_) if client.pending.is_empty() => return Err(Unread::Gone),
            Ok(Ok(0) | Err(_)) | Err(_) => return Err(Unread::Cut),
        }
    }
}

/// Only connections are made: datagrams would leave without a name on them, and nobody may connect
/// to a guest through its proxy.
fn require_connect(request: &Request) -> Result<(), Stop> {
    let (target, words) = match request.command {
        Command::Connect => return Ok(()),
        // The address is the client's own, which it will send from.
        Command::UdpAssociate => (Target::default(), DATAGRAMS.to_owned()),
        Command::Bind => (target(request), INCOMING.to_owned()),
        Command::Unknown(byte) => (
            target(request),
            format!("SOCKS5 has the commands 1, 2 and 3, and not {byte}"),
        ),
    };
    let answer = Reply::CommandNotSupported.to_bytes().into();
    Err(Stop::Refused(unclear(target, &words).into(), answer))
}

/// What a request names. A domain that is an address in text is that address.
fn destination(request: &Request) -> Result<Destination, Refused> {
    let malformed = |words: &str| {
        let hint = Some(words.to_owned());
        let denial = Denial {
            hint,
            ..Denial::new(DenyReason::Malformed)
        };
        Err(Refused::new(target(request), denial))
    };
    match &request.address {
        _ if request.port == 0 => malformed("a port is a number from 1 to 65535"),
        Address::Ip(address) => Ok(Destination {
            host: Host::Address(address.to_canonical()),
            port: request.port,
        }),
        Address::Domain(domain) => match printable(domain) {
            Some(host) => authority::destination(host, request.port),
            None => malformed("a domain is printable ASCII"),
        },
    }
}

/// What a report says of a request, whatever it asks for.
fn target(request: &Request) -> Target {
    let port = Some(request.port);
    match &request.address {
        Address::Ip(address) => Target {
            host: None,
            address: Some(address.to_canonical()),
            port,
        },
        Address::Domain(domain) => authority::target(&String::from_utf8_lossy(domain), port),
    }
}

/// The text of bytes that a request line could hold as well: names from elsewhere come encoded.
fn printable(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.bytes().all(|b| b.is_ascii_graphic()).then_some(text)
}

fn reply(error: Option<SocksError>) -> Reply {
    match error {
        Some(SocksError::AddressType(_)) => Reply::AddressTypeNotSupported,
        Some(
            SocksError::Version(_)
            | SocksError::NoMethods
            | SocksError::Reserved(_)
            | SocksError::NoDomain,
        )
        | None => Reply::GeneralFailure,
    }
}

fn unclear(target: Target, words: &str) -> Refused {
    Refused {
        target,
        refusal: Refusal::Unclear(words.to_owned()),
    }
}

impl Unread {
    /// How it ends the negotiation, with what `answer` has for it.
    fn told(self, answer: impl Fn(Option<SocksError>) -> Box<[u8]>) -> Stop {
        let (words, error) = match self {
            Self::Gone => return Stop::Gone,
            Self::Cut => (CUT.to_owned(), None),
            Self::Wrong(error) => (error.to_string(), Some(error)),
        };
        Stop::Refused(unclear(Target::default(), &words).into(), answer(error))
    }
}

/// How long a client has to say what it wants, once it has begun to.
const PATIENCE: Duration = SPEAK_FIRST;
const OLD: &str = "SOCKS4 is not served; use SOCKS5, or HTTP";
const AUTHENTICATION: &str = "a client offers to do without authentication; give it no user name";
const DATAGRAMS: &str = "UDP ASSOCIATE is not served; only connections are made";
const INCOMING: &str = "BIND is not served; only connections to the outside are made";
const CUT: &str = "the SOCKS5 message ended before it was whole";

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::client::soon;

    const GREETING: &[u8] = &[5, 1, 0];
    const CONNECT: &[u8] = &[5, 1, 0, 3];
    const UNKNOWN_PORT: &[u8] = &[0, 7];

    /// What a client that sends `bytes` and no more is told, and what is counted.
    async fn told(list: &str, bytes: &[u8]) -> (Vec<u8>, Vec<(String, DenyReason)>) {
        let proxy = Proxy::allowing(list);
        let (mut client, mut guest) = Client::pair().await;
        let said = async {
            guest.write_all(bytes).await.unwrap();
            guest.shutdown().await.unwrap();
            let mut said = Vec::new();
            guest.read_to_end(&mut said).await.unwrap();
            said
        };
        let serving = async {
            let opened = open(&mut client, &proxy).await;
            client.finish().await;
            opened.is_some()
        };
        let (said, opened) = soon(async { tokio::join!(said, serving) }).await;
        assert!(!opened, "{bytes:?}");
        let denials = proxy.denials();
        (said, denials)
    }

    /// What a client is told that asks for `host:443`.
    async fn asked(list: &str, host: &[u8]) -> (u8, Vec<(String, DenyReason)>) {
        let length = u8::try_from(host.len()).unwrap();
        let bytes = [GREETING, CONNECT, &[length], host, &[1, 0xbb]].concat();
        let (said, denials) = told(list, &bytes).await;
        assert_eq!(said[..3], [5, 0, 5], "{said:?}");
        assert_eq!(said.len(), 12, "{said:?}");
        (said[3], denials)
    }

    fn denial(target: &str, reason: DenyReason) -> Vec<(String, DenyReason)> {
        vec![(target.to_owned(), reason)]
    }

    #[tokio::test]
    async fn a_denied_name_is_not_allowed_by_the_ruleset() {
        let (reply, denials) = asked("a.example", b"b.example").await;
        assert_eq!(reply, 2);
        assert_eq!(denials, denial("b.example", DenyReason::NotAllowed));
    }

    #[tokio::test]
    async fn an_allowed_name_that_nobody_knows_is_a_failure_and_no_denial() {
        assert_eq!(asked("a.example", b"A.Example.").await, (4, vec![]));
    }

    #[tokio::test]
    async fn a_domain_that_is_an_address_in_text_is_judged_as_one() {
        for host in ["192.0.2.1", "::ffff:192.0.2.1", "[::ffff:192.0.2.1]"] {
            let (reply, denials) = asked("a.example", host.as_bytes()).await;
            assert_eq!(reply, 2, "{host}");
            assert_eq!(denials, denial("192.0.2.1", DenyReason::AddressLiteral));
        }
    }

    #[tokio::test]
    async fn a_domain_that_is_no_host_is_malformed() {
        for (host, shown) in [
            (&b"0x7f.1"[..], "0x7f.1"),
            (b"a..example", "a..example"),
            (b"a.example:443", "a.example:443"),
            (b"http://a.example", "http://a.example"),
            (b"a b", "a b"),
        ] {
            let (reply, denials) = asked("a.example", host).await;
            assert_eq!(reply, 2, "{shown}");
            assert_eq!(denials, denial(shown, DenyReason::Malformed));
        }
    }

    #[tokio::test]
    async fn a_domain_that_is_no_text_is_malformed_and_written_down_escaped() {
        for host in [
            &b"a.example\0"[..],
            b"a.example\n",
            b"\xff\xfe",
            "\u{ff41}.example".as_bytes(),
            "\u{e4}.example".as_bytes(),
            &[b'x'; 255],
            &[0; 255],
        ] {
            let (reply, denials) = asked("a.example", host).await;
            assert_eq!(reply, 2, "{host:?}");
            let [(shown, DenyReason::Malformed)] = &denials[..] else {
                panic!("{host:?}: {denials:?}")
            };
            assert!(!shown.contains(char::is_control), "{shown:?}");
        }
    }

    #[tokio::test]
    async fn nothing_is_asked_for_on_port_0() {
        let bytes = [GREETING, CONNECT, b"\x09a.example\0\0"].concat();
        let (said, denials) = told("a.example:*", &bytes).await;
        assert_eq!(said[3], 2);
        assert_eq!(denials, denial("a.example", DenyReason::Malformed));
    }

    #[tokio::test]
    async fn an_address_of_either_family_is_decided_on() {
        let v6 = [
            GREETING,
            &[5, 1, 0, 4],
            &[0; 10],
            &[0xff, 0xff, 192, 0, 2, 1],
            UNKNOWN_PORT,
        ];
        let v4 = [GREETING, &[5, 1, 0, 1, 192, 0, 2, 1], UNKNOWN_PORT];
        for bytes in [v6.concat(), v4.concat()] {
            let (said, denials) = told("a.example", &bytes).await;
            assert_eq!(said[3], 2, "{bytes:?}");
            assert_eq!(denials, denial("192.0.2.1", DenyReason::AddressLiteral));
        }
    }

    #[tokio::test]
    async fn whoever_insists_on_authentication_is_told_that_there_is_none() {
        for greeting in [&[5, 1, 2][..], &[5, 2, 1, 2], &[5, 1, 0xff]] {
            let (said, denials) = told("a.example", greeting).await;
            assert_eq!(said, [5, 0xff], "{greeting:?}");
            assert_eq!(denials, denial("", DenyReason::Malformed));
        }
    }

    #[tokio::test]
    async fn what_is_no_connection_is_no_command_and_counted() {
        for (request, target) in [
            // UDP ASSOCIATE: the address is the client's own.
            (&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0][..], ""),
            (&[5, 3, 0, 1, 10, 0, 0, 1, 0, 9], ""),
            (&[5, 2, 0, 1, 192, 0, 2, 1, 0, 21], "192.0.2.1"),
            (b"\x05\xf0\0\x03\x09b.example\0\0", "b.example"),
        ] {
            let (said, denials) = told("a.example", &[GREETING, request].concat()).await;
            assert_eq!(said[3], 7, "{request:?}");
            assert_eq!(denials, denial(target, DenyReason::Malformed));
        }
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_answered_where_it_stands() {
        for (bytes, answer) in [
            (&[5, 0][..], &[5, 0xff][..]),
            (&[5, 1, 0, 4, 1], &[5, 0, 5, 1, 0, 1, 0, 0, 0, 0, 0, 0]),
            (&[5, 1, 0, 5, 1, 9], &[5, 0, 5, 1, 0, 1, 0, 0, 0, 0, 0, 0]),
            (
                &[5, 1, 0, 5, 1, 0, 2],
                &[5, 0, 5, 8, 0, 1, 0, 0, 0, 0, 0, 0],
            ),
            (
                &[5, 1, 0, 5, 1, 0, 3, 0],
                &[5, 0, 5, 1, 0, 1, 0, 0, 0, 0, 0, 0],
            ),
        ] {
            let (said, denials) = told("a.example", bytes).await;
            assert_eq!(said, answer, "{bytes:?}");
            assert_eq!(denials, denial("", DenyReason::Malformed));
        }
    }

    #[tokio::test]
    async fn a_message_that_is_cut_short_is_malformed_and_none_at_all_is_no_attempt() {
        for (bytes, answer) in [
            (&[5][..], &[5, 0xff][..]),
            (&[5, 2, 0], &[5, 0xff]),
            (&[5, 1, 0, 5, 1], &[5, 0, 5, 1, 0, 1, 0, 0, 0, 0, 0, 0]),
        ] {
            let (said, denials) = told("a.example", bytes).await;
            assert_eq!(said, answer, "{bytes:?}");
            assert_eq!(denials, denial("", DenyReason::Malformed));
        }
        assert_eq!(told("a.example", GREETING).await, (vec![5, 0], vec![]));
        assert_eq!(told("a.example", &[]).await, (vec![], vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_begun_must_be_ended_in_30_s() {
        for (bytes, counted) in [(&[5, 1, 0, 5][..], 1), (GREETING, 0)] {
            let proxy = Proxy::allowing("a.example");
            let (mut client, mut guest) = Client::pair().await;
            guest.write_all(bytes).await.unwrap();
            let began = Instant::now();
            assert!(open(&mut client, &proxy).await.is_none());
            assert_eq!(began.elapsed().as_secs(), 30, "{bytes:?}");
            assert_eq!(proxy.denials().len(), counted, "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn a_client_of_the_old_version_is_rejected_and_counted() {
        let proxy = Proxy::allowing("a.example");
        let (mut client, mut guest) = Client::pair().await;
        decline(&mut client, &proxy).await;
        let mut said = [0; 8];
        guest.read_exact(&mut said).await.unwrap();
        assert_eq!(said[..2], [0, 91]);
        assert_eq!(proxy.denials(), denial("", DenyReason::Malformed));
    }
}
