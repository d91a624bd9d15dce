//! Reads the target of an entry: a name, a wildcard, an address or a range.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::entry::Target;
use crate::fault::ErrorCode;
use crate::fault::Fault;
use crate::name::{HostName, HostNameError};
use crate::net;

/// Splits an entry without its `!` and its `@` part into the target and what follows it: nothing,
/// or ports from `:` on, or a protocol from `/` on.
pub(crate) fn parse(text: &str) -> Result<(Target, &str), Fault> {
    if let Some(rest) = text.strip_prefix('[') {
        return bracketed(rest);
    }
    let host_end = text.bytes().position(|b| matches!(b, b':' | b'/'));
    let (host, tail) = text.split_at(host_end.unwrap_or(text.len()));
    if tail.starts_with(':') {
        let (literal, after) = text.split_at(text.find('/').unwrap_or(text.len()));
        if looks_like_ipv6(literal) {
            return bare_ipv6(literal, after);
        }
    }
    if host.contains('*') {
        return Ok((wildcard(host)?, tail));
    }
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        let (prefix, tail) = split_prefix(tail);
        return Ok((Target::Net(range(address.into(), prefix)?), tail));
    }
    let name = HostName::parse(host).map_err(|error| not_a_name(host, error))?;
    Ok((Target::Exact(name), tail))
}

/// Reads an address or a range and nothing behind it.
pub(crate) fn parse_range(text: &str) -> Result<IpNet, Fault> {
    let end = text.find('/').unwrap_or(text.len());
    let (address, tail) = text.split_at(end);
    let address = address.parse().map_err(|_| not_a_range())?;
    match split_prefix(tail) {
        (prefix, "") => range(address, prefix),
        _ => Err(not_a_range()),
    }
}

/// What follows an opening bracket: an IPv6 address or range.
fn bracketed(rest: &str) -> Result<(Target, &str), Fault> {
    let remedy =
        || address("brackets hold all of an IPv6 address or range, as in [2001:db8::/32]:443");
    let (inner, tail) = rest.split_once(']').ok_or_else(remedy)?;
    let end = inner.find('/').unwrap_or(inner.len());
    let (literal, prefix) = inner.split_at(end);
    let literal: Ipv6Addr = literal.parse().map_err(|_| not_ipv6(literal))?;
    let outside =
        split_prefix(tail).0.is_some() || tail.starts_with(|c: char| c != ':' && c != '/');
    match split_prefix(prefix) {
        (prefix, "") if !outside => Ok((Target::Net(range(literal.into(), prefix)?), tail)),
        _ => Err(remedy()),
    }
}

fn bare_ipv6<'a>(literal: &str, after: &'a str) -> Result<(Target, &'a str), Fault> {
    let literal: Ipv6Addr = literal.parse().map_err(|_| not_ipv6(literal))?;
    let (prefix, tail) = split_prefix(after);
    if tail.starts_with(':') {
        return Err(address(
            "bracket an IPv6 range that carries a port, as in [2001:db8::/32]:443",
        ));
    }
    Ok((Target::Net(range(literal.into(), prefix)?), tail))
}

/// Splits `/24` off, if digits follow the slash at once; a protocol does not start with one.
fn split_prefix(tail: &str) -> (Option<&str>, &str) {
    let Some(rest) = tail
        .strip_prefix('/')
        .filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    else {
        return (None, tail);
    };
    let end = rest.find([':', '/']).unwrap_or(rest.len());
    let (prefix, tail) = rest.split_at(end);
    (Some(prefix), tail)
}

fn range(host: IpAddr, prefix: Option<&str>) -> Result<IpNet, Fault> {
    let Some(prefix) = prefix else {
        return Ok(net::of_address(host));
    };
    let longest = if host.is_ipv4() { 32 } else { 128 };
    let net = prefix
        .parse()
        .ok()
        .and_then(|prefix| IpNet::new(host, prefix).ok())
        .ok_or_else(|| {
            address(format!(
                "the prefix length of such a range is 0 to {longest}"
            ))
        })?;
    if net.trunc() != net {
        let hint = format!(
            "did you mean {}, or {host} alone?",
            net::canonical(net.trunc())
        );
        return Err(Fault::new(ErrorCode::HostBits, hint));
    }
    Ok(net::canonical(net))
}

fn wildcard(host: &str) -> Result<Target, Fault> {
    if host == "*" || host == "*." {
        return Err(Fault::new(
            ErrorCode::Overbroad,
            "name the hosts, or the domains as in *.example.com",
        ));
    }
    let base = host.strip_prefix("*.").filter(|base| !base.contains('*'));
    let Some(base) = base else {
        return Err(Fault::new(
            ErrorCode::WildcardPosition,
            wildcard_remedy(host),
        ));
    };
    match HostName::parse(base) {
        Ok(base) => Ok(Target::Below(base)),
        Err(HostNameError::Numeric) => Err(address(
            "a wildcard stands for names; write a range of addresses as in 10.0.0.0/8",
        )),
        Err(error) => Err(not_a_name(base, error)),
    }
}

/// What was probably meant is everything below the last label with a star.
fn wildcard_remedy(host: &str) -> String {
    let base = host
        .rsplit_once('*')
        .and_then(|(_, rest)| rest.split_once('.'))
        .and_then(|(_, base)| HostName::parse(base).ok())
        .filter(|base| base.as_str().contains('.'));
    match base {
        Some(base) => format!("use *.{base} for every name below {base}"),
        None => "a * stands for whole labels at the start, as in *.example.com".into(),
    }
}

fn not_a_name(host: &str, error: HostNameError) -> Fault {
    if error != HostNameError::Numeric {
        return Fault::new(
            ErrorCode::Name,
            format!("{error}; write a name such as example.com"),
        );
    }
    if host.bytes().all(|b| b.is_ascii_digit()) {
        return address(
            "write a port behind its host, as in example.com:443, one entry for each port",
        );
    }
    address(
        "write an address as four decimal numbers without leading zeros, a range as in 10.0.0.0/8",
    )
}

fn not_ipv6(literal: &str) -> Fault {
    if literal.contains('%') {
        return address("leave out the zone, from the % on");
    }
    address("not an IPv6 address; write one as in 2001:db8::1, or [2001:db8::1]:443 with a port")
}

fn not_a_range() -> Fault {
    address(
        "behind @ comes only the range that the name may resolve into, as in example.com:8443@10.0.0.0/8",
    )
}

fn address(hint: impl Into<String>) -> Fault {
    Fault::new(ErrorCode::Address, hint)
}

/// Whether this was meant as an IPv6 address, perhaps with a zone, rather than as a name and ports.
fn looks_like_ipv6(text: &str) -> bool {
    let literal = text.split('%').next().unwrap_or_default();
    let colons = literal.bytes().filter(|b| *b == b':').count();
    colons >= 2
        && literal
            .bytes()
            .all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(target: &str) -> (ErrorCode, String) {
        let Fault { code, hint } = parse(target).expect_err(target);
        (code, hint)
    }

    #[test]
    fn what_follows_the_target_is_left_over() {
        for (text, tail) in [
            ("example.com", ""),
            ("example.com:443/tls", ":443/tls"),
            ("*.example.com/x", "/x"),
            ("10.0.0.0/8", ""),
            ("10.0.0.0/8:1", ":1"),
            ("10.0.0.1/tcp", "/tcp"),
            ("2001:db8::/32/tcp", "/tcp"),
            ("2001:db8::1", ""),
            ("[2001:db8::/32]:1/tcp", ":1/tcp"),
            ("example.com:80:443", ":80:443"),
        ] {
            let (_, left) = parse(text).unwrap_or_else(|fault| panic!("{text}: {fault:?}"));
            assert_eq!(left, tail, "{text}");
        }
    }

    #[test]
    fn addresses_are_refused_with_the_remedy_for_each_slip() {
        for (text, hint) in [
            ("10.0.0.0/33", "0 to 32"),
            ("10.0.0.0/8x", "0 to 32"),
            ("2001:db8::/129", "0 to 128"),
            (
                "2001:db8::/32:443",
                "bracket an IPv6 range that carries a port",
            ),
            ("[2001:db8::]/32", "hold all of"),
            ("[2001:db8::/32]x", "hold all of"),
            ("[::1", "hold all of"),
            ("[]", "not an IPv6 address"),
            ("[10.0.0.1]", "not an IPv6 address"),
            ("1:2:3", "not an IPv6 address"),
            ("fe80::1%eth0", "leave out the zone"),
            ("[fe80::1%25eth0]:22", "leave out the zone"),
            ("127.1", "four decimal numbers"),
            ("0177.0.0.1", "four decimal numbers"),
            ("10.0.0/8", "four decimal numbers"),
            ("443", "behind its host"),
            ("*.10.0.0.1", "a wildcard stands for names"),
        ] {
            let (code, said) = refusal(text);
            assert_eq!(code, ErrorCode::Address, "{text}: {said}");
            assert!(said.contains(hint), "{text}: {said}");
        }
    }

    #[test]
    fn host_bits_are_answered_with_the_range_and_the_address() {
        for (text, hint) in [
            ("10.0.0.1/8", "did you mean 10.0.0.0/8, or 10.0.0.1 alone?"),
            (
                "2001:db8::1/32",
                "did you mean 2001:db8::/32, or 2001:db8::1 alone?",
            ),
        ] {
            assert_eq!(
                refusal(text),
                (ErrorCode::HostBits, hint.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn a_misplaced_star_is_answered_with_the_right_place() {
        for (text, hint) in [
            ("**.example.com", "use *.example.com"),
            ("foo*.example.com", "use *.example.com"),
            ("api.*.example.com", "use *.example.com"),
            ("*foo.com", "as in *.example.com"),
            ("x.*", "as in *.example.com"),
        ] {
            let (code, said) = refusal(text);
            assert_eq!(code, ErrorCode::WildcardPosition, "{text}");
            assert!(said.contains(hint), "{text}: {said}");
        }
    }

    #[test]
    fn a_range_stands_alone() {
        for text in [
            "",
            "10.0.0.0/8:443",
            "10.0.0.0/8/tcp",
            "[fd00::/8]",
            "example.net",
            "10.0.0.0/",
        ] {
            assert_eq!(
                parse_range(text).unwrap_err().code,
                ErrorCode::Address,
                "{text}"
            );
        }
        assert_eq!(parse_range("fd00::/8").unwrap().to_string(), "fd00::/8");
    }
}
