//! What holds for every text that somebody takes for an allowlist.
//!
//! Property tests run it here, and `tests/fuzz` on what a fuzzer finds. No program has it.
#![expect(clippy::panic, reason = "what does not hold fails")]

use std::net::{IpAddr, Ipv4Addr};

use crate::{Decision, Destination, Host, Policy, is_guarded};

/// A list is one line of complaint, or a policy that its own canonical entries are the same policy
/// as; that says the same when it is asked again; that a deny narrows and an entry only widens.
///
/// What follows the last NUL is a destination, `host:port`.
///
/// # Panics
/// Where it does not hold.
pub fn allowlist(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (list, asked) = text.rsplit_once('\0').unwrap_or((&text, ""));
    let policy = match Policy::parse(list) {
        Ok(policy) => policy,
        Err(error) => {
            let line = error.to_string();
            assert!(
                !line.contains(char::is_control) && line.len() < 1500,
                "{line:?}"
            );
            assert_eq!(Policy::parse(list).err(), Some(error));
            return;
        }
    };
    let entries = policy.entries();
    assert!(!policy.is_empty() && entries.is_sorted());
    let again = rebuilt(&entries);
    assert_eq!(again.entries(), entries);
    assert_eq!(again.digest(), policy.digest());
    assert_eq!(again.warnings(), policy.warnings());
    assert_eq!(again.stream_ports(), policy.stream_ports());
    for to in destinations(asked, &entries) {
        decided(&policy, &again, &to);
    }
}

fn rebuilt(entries: &[String]) -> Policy {
    match Policy::parse(&entries.join(",")) {
        Ok(policy) => policy,
        Err(error) => panic!("{entries:?} are canonical: {error}"),
    }
}

/// What is asked for, and what the first entries name, on usual ports.
fn destinations(asked: &str, entries: &[String]) -> Vec<Destination> {
    let (host, port) = asked.rsplit_once(':').unwrap_or((asked, "443"));
    let mut hosts = vec![(host.to_owned(), port.parse().unwrap_or(443))];
    for entry in entries.iter().take(4) {
        let target = entry
            .trim_start_matches('!')
            .split(['@', '/'])
            .next()
            .unwrap_or_default();
        let target = target.replace("*.", "below.");
        let name = match target.rsplit_once(':') {
            Some((name, _)) if !target.ends_with(']') => name.to_owned(),
            Some(_) | None => target,
        };
        hosts.extend([80, 443, 22].map(|port| (name.clone(), port)));
    }
    let hosts = hosts.iter();
    hosts
        .filter_map(|(host, port)| Destination::parse(host, *port).ok())
        .collect()
}

fn decided(policy: &Policy, again: &Policy, to: &Destination) {
    let first = policy.decide(to);
    for other in [policy.decide(to), again.decide(to)] {
        assert!(same(&first, &other), "{to}: {first:?}, then {other:?}");
    }
    let with = |more: String| rebuilt(&[policy.entries(), vec![more]].concat());
    match &first {
        Decision::Allow(permit) => {
            assert_eq!(permit.destination(), to);
            assert!(
                policy.entries().iter().any(|entry| entry == permit.rule()),
                "{}",
                permit.rule()
            );
            let wider = with("wider.example".to_owned()).decide(to);
            assert!(
                matches!(wider, Decision::Allow(_)),
                "{to}: {wider:?} when more is allowed"
            );
            let addresses = [
                [10, 1, 2, 3],
                [127, 0, 0, 1],
                [203, 0, 113, 7],
                [1, 1, 1, 1],
            ];
            let addresses = addresses.map(|address| IpAddr::V4(Ipv4Addr::from(address)));
            for address in policy
                .check_addresses(permit, &addresses)
                .unwrap_or_default()
            {
                let lifted = policy
                    .lifted_ranges()
                    .iter()
                    .any(|range| range.contains(&address));
                assert!(
                    is_guarded(address).is_none() || lifted,
                    "{address} for {to}"
                );
            }
        }
        Decision::Deny(denial) => {
            let hint = denial.hint.as_deref().unwrap_or_default();
            assert!(!hint.contains(char::is_control), "{hint:?}");
        }
    }
    if to.port > 0 {
        let host = match &to.host {
            Host::Address(address) if address.is_ipv6() => format!("[{address}]"),
            host @ (Host::Name(_) | Host::Address(_)) => host.to_string(),
        };
        let narrower = with(format!("!{host}:{}", to.port)).decide(to);
        assert!(
            matches!(narrower, Decision::Deny(_)),
            "{to} is denied, and {narrower:?}"
        );
    }
}

fn same(one: &Decision, other: &Decision) -> bool {
    match (one, other) {
        (Decision::Allow(one), Decision::Allow(other)) => {
            one.rule() == other.rule() && one.kinds() == other.kinds()
        }
        (Decision::Deny(one), Decision::Deny(other)) => one == other,
        (Decision::Allow(_), Decision::Deny(_)) | (Decision::Deny(_), Decision::Allow(_)) => false,
    }
}

#[cfg(test)]
#[path = "../../../tests/fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use proptest::prelude::*;

    use super::{replay::replay, *};

    proptest! {
        #[test]
        fn text_that_looks_like_a_list_holds_or_complains(
            list in proptest::collection::vec(r"!?(\*\.)?[a-c]{1,2}\.(example|com|co\.uk|10\.1)(:[0-9*-]{1,5})?(/t?[a-z]{2,4})?(@10\.0\.0\.0/8)?", 1..5),
            asked in r"[a-c]{1,2}\.(example|com)(:(22|80|443))?",
        ) {
            allowlist(format!("{}\0{asked}", list.join("\n")).as_bytes());
        }

        #[test]
        fn addresses_in_any_spelling_hold_or_complain(list in r"(!?\[?[0-9a-f:.]{1,15}\]?(/[0-9]{1,3})?(:[0-9]{1,3})?,){1,4}") {
            allowlist(list.as_bytes());
        }

        #[test]
        fn any_bytes_hold_or_complain(list in proptest::collection::vec(any::<u8>(), 0..120)) {
            allowlist(&list);
        }
    }

    #[test]
    fn what_the_vectors_allow_and_refuse_holds() {
        for vectors in ["policy.jsonl", "policy-reject.jsonl"] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../tests/vectors")
                .join(vectors);
            for line in fs::read_to_string(path).unwrap().lines() {
                let vector: serde_json::Value = serde_json::from_str(line).unwrap();
                for list in ["allow", "entry", "entries", "list"]
                    .into_iter()
                    .filter_map(|key| vector.get(key))
                {
                    let entries = list
                        .as_array()
                        .map_or_else(|| vec![list.clone()], Clone::clone);
                    let entries: Vec<_> =
                        entries.iter().filter_map(|entry| entry.as_str()).collect();
                    allowlist(entries.join("\n").as_bytes());
                }
            }
        }
    }

    #[test]
    fn everything_that_fuzzers_have_found_holds() {
        replay("allowlist", allowlist);
    }
}
