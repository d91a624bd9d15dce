//! What holds for every list and every destination.

use std::net::{IpAddr, Ipv4Addr};

use policy::{Decision, Denial, Destination, Host, HostName, Policy, Presets};
use proptest::collection::vec;
use proptest::prelude::*;

/// Names that are often equal to, above or below one another.
fn name() -> impl Strategy<Value = String> {
    vec(
        prop::sample::select(vec!["a", "b", "_c", "d-e", "xn--bcher-kva"]),
        1..4,
    )
    .prop_map(|labels| format!("{}.example.com", labels.join(".")))
}

fn net() -> impl Strategy<Value = String> {
    prop_oneof![
        (0u8..4, 8u8..=32).prop_map(|(b, prefix)| {
            let net = ipnet::IpNet::new([10, b, 2, 1].into(), prefix).unwrap();
            net.trunc().to_string()
        }),
        Just("203.0.113.7".into()),
        Just("2001:db8::/32".into()),
        Just("::ffff:10.1.0.0/112".into()),
    ]
}

fn ports() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => Just(String::new()),
        1 => Just(":*".into()),
        2 => prop::sample::select(vec![22u16, 80, 443, 8080]).prop_map(|port| format!(":{port}")),
        1 => (1u16..500, 0u16..500).prop_map(|(low, more)| format!(":{low}-{}", low + more)),
    ]
}

fn proto() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", "", "", "/tls", "/http", "/tcp"]).prop_map(str::to_owned)
}

/// A target as it is written, with ports and protocol.
fn body() -> impl Strategy<Value = String> {
    let lift = prop_oneof![
        3 => Just(String::new()),
        1 => net().prop_map(|net| format!("@{net}")),
    ];
    let named = (any::<bool>(), name(), ports(), proto(), lift).prop_map(
        |(wild, name, ports, proto, lift)| {
            format!("{}{name}{ports}{proto}{lift}", if wild { "*." } else { "" })
        },
    );
    let numbered = (net(), ports(), proto()).prop_map(|(net, ports, proto)| {
        if net.contains("::") {
            format!("[{net}]{ports}{proto}")
        } else {
            format!("{net}{ports}{proto}")
        }
    });
    prop_oneof![3 => named, 1 => numbered]
}

fn entry() -> impl Strategy<Value = String> {
    (prop::bool::weighted(0.2), body()).prop_map(|(deny, body)| match body.split_once('@') {
        Some((body, _)) if deny => format!("!{body}"),
        _ if deny => format!("!{body}"),
        _ => body,
    })
}

/// An entry, or the name of one of six presets, of which five exist.
fn entry_or_preset() -> impl Strategy<Value = String> {
    prop_oneof![entry(), (0..6).prop_map(|n| format!("@p{n}"))]
}

fn destination() -> impl Strategy<Value = Destination> {
    let host = prop_oneof![
        3 => name(),
        1 => (0u8..5, 0u8..3).prop_map(|(b, d)| format!("10.{b}.2.{d}")),
        1 => prop::sample::select(vec!["203.0.113.7", "203.0.113.8", "2001:db8::1", "example.com"]).prop_map(str::to_owned),
    ];
    (
        host,
        prop_oneof![
            8 => prop::sample::select(vec![22u16, 80, 443, 8080]),
            8 => 0u16..1100,
            1 => Just(0),
        ],
    )
        .prop_map(|(host, port)| Destination::parse(&host, port).unwrap())
}

fn allows(policy: &Policy, to: &Destination) -> bool {
    matches!(policy.decide(to), Decision::Allow(_))
}

proptest! {
    #[test]
    fn the_canonical_form_is_a_fixpoint(list in vec(entry(), 1..12)) {
        let policy = Policy::from_entries(&list).unwrap();
        let again = Policy::from_entries(policy.entries()).unwrap();
        prop_assert_eq!(policy.entries(), again.entries());
        prop_assert_eq!(policy.digest(), again.digest());
        prop_assert_eq!(policy.warnings(), again.warnings());
    }

    #[test]
    fn the_canonical_form_decides_alike(list in vec(entry(), 1..12), to in destination()) {
        let policy = Policy::from_entries(&list).unwrap();
        let again = Policy::parse(&policy.entries().join("\n")).unwrap();
        match (policy.decide(&to), again.decide(&to)) {
            (Decision::Allow(a), Decision::Allow(b)) => {
                prop_assert_eq!(a.kinds(), b.kinds());
                prop_assert_eq!(a.rule(), b.rule());
            }
            (Decision::Deny(a), Decision::Deny(b)) => prop_assert_eq!(a, b),
            (a, b) => prop_assert!(false, "{:?} but {:?}", a, b),
        }
    }

    #[test]
    fn order_and_repetition_do_not_matter(list in vec(entry(), 1..12), to in destination()) {
        let policy = Policy::from_entries(&list).unwrap();
        let twisted = Policy::from_entries(list.iter().rev().chain(&list)).unwrap();
        prop_assert_eq!(policy.digest(), twisted.digest());
        prop_assert_eq!(allows(&policy, &to), allows(&twisted, &to));
    }

    #[test]
    fn a_deny_always_wins(list in vec(entry(), 0..12), to in destination(), at in 0usize..12) {
        let host = match &to.host {
            Host::Address(address) if address.is_ipv6() => format!("[{address}]"),
            host @ (Host::Name(_) | Host::Address(_)) => host.to_string(),
        };
        // Port 0 has no entry, and is never allowed.
        if to.port == 0 { return Ok(()) }
        let mut list = list;
        list.insert(at.min(list.len()), format!("!{host}:{}", to.port));
        prop_assert!(!allows(&Policy::from_entries(&list).unwrap(), &to), "{:?}", list);
    }

    #[test]
    fn widening_never_denies_what_was_allowed(list in vec(entry(), 1..12), more in vec(body(), 1..4), to in destination()) {
        let policy = Policy::from_entries(&list).unwrap();
        let wider = Policy::from_entries(list.iter().chain(&more)).unwrap();
        match (policy.decide(&to), wider.decide(&to)) {
            (Decision::Allow(a), Decision::Allow(b)) => {
                for kind in policy::StreamKind::ALL {
                    prop_assert!(!a.kinds().contains(kind) || b.kinds().contains(kind));
                }
            }
            (Decision::Allow(_), Decision::Deny(denial)) => prop_assert!(false, "{:?}: {:?}", more, denial),
            (Decision::Deny(_), _) => {}
        }
    }

    #[test]
    fn an_entry_that_a_warning_calls_useless_is(list in vec(entry(), 1..12), to in destination()) {
        let policy = Policy::from_entries(&list).unwrap();
        for warning in policy.warnings() {
            let (policy::Warning::Covered { entry, .. } | policy::Warning::Hidden { entry, .. }) = warning else { continue };
            let rest: Vec<_> = policy.entries().into_iter().filter(|other| other != entry).collect();
            let without = Policy::from_entries(rest).unwrap();
            prop_assert_eq!(allows(&policy, &to), allows(&without, &to), "{}", warning);
        }
    }

    #[test]
    fn a_guarded_address_is_dialled_only_within_a_range_that_was_named(
        list in vec(entry(), 1..12),
        to in destination(),
        bits in vec(any::<u32>(), 0..6),
    ) {
        let policy = Policy::from_entries(&list).unwrap();
        let Decision::Allow(permit) = policy.decide(&to) else { return Ok(()) };
        // Half of them in 10.0.0.0/8, where the entries name ranges.
        let addresses: Vec<IpAddr> = bits.iter().map(|b| Ipv4Addr::from_bits(if b % 2 == 0 { 10 << 24 | b >> 14 } else { *b }).into()).collect();
        for address in policy.check_addresses(&permit, &addresses).unwrap_or_default() {
            prop_assert!(addresses.contains(&address));
            let named = policy.lifted_ranges().iter().any(|range| range.contains(&address));
            prop_assert!(policy::is_guarded(address).is_none() || named, "{} under {:?}", address, policy.entries());
        }
    }

    #[test]
    fn an_entry_that_a_hint_offers_allows_what_was_denied(list in vec(body(), 1..12), to in destination()) {
        let policy = Policy::from_entries(&list).unwrap();
        let Decision::Deny(Denial { hint: Some(hint), .. }) = policy.decide(&to) else { return Ok(()) };
        let Some((_, rest)) = hint.split_once("add `") else { return Ok(()) };
        let (add, _) = rest.split_once('`').unwrap();
        let wider = Policy::from_entries(list.iter().map(String::as_str).chain([add])).unwrap();
        prop_assert!(allows(&wider, &to), "{}", hint);
    }

    #[test]
    fn a_packet_filter_opens_exactly_what_is_allowed_by_address(list in vec(entry(), 1..12), to in destination()) {
        let policy = Policy::from_entries(&list).unwrap();
        let Host::Address(address) = &to.host else { return Ok(()) };
        let open = policy.address_rules().iter().filter(|r| r.net.contains(address) && r.ports.contains(to.port)).count();
        prop_assert!(open <= 1, "{:?}", policy.address_rules());
        // A deny of one protocol closes the port to the filter altogether.
        let simple = list.iter().all(|entry| !entry.starts_with('!') || !entry.contains(['/']) || entry.ends_with(|c: char| c.is_ascii_digit()));
        if simple {
            prop_assert_eq!(open == 1, allows(&policy, &to), "{:?}", policy.entries());
        } else {
            prop_assert!(open == 0 || allows(&policy, &to), "{:?}", policy.entries());
        }
    }

    #[test]
    fn presets_come_out_as_plain_entries_or_as_one_line(
        lists in vec(vec(entry_or_preset(), 0..4), 5),
        list in vec(entry_or_preset(), 1..4),
    ) {
        let mut presets = Presets::default();
        for (n, list) in lists.iter().enumerate() {
            presets.insert(&format!("p{n}"), list.join("\n")).unwrap();
        }
        match presets.expand(&list.join(",")) {
            Ok(entries) => {
                prop_assert!(Policy::from_entries(&entries).is_ok(), "{:?}", entries);
                let own = list.iter().filter(|entry| !entry.starts_with('@'));
                prop_assert!(own.into_iter().all(|entry| entries.contains(entry)));
            }
            Err(error) => {
                prop_assert_eq!(error.code.as_str(), "preset");
                prop_assert!(!error.to_string().contains(char::is_control), "{}", error);
            }
        }
    }

    #[test]
    fn without_presets_a_list_is_what_it_says(list in vec(entry(), 1..12)) {
        let entries = Presets::default().expand(&list.join(",")).unwrap();
        prop_assert_eq!(
            Policy::from_entries(&entries).unwrap().digest(),
            Policy::from_entries(&list).unwrap().digest()
        );
    }

    #[test]
    fn any_text_is_a_list_or_one_line_of_complaint(list in ".{0,200}") {
        match Policy::parse(&list) {
            Ok(policy) => prop_assert!(!policy.is_empty()),
            Err(error) => {
                let line = error.to_string();
                prop_assert!(!line.contains(char::is_control) && line.len() < 1500, "{:?}", line);
            }
        }
    }

    #[test]
    fn text_that_looks_like_an_entry_is_never_a_panic(list in r"[!*@:/\[\]%.,#a-f0-9x-]{0,60}") {
        let _ = Policy::parse(&list).map(|policy| Policy::from_entries(policy.entries()).unwrap());
    }

    #[test]
    fn any_text_is_a_host_or_is_not(text in ".{0,300}", port: u16) {
        if let Ok(to) = Destination::parse(&text, port) {
            prop_assert_eq!(Host::parse(&to.host.to_string()), Ok(to.host));
        }
    }

    #[test]
    fn a_host_name_is_its_own_spelling(text in "[a-zA-Z0-9_.ßäéжﬃ。-]{1,40}") {
        if let Ok(name) = HostName::parse(&text) {
            prop_assert_eq!(HostName::parse(name.as_str()), Ok(name));
        }
    }
}
