//! The grammar of one entry:
//!
//! ```text
//! entry  = ["!"] target [":" ports] ["/" proto] ["@" range] | "@" preset | "@tool:" tool
//! target = name | "*." name | address | range          (IPv6 in brackets when ports follow)
//! ports  = port | low "-" high | "*"
//! proto  = "tls" | "http" | "tcp"
//! ```
//!
//! Presets and tools stand for other entries; [`crate::Presets`] and the host write them out before
//! the list gets here, so that what is enforced can be read.

use ipnet::IpNet;

use crate::entry::{Effect, Entry, Target, Terms};
use crate::fault::ErrorCode;
use crate::fault::Fault;
use crate::host::Host;
use crate::name::HostName;
use crate::port::PortRange;
use crate::stream::StreamKind;
use crate::{breadth, target};

/// Reads one entry, without blanks around it.
pub(crate) fn parse(text: &str) -> Result<Entry, Fault> {
    if text.len() > LONGEST {
        return Err(Fault::new(
            ErrorCode::TooLong,
            format!("an entry has at most {LONGEST} bytes"),
        ));
    }
    let (effect, rest) = match text.strip_prefix('!') {
        Some(rest) => (Effect::Deny, rest),
        None => (Effect::Allow, text),
    };
    if rest.is_empty() {
        return Err(Fault::new(
            ErrorCode::Empty,
            "say what to deny, as in !example.com",
        ));
    }
    if let Some(preset) = rest.strip_prefix('@') {
        return Err(unexpanded(preset, effect));
    }
    // Nearly every entry is a bare name; looking for one byte is cheaper than for three.
    if rest.contains(':')
        && let Some((_, rest)) = rest.split_once("://")
    {
        return Err(url(rest));
    }
    let (rest, lift) = split_lift(rest)?;
    let (target, tail) = target::parse(rest)?;
    let (ports, kind) = parse_tail(&target, tail)?;
    let terms = Terms {
        effect,
        ports,
        kind,
    };
    let entry = Entry {
        target,
        terms: terms.canonical(),
        lift,
    };
    check_lift(&entry)?;
    breadth::check(&entry)?;
    Ok(entry)
}

fn split_lift(text: &str) -> Result<(&str, Option<IpNet>), Fault> {
    let Some((rest, range)) = text.split_once('@') else {
        return Ok((text, None));
    };
    match target::parse_range(range) {
        Ok(range) => Ok((rest, Some(range))),
        Err(_) if is_user(rest) => Err(userinfo(range)),
        Err(fault) => Err(fault),
    }
}

/// Whether what stands before an `@` is rather `user` or `user:password` than an entry.
fn is_user(text: &str) -> bool {
    let name = text.split(':').next().unwrap_or_default();
    let entry = target::parse(text).is_ok_and(|(target, tail)| parse_tail(&target, tail).is_ok());
    !entry || !name.contains('.')
}

fn check_lift(entry: &Entry) -> Result<(), Fault> {
    let hint = match (&entry.target, entry.terms.effect, entry.lift) {
        (_, _, None) | (Target::Exact(_) | Target::Below(_), Effect::Allow, _) => return Ok(()),
        (_, Effect::Deny, Some(range)) => format!("deny a range by an entry of its own: !{range}"),
        (Target::Net(_), Effect::Allow, Some(_)) => {
            "an address needs no range behind @: its own entry lifts the guard for it".into()
        }
    };
    Err(Fault::new(ErrorCode::Address, hint))
}

fn parse_tail(
    target: &Target,
    tail: &str,
) -> Result<(Option<PortRange>, Option<StreamKind>), Fault> {
    let (ports, word) = match tail.split_once('/') {
        Some((ports, word)) => (ports, Some(word)),
        None => (tail, None),
    };
    let kind = word.map(|word| parse_kind(target, word)).transpose()?;
    if ports.is_empty() {
        return Ok((None, kind));
    }
    let range = ports
        .strip_prefix(':')
        .and_then(PortRange::parse)
        .ok_or_else(|| {
            Fault::new(
                ErrorCode::Port,
                "a port is 1 to 65535, a range as in 8000-8100, or * for all of them",
            )
        })?;
    Ok((Some(range), kind))
}

fn parse_kind(target: &Target, word: &str) -> Result<StreamKind, Fault> {
    let lower = word.to_ascii_lowercase();
    if let Some(kind) = StreamKind::ALL
        .into_iter()
        .find(|kind| kind.as_str() == lower)
    {
        return Ok(kind);
    }
    match target {
        Target::Exact(name) if !OTHER_PROTOCOLS.contains(&lower.as_str()) => Err(path_of(name)),
        Target::Exact(_) | Target::Below(_) | Target::Net(_) => Err(Fault::new(
            ErrorCode::Protocol,
            "a protocol is tcp, tls or http, as in example.com:22/tcp",
        )),
    }
}

fn path_of(name: &HostName) -> Fault {
    Fault::new(
        ErrorCode::Url,
        format!("did you mean {name}? an entry names a host, never a path on it"),
    )
}

/// What stands behind `://`, of which the host may be what was meant.
fn url(rest: &str) -> Fault {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !name.ends_with(':') => (name, PortRange::parse(port)),
        _ => (host, None),
    };
    let hint = match Host::parse(name) {
        Ok(host) => format!(
            "did you mean {}? an entry names a host, never a URL",
            Entry::allowing(&host, port, None)
        ),
        Err(_) => "an entry names a host, never a URL".into(),
    };
    Fault::new(ErrorCode::Url, hint)
}

fn userinfo(behind: &str) -> Fault {
    // Also how a repository is named over SSH: git@host:path.
    let host = behind.split([':', '/']).next().unwrap_or_default();
    let hint = match HostName::parse(host) {
        Ok(name) => format!("leave out the user: did you mean {name}, or {name}:22 for SSH?"),
        Err(_) => "leave out the user: an entry names a host".into(),
    };
    Fault::new(ErrorCode::Userinfo, hint)
}

fn unexpanded(preset: &str, effect: Effect) -> Fault {
    let hint = match (effect, preset.strip_prefix("tool:")) {
        (Effect::Deny, _) => {
            "presets and tools cannot be denied as a whole; deny what is meant, as in !example.com"
        }
        (Effect::Allow, Some(_)) => {
            "host-collector writes @tool entries out for the machine it runs on; pass the list through it"
        }
        (Effect::Allow, None) => {
            "presets are written out before a list is enforced; pass the list through host-collector"
        }
    };
    Fault::new(ErrorCode::Preset, hint)
}

/// The longest entry in bytes: a name has 253 at most, and in U-labels not many times as much.
const LONGEST: usize = 1024;

/// Words that somebody writes who means a protocol rather than a path.
const OTHER_PROTOCOLS: [&str; 16] = [
    "udp", "quic", "https", "http2", "http3", "h2", "h3", "ssl", "ssh", "ftp", "ws", "wss", "dns",
    "icmp", "sctp", "any",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(entry: &str) -> (ErrorCode, String) {
        let Fault { code, hint } = parse(entry).expect_err(entry);
        (code, hint)
    }

    fn assert_canonical(cases: &[(&str, &str)]) {
        for (entry, canonical) in cases {
            let read = parse(entry).unwrap_or_else(|fault| panic!("{entry}: {fault:?}"));
            assert_eq!(read.to_string(), *canonical, "{entry}");
            assert_eq!(parse(canonical), Ok(read), "{entry}");
        }
    }

    #[test]
    fn a_name_has_one_spelling() {
        assert_canonical(&[
            ("GitHub.COM.", "github.com"),
            ("*.Example.com", "*.example.com"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("*.bücher.example", "*.xn--bcher-kva.example"),
            ("!_dmarc.Example.com.", "!_dmarc.example.com"),
            ("db", "db"),
        ]);
    }

    #[test]
    fn a_protocol_that_goes_without_saying_is_not_written() {
        assert_canonical(&[
            ("example.com:443/tls", "example.com:443"),
            ("example.com:80/http", "example.com:80"),
            ("example.com:22/tcp", "example.com:22"),
            ("example.com:8000-8100/TCP", "example.com:8000-8100"),
            ("10.0.0.0/8:5432/tcp", "10.0.0.0/8:5432"),
        ]);
    }

    #[test]
    fn a_protocol_that_says_something_is_written() {
        assert_canonical(&[
            ("example.com/TLS", "example.com/tls"),
            ("example.com:80/tls", "example.com:80/tls"),
            ("example.com:443/tcp", "example.com:443/tcp"),
            ("example.com:80-8100/tcp", "example.com:80-8100/tcp"),
            ("example.com:*/tcp", "example.com:*/tcp"),
            ("10.0.0.0/8/tcp", "10.0.0.0/8/tcp"),
            ("!example.com:22/tcp", "!example.com:22/tcp"),
        ]);
    }

    #[test]
    fn ports_have_one_spelling() {
        assert_canonical(&[
            ("example.com:443", "example.com:443"),
            ("example.com:443-443", "example.com:443"),
            ("example.com:1-65535", "example.com:*"),
            ("!example.com:*", "!example.com"),
        ]);
    }

    #[test]
    fn an_address_has_one_spelling() {
        assert_canonical(&[
            ("10.1.2.3/32", "10.1.2.3"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:10.1.2.3", "10.1.2.3"),
            ("2001:DB8:0::1/128", "2001:db8::1"),
        ]);
    }

    #[test]
    fn an_ipv6_address_is_bracketed_only_where_something_follows() {
        assert_canonical(&[
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::/32]", "2001:db8::/32"),
            ("[2001:db8::1]:22", "[2001:db8::1]:22"),
            ("[2001:db8::/32]:*", "[2001:db8::/32]:*"),
            ("2001:db8::1/tcp", "[2001:db8::1]/tcp"),
            ("2001:db8::/32/tcp", "[2001:db8::/32]/tcp"),
        ]);
    }

    #[test]
    fn the_range_of_a_name_is_written_with_its_prefix_length() {
        assert_canonical(&[
            ("git.corp.example@10.1.2.3", "git.corp.example@10.1.2.3/32"),
            ("a.example:8443/tls@fd00::/8", "a.example:8443/tls@fd00::/8"),
            ("*.corp.example@10.0.0.0/8", "*.corp.example@10.0.0.0/8"),
            ("db@::ffff:10.0.0.0/104", "db@10.0.0.0/8"),
        ]);
    }

    #[test]
    fn a_url_is_answered_with_its_host() {
        for (entry, hint) in [
            ("https://github.com/org/repo", "did you mean github.com?"),
            ("http://github.com", "did you mean github.com?"),
            (
                "https://user:pw@github.com:8443/x",
                "did you mean github.com:8443?",
            ),
            ("ssh://git@github.com/x", "did you mean github.com?"),
            (
                "https://[2001:db8::1]:8443/",
                "did you mean [2001:db8::1]:8443?",
            ),
            ("https://[2001:db8::1]/", "did you mean 2001:db8::1?"),
            ("https:// /", "never a URL"),
            ("github.com/org", "did you mean github.com?"),
            ("github.com/", "did you mean github.com?"),
            ("github.com:443/tcp/x", "did you mean github.com?"),
        ] {
            let (code, said) = refusal(entry);
            assert_eq!(code, ErrorCode::Url, "{entry}");
            assert!(said.contains(hint), "{entry}: {said}");
        }
    }

    #[test]
    fn a_user_is_told_from_a_name_with_a_range() {
        for (entry, code) in [
            ("user:pw@github.com", ErrorCode::Userinfo),
            ("user:1234@github.com", ErrorCode::Userinfo),
            ("git@github.com:org/repo.git", ErrorCode::Userinfo),
            ("git.corp.example@example.net", ErrorCode::Address),
            ("git.corp.example:443@example.net", ErrorCode::Address),
            ("git.corp.example@10.0.0.0/8:443", ErrorCode::Address),
            ("git.corp.example@10.0.0.1/8", ErrorCode::HostBits),
            ("git.corp.example@", ErrorCode::Address),
            ("example.com:http@10.0.0.0/8", ErrorCode::Port),
        ] {
            assert_eq!(refusal(entry).0, code, "{entry}");
        }
    }

    #[test]
    fn a_range_behind_an_at_sign_is_for_names_that_are_allowed() {
        for (entry, hint) in [
            ("10.1.2.3@10.0.0.0/8", "its own entry lifts the guard"),
            ("!git.corp.example@10.0.0.0/8", "!10.0.0.0/8"),
        ] {
            let (code, said) = refusal(entry);
            assert_eq!(code, ErrorCode::Address, "{entry}");
            assert!(said.contains(hint), "{entry}: {said}");
        }
    }

    #[test]
    fn another_protocol_is_not_taken_for_a_path() {
        for entry in [
            "example.com/udp",
            "example.com/HTTPS",
            "*.example.com/x",
            "10.0.0.0/8/udp",
            "[::1]/x",
        ] {
            assert_eq!(refusal(entry).0, ErrorCode::Protocol, "{entry}");
        }
    }

    #[test]
    fn presets_and_tools_are_written_out_elsewhere() {
        for (entry, hint) in [
            ("@github", "preset"),
            ("@tool:npm", "host-collector writes @tool entries out"),
            ("!@x", "preset"),
        ] {
            let (code, said) = refusal(entry);
            assert_eq!(code, ErrorCode::Preset, "{entry}");
            assert!(said.contains(hint), "{entry}: {said}");
        }
    }

    #[test]
    fn an_entry_longer_than_any_real_one_is_refused_unread() {
        assert_eq!(refusal(&"a".repeat(LONGEST + 1)).0, ErrorCode::TooLong);
        assert_eq!(refusal(&"a".repeat(LONGEST)).0, ErrorCode::Name);
    }
}
