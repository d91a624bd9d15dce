//! Refuses entries that would allow nearly everything, however strict they look.

use ipnet::IpNet;

use crate::entry::{Effect, Entry, Target};
use crate::fault::ErrorCode;
use crate::fault::Fault;
use crate::name::HostName;

/// A deny may be as broad as it likes; it only closes.
pub(crate) fn check(entry: &Entry) -> Result<(), Fault> {
    if entry.terms.effect == Effect::Deny {
        return Ok(());
    }
    if let Target::Below(base) = &entry.target {
        check_suffix(base)?;
    }
    entry.range().map_or(Ok(()), check_range)
}

/// Below a public suffix anyone can own a name, and send there whatever leaves the sandbox. The
/// private half of the list counts as well: that is where pages, buckets and tunnels are rented.
fn check_suffix(base: &HostName) -> Result<(), Fault> {
    let name = base.as_str();
    let what = match psl::suffix(name.as_bytes()) {
        Some(suffix) if suffix == name && suffix.is_known() => {
            "a public suffix, below which anyone can own a name"
        }
        Some(suffix) if suffix == name => "a whole top-level domain",
        _ => return Ok(()),
    };
    let hint = format!(
        "{name} is {what}; write the names that are meant, or the domains as in *.example.com"
    );
    Err(Fault::new(ErrorCode::Overbroad, hint))
}

fn check_range(range: IpNet) -> Result<(), Fault> {
    let shortest = match range {
        IpNet::V4(_) => SHORTEST_V4,
        IpNet::V6(_) => SHORTEST_V6,
    };
    if range.prefix_len() >= shortest {
        return Ok(());
    }
    Err(Fault::new(
        ErrorCode::Overbroad,
        format!(
            "the prefix length is at least {shortest}; write the networks that are meant, as in 10.0.0.0/8"
        ),
    ))
}

/// The largest private network of IPv4 is 10.0.0.0/8, of IPv6 `fc00::/7`: nobody's own is larger.
const SHORTEST_V4: u8 = 8;
const SHORTEST_V6: u8 = 7;

#[cfg(test)]
mod tests {
    use crate::fault::ErrorCode;
    use crate::grammar::parse;

    #[test]
    fn a_wildcard_over_a_public_suffix_is_refused() {
        for entry in [
            "*.com",
            "*.co.uk",
            "*.公司.cn",
            "*.github.io",
            "*.COM.",
            "*.internal",
            "*.com:8443",
        ] {
            assert_eq!(
                parse(entry).unwrap_err().code,
                ErrorCode::Overbroad,
                "{entry}"
            );
        }
    }

    #[test]
    fn a_domain_below_a_public_suffix_is_not_too_broad() {
        for entry in [
            "*.example.com",
            "*.example.co.uk",
            "*.octo.github.io",
            "*.corp.internal",
            "github.io",
            "com",
        ] {
            assert!(parse(entry).is_ok(), "{entry}");
        }
    }

    #[test]
    fn a_range_wider_than_any_private_network_is_refused() {
        for entry in [
            "0.0.0.0/0",
            "0.0.0.0/1",
            "126.0.0.0/7",
            "::/0",
            "2000::/3",
            "[2000::/3]:443",
            "a.example@8.0.0.0/5",
            "a.example@::/0",
            "::ffff:0.0.0.0/96",
        ] {
            assert_eq!(
                parse(entry).unwrap_err().code,
                ErrorCode::Overbroad,
                "{entry}"
            );
        }
        for entry in [
            "10.0.0.0/8",
            "fc00::/7",
            "a.example@10.0.0.0/8",
            "a.example@fc00::/7",
        ] {
            assert!(parse(entry).is_ok(), "{entry}");
        }
    }

    #[test]
    fn a_deny_may_be_as_broad_as_it_likes() {
        for entry in ["!*.com", "!0.0.0.0/0", "!::/0"] {
            assert!(parse(entry).is_ok(), "{entry}");
        }
        assert_eq!(parse("!*").unwrap_err().code, ErrorCode::Overbroad);
    }

    #[test]
    fn the_hint_says_what_the_suffix_is() {
        for (entry, hint) in [
            ("*.co.uk", "co.uk is a public suffix"),
            ("*.internal", "internal is a whole top-level domain"),
        ] {
            let fault = parse(entry).unwrap_err();
            assert!(fault.hint.contains(hint), "{entry}: {}", fault.hint);
        }
    }
}
