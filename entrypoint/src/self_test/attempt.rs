//! What the probes try, in a process that is the guest's in all but name, and how it went.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    time::Duration,
};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The name that the proxy is asked for, to connect to and to resolve. Reserved (RFC 6761), so that
/// no list can mean it.
pub(crate) const UNLISTED_NAME: &str = report::link::SELF_TEST_NAME;

/// How a probe went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Outcome {
    /// The rules said no at once.
    Refused,
    /// The proxy said no at once, to a name.
    NoSuchName,
    /// No route leads there, so that no rule was needed.
    Unroutable,
    /// It got through, or hung.
    NotRefused(String),
}

pub(super) fn tcp(to: SocketAddr) -> Outcome {
    match TcpStream::connect_timeout(&to, PATIENCE) {
        Ok(_) => Outcome::NotRefused(format!("connected to {to}")),
        Err(error) => judge_error(&error),
    }
}

pub(super) fn udp(to: SocketAddr) -> Outcome {
    match exchange(to, &[0; 12]) {
        Ok(_) => Outcome::NotRefused(format!("{to} answered")),
        Err(error) => judge_error(&error),
    }
}

/// Whoever the question is aimed at, the proxy must answer it, and that there is no such name. An
/// answer of somebody else, or none, means that the guest could ask around the proxy.
pub(super) fn dns(to: SocketAddr) -> Outcome {
    match exchange(to, &question()) {
        Ok(answer) if is_no_such_name(&answer) => Outcome::NoSuchName,
        Ok(_) => Outcome::NotRefused(format!("{to} did not say that there is no such name")),
        Err(error) if judge_error(&error) == Outcome::Unroutable => Outcome::Unroutable,
        Err(error) => Outcome::NotRefused(format!("{to} did not answer for the proxy: {error}")),
    }
}

/// Where there is no proxy to answer, the rules must refuse the question at once.
pub(super) fn refused_question(to: SocketAddr) -> Outcome {
    match exchange(to, &question()) {
        Ok(_) => Outcome::NotRefused(format!("{to} answered")),
        Err(error) => judge_error(&error),
    }
}

fn exchange(to: SocketAddr, datagram: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr = if to.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(to).map_err(of_a_route)?;
    socket.send(datagram)?;
    let mut answer = vec![0; 512];
    let length = socket.recv(&mut answer)?;
    answer.truncate(length);
    Ok(answer)
}

/// What connecting a datagram socket fails of. Nothing is sent by it, so that it says something of
/// routes and of nothing else: where none leads, Linux finds no network, and gVisor no host.
fn of_a_route(error: io::Error) -> io::Error {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::HOSTUNREACH) => Errno::NETUNREACH.into(),
        _ => error,
    }
}

/// Asks for the address of [`UNLISTED_NAME`] (RFC 1035 section 4.1).
fn question() -> Vec<u8> {
    let header = [0x5e, 0x1f, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let mut question = header.to_vec();
    for label in UNLISTED_NAME.split('.') {
        question.extend(u8::try_from(label.len()));
        question.extend(label.bytes());
    }
    question.extend([0, 0, 1, 0, 1]);
    question
}

fn is_no_such_name(answer: &[u8]) -> bool {
    let number = question().first_chunk::<2>().copied();
    answer
        .first_chunk::<4>()
        .is_some_and(|&[high, low, flags, code]| {
            number == Some([high, low]) && flags & 0x80 != 0 && code & 0x0f == 3
        })
}

pub(super) fn connect(proxy: SocketAddr) -> Outcome {
    let exchange = || -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&proxy, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let request =
            format!("CONNECT {UNLISTED_NAME}:443 HTTP/1.1\r\nHost: {UNLISTED_NAME}:443\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    match exchange() {
        Ok(answer) if answer == "HTTP/1.1 403" => Outcome::NoSuchName,
        Ok(answer) => Outcome::NotRefused(format!("the proxy said `{answer}`")),
        Err(error) => Outcome::NotRefused(format!("the proxy did not answer: {error}")),
    }
}

/// What the kernel says to a refused packet depends on the protocol: a reset for TCP, and for the
/// rest the verdict itself or the ICMP error.
fn judge_error(error: &io::Error) -> Outcome {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    match errno {
        Some(Errno::CONNREFUSED | Errno::PERM | Errno::ACCESS | Errno::HOSTUNREACH) => {
            Outcome::Refused
        }
        Some(Errno::NETUNREACH | Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT) => Outcome::Unroutable,
        _ => Outcome::NotRefused(error.to_string()),
    }
}

const PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_answer_that_there_is_no_such_name_is_proof() {
        let answer = |id: &[u8], flags, code| [id, &[flags, code], &[0; 8]].concat();
        let ours = &question()[..2];
        assert!(is_no_such_name(&answer(ours, 0x81, 0x83)));
        for other in [
            answer(ours, 0x81, 0x80),
            answer(ours, 0x81, 0x85),
            answer(ours, 0x01, 0x83),
            answer(&[0, 0], 0x81, 0x83),
            question(),
            Vec::new(),
        ] {
            assert!(!is_no_such_name(&other), "{other:?}");
        }
    }

    #[test]
    fn what_is_listening_is_found_out() {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = listener.local_addr().unwrap();
        assert!(matches!(tcp(to), Outcome::NotRefused(_)));
        drop(listener);
        assert_eq!(tcp(to), Outcome::Refused);
    }

    #[test]
    fn a_proxy_that_says_yes_or_nothing_is_no_proof() {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
            let _ = stream.read(&mut [0; 512]);
        });
        assert!(matches!(connect(to), Outcome::NotRefused(_)));
        server.join().unwrap();
        assert!(matches!(connect(to), Outcome::NotRefused(_)));
    }

    #[test]
    fn what_the_kernel_says_to_a_refused_packet_is_a_refusal() {
        for errno in [
            Errno::CONNREFUSED,
            Errno::PERM,
            Errno::ACCESS,
            Errno::HOSTUNREACH,
        ] {
            assert_eq!(judge_error(&errno.into()), Outcome::Refused, "{errno}");
        }
    }

    #[test]
    fn where_no_route_leads_no_rule_is_needed() {
        for errno in [Errno::NETUNREACH, Errno::ADDRNOTAVAIL, Errno::AFNOSUPPORT] {
            assert_eq!(judge_error(&errno.into()), Outcome::Unroutable, "{errno}");
        }
    }

    #[test]
    fn a_host_that_no_route_leads_to_is_one_before_anything_is_sent_and_only_then() {
        let unreachable = || io::Error::from(Errno::HOSTUNREACH);
        assert_eq!(judge_error(&of_a_route(unreachable())), Outcome::Unroutable);
        assert_eq!(judge_error(&unreachable()), Outcome::Refused);
        let other = of_a_route(Errno::PERM.into());
        assert_eq!(judge_error(&other), Outcome::Refused);
    }

    #[test]
    fn silence_is_no_refusal() {
        for error in [
            io::ErrorKind::TimedOut.into(),
            io::ErrorKind::WouldBlock.into(),
            Errno::AGAIN.into(),
        ] {
            assert!(
                matches!(judge_error(&error), Outcome::NotRefused(_)),
                "{error}"
            );
        }
    }
}
