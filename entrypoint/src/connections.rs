//! Where the guest is connected to over TCP, as the kernel lists it in /proc/net: PID 1 has the
//! guest's network, and so its sockets' too.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufRead, BufReader},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// The far ends of established connections, of any user's but `except`, as far as they are `wanted`.
///
/// What there is besides is read and not kept: a guest may have many.
pub(crate) fn established(
    except: Option<u32>,
    wanted: impl Fn(SocketAddr) -> bool,
) -> io::Result<BTreeSet<SocketAddr>> {
    let mut found = BTreeSet::new();
    for table in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        let lines = match File::open(table) {
            Ok(file) => BufReader::new(file).lines(),
            // A kernel that does not know IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for line in lines {
            if let Some((far, user)) = connection(&line?)
                && Some(user) != except
                && wanted(far)
            {
                found.insert(far);
            }
        }
    }
    Ok(found)
}

/// The far end of an established connection, and whose it is, as a line of /proc/net/tcp has them
/// (proc(5)).
fn connection(line: &str) -> Option<(SocketAddr, u32)> {
    let mut fields = line.split_ascii_whitespace().skip(2);
    let far = endpoint(fields.next()?)?;
    if fields.next()? != ESTABLISHED {
        return None;
    }
    Some((far, fields.nth(3)?.parse().ok()?))
}

/// `0A0000C0:0016`: words of the address in this machine's order, then the port. What is IPv4 in an
/// IPv6 socket is IPv4.
fn endpoint(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = address.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let address: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let octets: [u8; 16] = words.concat().try_into().ok()?;
            Ipv6Addr::from(octets).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(address.to_canonical(), port))
}

/// `TCP_ESTABLISHED`
const ESTABLISHED: &str = "01";

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_far_end_is_read_in_either_family_and_what_is_ipv4_is_ipv4() {
        for (text, expected) in [
            ("077100CB:0016", "203.0.113.7:22"),
            ("B80D0120000000000000000007000000:01BB", "[2001:db8::7]:443"),
            ("0000000000000000FFFF0000077100CB:0016", "203.0.113.7:22"),
        ] {
            assert_eq!(endpoint(text), Some(expected.parse().unwrap()), "{text}");
        }
        for text in [
            "",
            ":",
            "077100CB",
            "077100CB:",
            "077100C:0016",
            "zz7100CB:0016",
            "é77100CB:1",
        ] {
            assert_eq!(endpoint(text), None, "{text}");
        }
    }

    #[test]
    fn only_what_is_established_is_a_connection() {
        let line = |state: &str| {
            format!(
                "   1: 0200000A:A4D2 077100CB:0016 {state} 00000000:00000000 02:000A 00000000  1000 \
                 0 31 2 ffff 20 4 30 10 -1"
            )
        };
        let far = "203.0.113.7:22".parse().unwrap();
        assert_eq!(connection(&line("01")), Some((far, 1000)));
        for state in ["02", "03", "06", "0A", "1"] {
            assert_eq!(connection(&line(state)), None, "{state}");
        }
        let head =
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid";
        for line in [head, "", "1: 0200000A:A4D2 077100CB:0016 01"] {
            assert_eq!(connection(line), None, "{line}");
        }
    }

    #[test]
    fn a_connection_is_found_while_it_lives_and_is_wanted_unless_its_user_is_left_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = listener.local_addr().unwrap();
        let found =
            |except, wanted: &[SocketAddr]| established(except, |to| wanted.contains(&to)).unwrap();
        assert!(found(None, &[far]).is_empty());
        let stream = TcpStream::connect(far).unwrap();
        assert_eq!(found(None, &[far]), BTreeSet::from([far]));
        assert!(found(None, &[]).is_empty());
        let own = rustix::process::getuid().as_raw();
        assert!(found(Some(own), &[far]).is_empty());
        drop(stream);
        assert!(found(None, &[far]).is_empty());
    }
}
