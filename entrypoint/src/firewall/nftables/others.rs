//! Which of other tables' rules override ours. The engine's embedded resolver has rules in here too,
//! and they may change at any time.
//!
//! What others accept, our chains refuse all the same: in `nf_tables` a packet passes where nobody
//! refuses it. What would pass all the same is what our chains see as something else.

use super::notices::{all, attribute, number, text};

/// What a new object of another table does that ours cannot undo, if it is such a one.
pub(super) fn overrides(message: u8, family: u8, attributes: &[u8]) -> Option<&'static str> {
    match message {
        NEW_CHAIN if is_nat_before_ours(family, attributes) => {
            Some("a chain that gives connections another destination before the rules can")
        }
        NEW_RULE if !is_harmless(attributes) => {
            Some("a rule that changes what the rules see of packets, or sends them past the rules")
        }
        _ => None,
    }
}

/// The first chain that gives a connection a destination is the last.
fn is_nat_before_ours(family: u8, attributes: &[u8]) -> bool {
    let Some(hook) = attribute(attributes, CHAIN_HOOK) else {
        return false;
    };
    let priority = number(hook, HOOK_PRIORITY).map(u32::cast_signed);
    FAMILIES.contains(&family)
        && text(attributes, CHAIN_TYPE).as_deref() == Some("nat")
        && number(hook, HOOK_NUMBER) == Some(OUTPUT)
        && priority.is_some_and(|priority| priority <= NAT_PRIORITY)
}

fn is_harmless(attributes: &[u8]) -> bool {
    attribute(attributes, RULE_EXPRESSIONS)
        .is_none_or(|expressions| all(expressions, LIST_ELEMENT).all(is_harmless_expression))
}

/// All that compares, counts or ends, and the engine's own way of giving a destination. What is not
/// known here is not harmless.
fn is_harmless_expression(expression: &[u8]) -> bool {
    let name = text(expression, EXPRESSION_NAME).unwrap_or_default();
    let parameters = attribute(expression, EXPRESSION_PARAMETERS).unwrap_or_default();
    match name.as_str() {
        "bitwise" | "byteorder" | "cmp" | "connlimit" | "counter" | "fib" | "hash"
        | "immediate" | "last" | "limit" | "log" | "lookup" | "masq" | "match" | "meta" | "nat"
        | "numgen" | "osf" | "quota" | "range" | "redir" | "reject" | "rt" | "socket" | "xfrm" => {
            true
        }
        // Each of these reads, unless it has a register to write from.
        "payload" => attribute(parameters, PAYLOAD_SOURCE).is_none(),
        "exthdr" => attribute(parameters, EXTENSION_SOURCE).is_none(),
        "ct" => attribute(parameters, TRACKING_SOURCE).is_none(),
        "objref" => {
            number(parameters, OBJECT_TYPE).is_some_and(|object| COUNTING.contains(&object))
        }
        "target" => text(parameters, TARGET_NAME)
            .is_some_and(|target| HARMLESS_TARGETS.contains(&target.as_str())),
        _ => false,
    }
}

/// `NFT_MSG_NEWCHAIN`
const NEW_CHAIN: u8 = 3;
/// `NFT_MSG_NEWRULE`
const NEW_RULE: u8 = 6;
/// `NFPROTO_INET`, `NFPROTO_IPV4` and `NFPROTO_IPV6`
const FAMILIES: [u8; 3] = [1, 2, 10];
/// `NFTA_CHAIN_HOOK`, and in it `NFTA_HOOK_HOOKNUM` and `NFTA_HOOK_PRIORITY`
const CHAIN_HOOK: u16 = 4;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
/// `NFTA_CHAIN_TYPE`
const CHAIN_TYPE: u16 = 7;
/// `NF_INET_LOCAL_OUT`
const OUTPUT: u32 = 3;
/// Of our own chain `nat_output`.
const NAT_PRIORITY: i32 = -110;
/// `NFTA_RULE_EXPRESSIONS`, and in it `NFTA_LIST_ELEM`
const RULE_EXPRESSIONS: u16 = 4;
const LIST_ELEMENT: u16 = 1;
/// `NFTA_EXPR_NAME` and `NFTA_EXPR_DATA`
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_PARAMETERS: u16 = 2;
/// `NFTA_PAYLOAD_SREG`
const PAYLOAD_SOURCE: u16 = 5;
/// `NFTA_EXTHDR_SREG`
const EXTENSION_SOURCE: u16 = 7;
/// `NFTA_CT_SREG`
const TRACKING_SOURCE: u16 = 4;
/// `NFTA_OBJREF_IMM_TYPE`, and of those `NFT_OBJECT_COUNTER`, `_QUOTA`, `_LIMIT` and `_CONNLIMIT`
const OBJECT_TYPE: u16 = 1;
const COUNTING: [u32; 4] = [1, 2, 4, 5];
/// `NFTA_TARGET_NAME`
const TARGET_NAME: u16 = 1;
const HARMLESS_TARGETS: [&str; 7] = [
    "DNAT",
    "LOG",
    "MASQUERADE",
    "NFLOG",
    "REDIRECT",
    "REJECT",
    "SNAT",
];

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sched::{CloneFlags, unshare};

    use super::super::notices::Notices;

    /// What the kernel tells of `command`, and what is made of it.
    fn overridden(command: &str) -> bool {
        unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
        let mut notices = Notices::listen().unwrap();
        let output = Command::new("sh").args(["-c", command]).output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        let seen = notices.now(1).unwrap();
        assert!(seen.generation.is_some() && seen.changed.is_none() && !seen.lost);
        seen.outranked.is_some()
    }

    fn with_chain(rule: &str) -> String {
        format!(
            "nft 'add table ip t; add chain ip t c {{ type filter hook output priority -300; }}
             add rule ip t c {rule}'"
        )
    }

    #[tokio::test]
    async fn what_the_engines_resolver_needs_is_harmless() {
        for rules in [
            "iptables-nft -t nat -N R && iptables-nft -t nat -A OUTPUT -d 127.0.0.11 -j R &&
             iptables-nft -t nat -A R -d 127.0.0.11 -p udp --dport 53 -j DNAT --to 127.0.0.11:4000 &&
             iptables-nft -t nat -A POSTROUTING -s 127.0.0.11 -p udp -j SNAT --to-source :53",
            "nft 'add table inet x; add chain inet x y { type nat hook output priority -100; }
             add rule inet x y ip daddr 127.0.0.11 udp dport 53 counter dnat ip to 127.0.0.11:4000'",
        ] {
            assert!(!overridden(rules), "{rules}");
        }
    }

    #[tokio::test]
    async fn what_only_accepts_refuses_or_counts_is_harmless() {
        for rule in [
            "accept",
            "tcp dport 80 drop",
            "ct state new counter log",
            "meta mark set 1",
        ] {
            assert!(!overridden(&with_chain(rule)), "{rule}");
        }
    }

    #[tokio::test]
    async fn what_changes_packets_or_what_is_known_of_them_overrides() {
        for rule in [
            "notrack",
            "ct mark set 1",
            "ip daddr set 192.0.2.1",
            "dup to 192.0.2.1",
            "udp dport set 53",
        ] {
            assert!(overridden(&with_chain(rule)), "{rule}");
        }
        assert!(overridden("iptables-nft -t raw -A OUTPUT -j CT --notrack"));
    }

    #[tokio::test]
    async fn a_chain_that_gives_destinations_overrides_only_where_it_comes_first() {
        for (family, priority, first) in [
            ("ip", -111, true),
            ("ip6", -110, true),
            ("inet", -199, true),
            ("ip", -109, false),
        ] {
            let command = format!(
                "nft 'add table {family} t; add chain {family} t c {{
                 type nat hook output priority {priority}; }}'"
            );
            assert_eq!(overridden(&command), first, "{family} {priority}");
        }
        let other_hook = "nft 'add table ip t; add chain ip t c {
             type nat hook postrouting priority -199; }'";
        assert!(!overridden(other_hook));
    }
}
