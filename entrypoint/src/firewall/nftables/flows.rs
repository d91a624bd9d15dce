//! Whose a flow is, and that it was let through.
//!
//! The kernel knows a flow from its first packet on, whether there were rules then or not. So the
//! rules write on each flow that they let through, and what belongs to a flow passes for that mark
//! alone. An unmarked flow is from a time in which somebody had taken the rules away: each of its
//! packets is judged as if it were the first.

use nftables::{
    expr::{BinaryOperation, Expression, MetaKey},
    stmt::{Mangle, Statement},
};

use super::terms::{
    ICMP, ICMPV6, Part, Term, accept, any_of, field, has, is, meta, number, protocol, state,
    tracked, word,
};

/// More of a flow that a rule let through.
pub(super) fn let_through() -> [Part; 3] {
    let known = BinaryOperation::AND(mark(), number(!WHOSE));
    let known = Expression::BinaryOperation(Box::new(known));
    [state("established"), is(known, number(OURS)), accept()]
}

/// What the kernel says of a flow, whichever it is: that it ended, or did not arrive. Whatever else
/// is related to a flow is a flow of its own.
pub(super) fn said_of_flows() -> [[Part; 3]; 2] {
    let errors = any_of([ICMP, ICMPV6].map(protocol));
    let resets = has(field("tcp", "flags"), word("rst"));
    [is(meta(MetaKey::L4proto), errors), resets].map(|said| [state("related"), said, accept()])
}

/// Notes on the flow that one of us has opened it.
pub(super) fn claim() -> Part {
    note(OURS)
}

/// Of a flow that one of us has opened.
pub(super) fn claimed() -> Part {
    is(mark(), number(OURS))
}

/// Sent by whoever opened the flow, or by who is taken for it.
pub(super) fn onwards() -> Part {
    is(tracked("direction"), word("original"))
}

/// Lets a flow of ours through.
pub(super) fn accept_ours() -> [Part; 2] {
    [claim(), accept()]
}

/// Lets a flow of anybody else's through.
pub(super) fn accept_flow() -> [Part; 2] {
    [note(OURS | WHOSE), accept()]
}

fn note(value: u32) -> Part {
    let value = number(value);
    Statement::Mangle(Mangle { key: mark(), value })
}

fn mark() -> Term {
    tracked("mark")
}

/// The mark of flows of ours, which nobody else in a container is likely to use.
const OURS: u32 = 0x5e99_e550;
/// The bit that tells those of others from them.
const WHOSE: u32 = 1;

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, Read as _, Write as _},
        net::{SocketAddr, TcpStream},
    };

    use serde_json::{Value, json};

    use super::*;
    use crate::firewall::{
        nftables::{Finding, Table},
        opened::Kept,
        plan::tests::plan,
        tests::outside::{DENIED, OPENED, OUTSIDE, carries, dial, run, with_a_host_outside},
    };

    fn spelt(term: &impl serde::Serialize) -> Value {
        serde_json::to_value(term).unwrap()
    }

    #[test]
    fn a_flow_is_claimed_with_the_mark_by_which_it_is_known() {
        let mark = json!({"ct": {"key": "mark"}});
        let noted = json!({"mangle": {"key": mark, "value": OURS}});
        assert_eq!(spelt(&claim()), noted);
        let known = json!({"match": {"op": "==", "left": mark, "right": OURS}});
        assert_eq!(spelt(&claimed()), known);
    }

    #[test]
    fn a_flow_of_others_is_let_through_with_another_mark_and_known_by_what_both_have() {
        let other = spelt(&accept_flow());
        assert_eq!(other[0]["mangle"]["value"], OURS | WHOSE);
        assert_ne!(OURS | WHOSE, OURS);
        let known = spelt(&let_through());
        let both = json!({"&": [{"ct": {"key": "mark"}}, !WHOSE]});
        assert_eq!(
            known[1]["match"],
            json!({"op": "==", "left": both, "right": OURS})
        );
    }

    #[tokio::test]
    async fn what_was_opened_without_rules_is_judged_by_the_next_and_what_they_let_through_goes_on()
    {
        let taken = with_a_host_outside();
        run("nft 'add table ip engine; add chain ip engine c { type filter hook output priority 1; }
             add rule ip engine c ct state established counter'");
        let rules = plan("example.com:22", &[]).ruleset();
        let (mut table, _) = Table::load(&rules).unwrap();
        let to: SocketAddr = format!("{OUTSIDE}:{OPENED}").parse().unwrap();
        table.open(&[to], 60).unwrap();
        let [ours, theirs] = dial(OPENED, &taken);
        assert!(carries([&ours, &theirs]));
        let refused = TcpStream::connect((OUTSIDE, DENIED)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);

        // Where somebody else looks at flows too, the kernel goes on to know them.
        run("nft 'delete table inet sandbox_egress'");
        let [mut denied, theirs_of_denied] = dial(DENIED, &taken);
        let [silent, mut theirs_of_silent] = dial(DENIED, &taken);
        let [late, theirs_of_late] = dial(OPENED, &taken);
        assert!(carries([&denied, &theirs_of_denied]));
        assert!(matches!(
            table.changed().await.unwrap(),
            Finding::Changed(_)
        ));
        table.reload(&rules).unwrap();
        table.restore(&[Kept { to, seconds: 60 }]).unwrap();

        assert!(carries([&ours, &theirs]), "it was let through before");
        assert!(carries([&late, &theirs_of_late]), "it would be let through");
        denied.write_all(b"x").unwrap();
        let error = denied.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        theirs_of_silent.write_all(b"x").unwrap();
        let error = theirs_of_silent.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        silent.set_nonblocking(true).unwrap();
        let nothing = (&silent).read(&mut [0]).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
        let counted = table.counters().unwrap();
        assert_eq!((counted.packets, counted.ingress), (1, 1), "{counted:?}");
    }
}
