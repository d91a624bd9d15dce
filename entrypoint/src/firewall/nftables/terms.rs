//! The words that rules are made of, shorter than libnftables-json(5) spells them.

use std::{
    borrow::Cow,
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use nftables::{
    expr::{
        CT, Elem, Expression, Meta, MetaKey, NamedExpression, Payload, PayloadField, Prefix, Range,
        SetItem,
    },
    stmt::{
        Accept, Counter, JumpTarget, Log, Match, NAT, Operator, Reject, RejectType, Return,
        Statement,
    },
    types::RejectCode,
};

use super::{LOG_GROUP, LOG_SNAPLEN, LOG_THRESHOLD};

/// Parts of rules.
pub(super) type Part = Statement<'static>;
/// What a rule compares.
pub(super) type Term = Expression<'static>;

/// `left == right`
pub(super) fn is(left: Term, right: Term) -> Part {
    Statement::Match(Match {
        left,
        right,
        op: Operator::EQ,
    })
}

/// `left != right`
pub(super) fn is_not(left: Term, right: Term) -> Part {
    Statement::Match(Match {
        left,
        right,
        op: Operator::NEQ,
    })
}

/// `left in right`: of the flags on the left, one that is on the right
pub(super) fn has(left: Term, right: Term) -> Part {
    Statement::Match(Match {
        left,
        right,
        op: Operator::IN,
    })
}

/// `meta key`
pub(super) const fn meta(key: MetaKey) -> Term {
    Expression::Named(NamedExpression::Meta(Meta { key }))
}

/// `protocol field`, as `ip daddr`
pub(super) fn field(protocol: &'static str, field: &'static str) -> Term {
    Expression::Named(NamedExpression::Payload(Payload::PayloadField(
        PayloadField {
            protocol: protocol.into(),
            field: field.into(),
        },
    )))
}

/// `th dport` of one transport
pub(super) fn dport(protocol: &'static str) -> Term {
    field(protocol, "dport")
}

/// `ip daddr . tcp dport`, of one family
pub(super) fn endpoint(family: &'static str) -> Term {
    let parts = vec![field(family, "daddr"), dport("tcp")];
    Expression::Named(NamedExpression::Concat(parts))
}

/// `ip daddr` or `ip6 daddr`, by what it is compared with
pub(super) fn daddr(other: IpAddr) -> Term {
    field(family(other), "daddr")
}

/// `ct state`
pub(super) fn state(state: &'static str) -> Part {
    has(tracked("state"), word(state))
}

/// Of a connection that a rule of ours, or the engine's, gave another destination.
pub(super) fn redirected() -> Part {
    has(tracked("status"), word("dnat"))
}

/// `ct key`
pub(super) fn tracked(key: &'static str) -> Term {
    Expression::Named(NamedExpression::CT(CT {
        key: key.into(),
        family: None,
        dir: None,
    }))
}

/// A number.
pub(super) fn number(n: impl Into<u32>) -> Term {
    Expression::Number(n.into())
}

/// A protocol over IP. By number: an image without /etc/protocols cannot resolve the names.
pub(super) fn protocol(number: u8) -> Term {
    Expression::Number(number.into())
}

/// A word of nftables.
pub(super) fn word(text: impl Into<Cow<'static, str>>) -> Term {
    Expression::String(text.into())
}

/// An anonymous set.
pub(super) fn any_of(terms: impl IntoIterator<Item = Term>) -> Term {
    let items = terms.into_iter().map(SetItem::Element).collect();
    Expression::Named(NamedExpression::Set(items))
}

/// `low-high`, or a single port.
pub(super) fn ports(low: u16, high: u16) -> Term {
    if low == high {
        return number(low);
    }
    Expression::Range(Box::new(Range {
        range: [number(low), number(high)],
    }))
}

/// An address.
pub(super) fn address(address: IpAddr) -> Term {
    word(address.to_string())
}

/// An element of a set of addresses with a port, for so many seconds.
pub(super) fn opening(to: SocketAddr, seconds: u32) -> Term {
    let parts = vec![address(to.ip()), number(to.port())];
    lasting(Expression::Named(NamedExpression::Concat(parts)), seconds)
}

/// An element of a set, for so many seconds.
pub(super) fn lasting(element: Term, seconds: u32) -> Term {
    Expression::Named(NamedExpression::Elem(Elem {
        val: Box::new(element),
        timeout: Some(seconds),
        expires: None,
        comment: None,
        counter: None,
    }))
}

/// A network; one of full length is its address, as nft wants it.
pub(super) fn network(net: IpNet) -> Term {
    if net.prefix_len() == net.max_prefix_len() {
        return address(net.addr());
    }
    let addr = Box::new(word(net.network().to_string()));
    Expression::Named(NamedExpression::Prefix(Prefix {
        addr,
        len: net.prefix_len().into(),
    }))
}

/// `ip` or `ip6`
pub(super) const fn family(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "ip",
        IpAddr::V6(_) => "ip6",
    }
}

/// `counter name`
pub(super) fn count(name: &'static str) -> Part {
    Statement::Counter(Counter::Named(name.into()))
}

/// Hands the packet's head to PID 1, which reads the prefix as the reason.
pub(super) fn log(reason: &'static str) -> Part {
    Statement::Log(Some(Log {
        prefix: Some(reason.into()),
        snaplen: Some(LOG_SNAPLEN),
        queue_threshold: Some(LOG_THRESHOLD),
        ..Log::new(Some(LOG_GROUP.into()))
    }))
}

/// `accept`
pub(super) const fn accept() -> Part {
    Statement::Accept(Some(Accept {}))
}

/// `drop`, for what nobody waits for.
pub(super) const fn drop() -> Part {
    Statement::Drop(Some(nftables::stmt::Drop {}))
}

/// `return`
pub(super) const fn leave() -> Part {
    Statement::Return(Some(Return {}))
}

/// `goto chain`
pub(super) fn goto(chain: &'static str) -> Part {
    Statement::Goto(JumpTarget {
        target: chain.into(),
    })
}

/// `jump chain`
pub(super) fn jump(chain: &'static str) -> Part {
    Statement::Jump(JumpTarget {
        target: chain.into(),
    })
}

/// `redirect to :port`
pub(super) fn redirect(port: u16) -> Part {
    Statement::Redirect(Some(NAT {
        addr: None,
        family: None,
        port: Some(number(port)),
        flags: None,
    }))
}

/// `reject with tcp reset`: an `ICMPv6` reject leaves a connect hanging for a second.
pub(super) const fn reset() -> Part {
    Statement::Reject(Some(Reject {
        _type: Some(RejectType::TCPReset),
        expr: None,
    }))
}

/// `reject with icmpx admin-prohibited`
pub(super) const fn prohibit() -> Part {
    Statement::Reject(Some(Reject {
        _type: Some(RejectType::ICMPX),
        expr: Some(RejectCode::AdminProhibited),
    }))
}

/// IANA's number of ICMP.
pub(super) const ICMP: u8 = 1;
/// IANA's number of `ICMPv6`.
pub(super) const ICMPV6: u8 = 58;
/// IANA's number of TCP.
pub(super) const TCP: u8 = 6;
/// IANA's number of IGMP.
pub(super) const IGMP: u8 = 2;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spelt(term: &impl serde::Serialize) -> Value {
        serde_json::to_value(term).unwrap()
    }

    #[test]
    fn a_comparison_has_two_sides_and_an_operator() {
        let rule = is(meta(MetaKey::Skuid), number(990_u32));
        let expected =
            json!({"match": {"op": "==", "left": {"meta": {"key": "skuid"}}, "right": 990}});
        assert_eq!(spelt(&rule), expected);
        assert_eq!(spelt(&is_not(word("a"), word("b")))["match"]["op"], "!=");
    }

    #[test]
    fn a_port_that_is_alone_is_no_range() {
        assert_eq!(spelt(&ports(80, 80)), json!(80));
        assert_eq!(spelt(&ports(80, 90)), json!({"range": [80, 90]}));
    }

    #[test]
    fn a_network_of_full_length_is_its_address() {
        for (net, expected) in [
            ("192.0.2.1/32", json!("192.0.2.1")),
            ("2001:db8::1/128", json!("2001:db8::1")),
            (
                "10.0.0.0/8",
                json!({"prefix": {"addr": "10.0.0.0", "len": 8}}),
            ),
            (
                "10.1.2.3/8",
                json!({"prefix": {"addr": "10.0.0.0", "len": 8}}),
            ),
        ] {
            assert_eq!(spelt(&network(net.parse().unwrap())), expected, "{net}");
        }
    }

    #[test]
    fn a_destination_is_read_from_the_header_of_its_family() {
        for (to, family) in [("192.0.2.1", "ip"), ("2001:db8::1", "ip6")] {
            let expected = json!({"payload": {"protocol": family, "field": "daddr"}});
            assert_eq!(spelt(&daddr(to.parse().unwrap())), expected, "{to}");
        }
    }

    #[test]
    fn a_refused_packet_is_logged_with_its_reason_and_no_more_than_its_head() {
        let log = &spelt(&log("quic"))["log"];
        assert_eq!(
            (&log["prefix"], &log["group"]),
            (&json!("quic"), &json!(LOG_GROUP))
        );
        assert_eq!(log["snaplen"], LOG_SNAPLEN);
        assert_eq!(log["queue-threshold"], LOG_THRESHOLD);
    }

    #[test]
    fn refusals_are_answers_and_no_silence() {
        assert_eq!(spelt(&reset()), json!({"reject": {"type": "tcp reset"}}));
        let prohibited = json!({"reject": {"type": "icmpx", "expr": "admin-prohibited"}});
        assert_eq!(spelt(&prohibit()), prohibited);
    }

    #[test]
    fn a_counter_is_named() {
        assert_eq!(
            spelt(&count("denied_packets")),
            json!({"counter": "denied_packets"})
        );
    }

    #[test]
    fn protocols_are_numbers() {
        assert_eq!(spelt(&protocol(TCP)), json!(6));
        assert_eq!(spelt(&protocol(IGMP)), json!(2));
    }
}
