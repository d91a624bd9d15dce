//! Rules for kernels that neither track connections nor answer what they refuse, such as gVisor's.
//!
//! Each packet is judged by itself, and a closed port answers in the rules' place. There are few
//! chains and no detours: what such a kernel takes at once is a few kilobytes.

use super::{
    rules::{OUTPUT, PROXY, REDIRECT, listed, owned, redirect},
    script::{Family, Table, ranges, tcp, udp},
};
use crate::firewall::plan::{LOOPBACK, Plan};

/// The script of one family.
pub(super) fn script(plan: &Plan, family: Family) -> String {
    [filter(plan, family), nat(plan, family)].concat()
}

/// The script that has the rules of one family follow another list: all of them anew, where they
/// are. There is nothing that they have counted.
pub(super) fn following(plan: &Plan, family: Family) -> String {
    let script = script(plan, family);
    let lines = script.lines().filter(|line| !line.starts_with("-I "));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// What leaves. What comes in cannot be told from answers, which the proxy needs.
fn filter(plan: &Plan, family: Family) -> String {
    let mut table = Table::new("filter", &[PROXY, OUTPUT]);
    table.policy("OUTPUT", "DROP");
    judge_proxy(plan, family, &mut table);
    let proxy = owned(plan.proxy_uid);
    // Nobody but root answers for a resolver, on loopback neither.
    let answer = udp("sport", 53, 53);
    table.rule(OUTPUT, format_args!("{answer} {proxy} -j {PROXY}"));
    table.rule(
        OUTPUT,
        format_args!("{answer} -m owner ! --uid-owner 0 -j DROP"),
    );
    table.rule(OUTPUT, "-o lo -j ACCEPT");
    for net in family.of(LOOPBACK) {
        // Redirected, by a route that was chosen before.
        table.rule(OUTPUT, format_args!("-d {net} -j ACCEPT"));
    }
    let own: Vec<_> = plan.here.own.iter().map(ipnet::IpNet::addr).collect();
    // Answers of what was redirected; not every kernel sends them by `lo`.
    for own in family.addresses(&own) {
        table.rule(OUTPUT, format_args!("-d {own} -j ACCEPT"));
    }
    table.rule(OUTPUT, format_args!("{proxy} -j {PROXY}"));
    for question in [udp("dport", 53, 53), tcp("dport", 53, 53)] {
        let root = owned(0);
        table.rule(OUTPUT, format_args!("{question} {root} -j ACCEPT"));
    }
    for to in listed(plan, family) {
        table.rule(OUTPUT, to + " -j ACCEPT");
    }
    table.rule(OUTPUT, "-j DROP");
    table.enter("OUTPUT", format_args!("-j {OUTPUT}"));
    table.commit()
}

/// What is guarded of IPv6 would be more than the kernel takes at once: the proxy has IPv4 alone.
fn judge_proxy(plan: &Plan, family: Family, table: &mut Table) {
    if family == Family::V6 {
        table.rule(PROXY, "-j DROP");
        return;
    }
    for resolver in family.addresses(&plan.here.resolvers) {
        for question in [udp("dport", 53, 53), tcp("dport", 53, 53)] {
            table.rule(PROXY, format_args!("-d {resolver} {question} -j ACCEPT"));
        }
    }
    if let Some(port) = plan.upstream_port {
        table.rule(PROXY, tcp("dport", port, port) + " -j ACCEPT");
    }
    for net in family.of(plan.lifted.iter().copied()) {
        table.rule(PROXY, format_args!("-d {net} -p 6 -j ACCEPT"));
    }
    for net in family.of(plan.guarded.iter().copied()) {
        table.rule(PROXY, format_args!("-d {net} -j DROP"));
    }
    table.rule(PROXY, "-p 6 -j ACCEPT");
    table.rule(PROXY, "-j DROP");
}

fn nat(plan: &Plan, family: Family) -> String {
    let mut table = Table::new("nat", &[REDIRECT]);
    let proxy = owned(plan.proxy_uid);
    if family == Family::V6 {
        // At once, so that the proxy goes on to an address of IPv4.
        table.rule(REDIRECT, format_args!("{proxy} {}", redirect(6, CLOSED)));
    }
    table.rule(REDIRECT, proxy + " -j RETURN");
    let (dns, streams) = match family {
        Family::V4 => (Some(plan.dns4), Some(plan.redirect4)),
        Family::V6 => (plan.dns6, plan.redirect6),
    };
    if let Some(ports) = dns {
        for (question, port) in [
            (udp("dport", 53, 53), ports.udp),
            (tcp("dport", 53, 53), ports.tcp),
        ] {
            let rule = format!("{question} -m owner ! --uid-owner 0 -j REDIRECT --to-ports {port}");
            table.rule(REDIRECT, rule);
        }
    }
    for net in family.of(LOOPBACK) {
        table.rule(REDIRECT, format_args!("-d {net} -j RETURN"));
    }
    if let Some(port) = streams {
        for (low, high) in ranges(plan.stream_ports.iter().copied()) {
            let stream = tcp("dport", low, high);
            table.rule(
                REDIRECT,
                format_args!("{stream} -j REDIRECT --to-ports {port}"),
            );
        }
    }
    for to in listed(plan, family) {
        table.rule(REDIRECT, to + " -j RETURN");
    }
    table.rule(REDIRECT, owned(0) + " -j RETURN");
    for protocol in [6, 17] {
        table.rule(REDIRECT, redirect(protocol, CLOSED));
    }
    table.enter("OUTPUT", format_args!("-j {REDIRECT}"));
    table.commit()
}

/// `tcpmux`, where nobody listens; a guest that does talks to itself.
const CLOSED: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::firewall::plan::tests::plan;

    fn scripts(list: &str) -> [String; 2] {
        Family::BOTH.map(|family| script(&plan(list, &[]), family))
    }

    /// Where each part is; they must all be there.
    fn places<'a>(text: &str, parts: impl IntoIterator<Item = &'a str>) -> Vec<usize> {
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}\n{text}"));
        parts.into_iter().map(at).collect()
    }

    #[test]
    fn nothing_is_used_that_such_a_kernel_does_not_have() {
        for text in scripts("example.com, 203.0.113.0/24:22, a.example:22") {
            for word in [
                " -g ",
                "REJECT",
                "NFLOG",
                "conntrack",
                "multiport",
                "FORWARD",
                "mangle",
                "-m time",
            ] {
                assert!(!text.contains(word), "{word}\n{text}");
            }
        }
    }

    #[test]
    fn what_is_not_accepted_is_dropped_and_answered_by_a_closed_port() {
        for text in scripts("example.com") {
            let order = [
                ":OUTPUT DROP",
                "-A sandbox_proxy -j DROP\n",
                "-A sandbox_output -j DROP\n",
                "-A sandbox_redirect -p 6 -m tcp --dport 443 -j REDIRECT --to-ports 4000",
                "-A sandbox_redirect -m owner --uid-owner 0 -j RETURN\n",
                "-A sandbox_redirect -p 6 -j REDIRECT --to-ports 1\n",
                "-A sandbox_redirect -p 17 -j REDIRECT --to-ports 1\n",
            ];
            assert!(places(&text, order).is_sorted(), "{text}");
        }
    }

    #[test]
    fn whoever_asks_for_a_name_asks_the_proxy_but_for_root_and_the_proxy() {
        let [text, _] = scripts("example.com");
        let order = [
            "-A sandbox_redirect -m owner --uid-owner 990 -j RETURN\n",
            "--dport 53 -m owner ! --uid-owner 0 -j REDIRECT --to-ports 40014\n",
            "--dport 53 -m owner ! --uid-owner 0 -j REDIRECT --to-ports 40024\n",
            "-A sandbox_redirect -d 127.0.0.0/8 -j RETURN\n",
        ];
        assert!(places(&text, order).is_sorted(), "{text}");
    }

    #[test]
    fn what_is_sent_to_oneself_is_accepted_but_not_what_is_sent_to_neighbours() {
        for (text, own) in scripts("example.com").iter().zip(["172.17.0.2", "fd00::2"]) {
            let order = [
                &*format!("-A sandbox_output -d {own} -j ACCEPT\n"),
                "-A sandbox_output -m owner --uid-owner 990 -j sandbox_proxy\n",
            ];
            assert!(places(text, order).is_sorted(), "{text}");
        }
    }

    #[test]
    fn nobody_but_root_answers_for_a_resolver() {
        for text in scripts("example.com") {
            let order = [
                "-A sandbox_output -p 17 -m udp --sport 53 -m owner --uid-owner 990 -j sandbox_proxy\n",
                "-A sandbox_output -p 17 -m udp --sport 53 -m owner ! --uid-owner 0 -j DROP\n",
                "-A sandbox_output -o lo -j ACCEPT\n",
            ];
            assert!(places(&text, order).is_sorted(), "{text}");
        }
    }

    #[test]
    fn what_the_list_names_by_address_is_accepted_and_not_answered_for() {
        let [text, _] = scripts("example.com, 203.0.113.0/24:22");
        let order = [
            "-A sandbox_output -d 203.0.113.0/24 -p 6 -m tcp --dport 22 -j ACCEPT\n",
            "-A sandbox_redirect -d 203.0.113.0/24 -p 6 -m tcp --dport 22 -j RETURN\n",
            "-A sandbox_redirect -p 6 -j REDIRECT --to-ports 1\n",
        ];
        assert!(places(&text, order).is_sorted(), "{text}");
    }

    #[test]
    fn the_proxy_dials_what_is_lifted_before_what_is_guarded_is_dropped() {
        let [text, _] = scripts("a.example@10.1.0.0/16");
        let order = [
            "-A sandbox_proxy -d 10.0.0.53 -p 17 -m udp --dport 53 -j ACCEPT\n",
            "-A sandbox_proxy -d 10.1.0.0/16 -p 6 -j ACCEPT\n",
            "-A sandbox_proxy -d 10.0.0.0/8 -j DROP\n",
            "-A sandbox_proxy -p 6 -j ACCEPT\n",
        ];
        assert!(places(&text, order).is_sorted(), "{text}");
    }

    #[test]
    fn rules_that_follow_another_list_are_led_to_already() {
        let plan = plan("example.com", &[]);
        let (launched, followed) = (script(&plan, Family::V4), following(&plan, Family::V4));
        assert_eq!(launched.lines().count(), followed.lines().count() + 2);
        assert!(
            !followed.contains("-I ") && followed.ends_with("COMMIT\n"),
            "{followed}"
        );
    }

    #[test]
    fn the_proxy_is_told_at_once_that_it_has_no_ipv6() {
        let [_, text] = scripts("example.com");
        let order = [
            "-A sandbox_proxy -j DROP\n",
            "-A sandbox_redirect -m owner --uid-owner 990 -p 6 -j REDIRECT --to-ports 1\n",
            "-A sandbox_redirect -m owner --uid-owner 990 -j RETURN\n",
        ];
        assert!(places(&text, order).is_sorted(), "{text}");
        assert!(!text.contains("-A sandbox_proxy -p"), "{text}");
    }

    #[test]
    fn a_usual_list_fits_into_what_such_a_kernel_takes_at_once() {
        // 8 KiB, of which an entry of IPv6 with a match takes some 256 bytes.
        for text in scripts("example.com, *.example.org, a.example:22") {
            let (filter, _) = text.split_once("COMMIT").unwrap();
            assert!(filter.lines().count() <= 40, "{filter}");
        }
    }
}
