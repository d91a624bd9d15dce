//! The ruleset as a value: what leaves the container, and what enters it.
//!
//! Pure, so that it can be read, digested and tested without a kernel. One `inet` table, so that no
//! rule can cover IPv4 and forget IPv6; both chains that judge end in a refusal, and their policy
//! is drop in case that a rule before is wrong.

use nftables::expr::MetaKey;

use super::{
    DENIED_PACKETS,
    flows::{accept_flow, accept_ours},
    incoming,
    openings::SETS,
    outgoing,
    terms::{
        TCP, address, any_of, count, daddr, dport, endpoint, field, goto, is, is_not, jump, leave,
        log, meta, network, number, protocol, redirect, word,
    },
    transaction::{NAT_OUTPUT, OUTPUT, PROXY, RANGES, REFUSE, Ruleset, STREAMS, Transaction},
};
use crate::firewall::plan::{LOOPBACK, Plan};

impl Plan {
    /// The whole ruleset as one transaction, which replaces an earlier one of ours and touches
    /// nothing else: the engine's embedded resolver lives in tables of its own.
    pub(crate) fn ruleset(&self) -> Ruleset {
        let mut rules = Transaction::new();
        self.add_sets(&mut rules);
        // nat output sees the first packet of a flow.
        outgoing::claim_flows(NAT_OUTPUT, &self.here, Some(self.proxy_uid), &mut rules);
        outgoing::close_back_doors(&self.here, self.proxy_uid, &mut rules);
        self.redirect_dns(&mut rules);
        redirect_named_streams(&mut rules);
        self.redirect_streams(&mut rules);
        self.judge_output(&mut rules);
        self.judge_proxy(&mut rules);
        incoming::judge(&self.ingress, &self.here, &mut rules);
        outgoing::close(&mut rules);
        rules.into_ruleset()
    }

    fn add_sets(&self, rules: &mut Transaction) {
        rules.redirects();
        rules.set("guarded", &self.guarded);
        rules.set(LIFTED, &self.lifted_and_guarded());
        rules.endpoints(SETS);
    }

    /// nat output: the proxy's own goes where it likes, and whoever else asks for a name asks the
    /// proxy, whatever address the question is aimed at: a resolver on loopback, the engine's for
    /// one, would pass it on. But for root: the engine's resolver asks others from in here.
    fn redirect_dns(&self, rules: &mut Transaction) {
        rules.rule(
            NAT_OUTPUT,
            [is(meta(MetaKey::Skuid), number(self.proxy_uid)), leave()],
        );
        for (proto, ports) in [("ipv4", Some(self.dns4)), ("ipv6", self.dns6)] {
            for (transport, port) in ports
                .into_iter()
                .flat_map(|ports| [("udp", ports.udp), ("tcp", ports.tcp)])
            {
                rules.rule(
                    NAT_OUTPUT,
                    [
                        is(meta(MetaKey::Nfproto), word(proto)),
                        is_not(meta(MetaKey::Skuid), outgoing::roots(&self.here)),
                        is(dport(transport), number(53_u16)),
                        redirect(port),
                    ],
                );
            }
        }
    }

    /// Who does not know of the proxy is brought to it. Everything of the guest's user is, whatever
    /// the address: the name decides.
    pub(super) fn redirect_streams(&self, rules: &mut Transaction) {
        let streams = || any_of(self.stream_ports.iter().map(|&port| number(port)));
        for (proto, port) in [("ipv4", Some(self.redirect4)), ("ipv6", self.redirect6)] {
            if let Some(port) = port {
                let family = is(meta(MetaKey::Nfproto), word(proto));
                rules.rule(
                    STREAMS,
                    [family, is(dport("tcp"), streams()), redirect(port)],
                );
            }
        }
    }

    fn judge_output(&self, rules: &mut Transaction) {
        let here = &self.here;
        outgoing::refuse_forged_answers(here, Some(self.proxy_uid), rules);
        outgoing::accept_inside(rules);
        rules.rule(
            OUTPUT,
            [
                is(meta(MetaKey::Skuid), number(self.proxy_uid)),
                goto(PROXY),
            ],
        );
        outgoing::accept_roots_dns(here, rules);
        outgoing::accept_opened(OUTPUT, SETS, endpoint, rules);
        rules.rule(OUTPUT, [jump(RANGES)]);
        self.accept_ranges(rules);
        outgoing::refuse_the_rest(rules);
    }

    /// What the list names by address.
    pub(super) fn accept_ranges(&self, rules: &mut Transaction) {
        outgoing::on_ranges(RANGES, &self.ranges, || accept_flow().into(), rules);
    }

    /// The address guard again, in the kernel: a mistake in the proxy must not become a hole.
    fn judge_proxy(&self, rules: &mut Transaction) {
        for &resolver in &self.here.resolvers {
            for proto in ["udp", "tcp"] {
                let to = is(daddr(resolver), address(resolver));
                let asks = vec![to, is(dport(proto), number(53_u16))];
                rules.rule(PROXY, [asks, accept_ours().into()].concat());
            }
        }
        if let Some(port) = self.upstream_port {
            let upstream = vec![is(dport("tcp"), number(port))];
            rules.rule(PROXY, [upstream, accept_ours().into()].concat());
        }
        for (family, suffix) in [("ip", "4"), ("ip6", "6")] {
            let to = |set| is(field(family, "daddr"), word(format!("@{set}{suffix}")));
            let lifted = vec![to(LIFTED), is(meta(MetaKey::L4proto), protocol(TCP))];
            rules.rule(PROXY, [lifted, accept_ours().into()].concat());
            rules.rule(
                PROXY,
                [
                    to("guarded"),
                    count(DENIED_PACKETS),
                    log("packet"),
                    goto(REFUSE),
                ],
            );
        }
        let dials = vec![is(meta(MetaKey::L4proto), protocol(TCP))];
        rules.rule(PROXY, [dials, accept_ours().into()].concat());
        rules.rule(PROXY, [count(DENIED_PACKETS), log("packet"), goto(REFUSE)]);
    }
}

/// nat output: what goes to loopback stays there, and streams that carry a name go to the proxy.
fn redirect_named_streams(rules: &mut Transaction) {
    for loopback in LOOPBACK {
        rules.rule(
            NAT_OUTPUT,
            [is(daddr(loopback.addr()), network(loopback)), leave()],
        );
    }
    rules.rule(NAT_OUTPUT, [goto(STREAMS)]);
}

/// The name of the sets of ranges where the guard is lifted, less the number of their family.
pub(super) const LIFTED: &str = "lifted";

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        process::{Command, Stdio},
    };

    use super::{super::change::Standing, *};
    use crate::firewall::{opened::Kept, plan::tests::plan};

    /// Loads the ruleset into a network namespace of its own, without the files that a small image
    /// does not have, and returns what nft makes of it.
    fn loaded(plan: &Plan) -> String {
        in_a_namespace(&[serde_json::to_string(&plan.ruleset().rules).unwrap()])
    }

    fn in_a_namespace(transactions: &[String]) -> String {
        let json = transactions.join("\n");
        let script = "for file in /etc/protocols /etc/services; do
                          test ! -e $file || mount --bind /dev/null $file
                      done
                      while read -r transaction; do
                          printf %s \"$transaction\" | nft -j -f - || exit 1
                      done
                      nft list table inet sandbox_egress";
        let mut child = Command::new("unshare")
            .args(["--net", "--mount", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this test needs root, unshare and nft");
        child
            .stdin
            .take()
            .unwrap()
            .write_all(format!("{json}\n").as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}\n{json}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn the_kernel_takes_it_and_all_chains_that_judge_drop_by_default() {
        let text = loaded(&plan("example.com", &[]));
        for line in [
            "type filter hook output priority filter; policy drop;",
            "type filter hook input priority filter; policy drop;",
            "type filter hook forward priority filter; policy drop;",
            "type nat hook output priority -110; policy accept;",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn loopback_is_where_it_says_whatever_interface_a_socket_chose() {
        let text = loaded(&plan("example.com", &[]));
        for line in [
            r#"oifname != "lo" ip daddr 127.0.0.0/8 counter name "denied_packets""#,
            r#"oifname != "lo" ip6 daddr ::1 counter name "denied_packets""#,
            "ip daddr 127.0.0.0/8 ct status dnat accept",
            "ip6 daddr ::1 ct status dnat accept",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("daddr 127.0.0.0/8 accept"), "{text}");
    }

    #[test]
    fn nothing_is_passed_on() {
        let text = loaded(&plan("example.com:22, 203.0.113.0/24", &["tcp:8000"]));
        let (_, forward) = text.split_once("chain forward {").unwrap();
        let (forward, _) = forward.split_once('}').unwrap();
        assert!(forward.contains("denied_packets"), "{forward}");
        assert!(!forward.contains("accept"), "{forward}");
    }

    #[test]
    fn named_streams_are_redirected_in_both_families() {
        let text = loaded(&plan(
            "example.com, example.com:8443/tls, example.com:22",
            &[],
        ));
        assert!(
            text.contains("meta nfproto ipv4 tcp dport { 80, 443, 8443 } redirect to :40004"),
            "{text}"
        );
        assert!(
            text.contains("meta nfproto ipv6 tcp dport { 80, 443, 8443 } redirect to :40006"),
            "{text}"
        );
    }

    #[test]
    fn whoever_asks_for_a_name_asks_the_proxy_wherever_the_question_is_aimed() {
        let text = loaded(&plan("example.com", &[]));
        let at = |line: &str| text.find(line).unwrap_or_else(|| panic!("{line}\n{text}"));
        let proxy = at("skuid 990 return");
        let loopback = at("daddr 127.0.0.0/8 return");
        for line in [
            "meta nfproto ipv4 meta skuid != { 0, 65534 } udp dport 53 redirect to :40014",
            "meta nfproto ipv4 meta skuid != { 0, 65534 } tcp dport 53 redirect to :40024",
            "meta nfproto ipv6 meta skuid != { 0, 65534 } udp dport 53 redirect to :40016",
            "meta nfproto ipv6 meta skuid != { 0, 65534 } tcp dport 53 redirect to :40026",
        ] {
            assert!((proxy..loopback).contains(&at(line)), "{line}\n{text}");
        }
    }

    #[test]
    fn only_root_and_the_proxy_send_questions_out() {
        let text = loaded(&plan("example.com", &[]));
        let (_, output) = text.split_once("chain output {").unwrap();
        let (output, _) = output.split_once('}').unwrap();
        let asks = |line: &&str| line.contains("dport 53") && line.ends_with("accept");
        let accepted: Vec<_> = text.lines().map(str::trim).filter(asks).collect();
        assert_eq!(accepted.len(), 6, "{accepted:#?}");
        for line in accepted {
            let ours = "dport 53 ct mark set 0x5e99e550 accept";
            assert!(line.ends_with(ours), "{line}");
        }
        assert!(!output.contains("10.0.0.53"), "{output}");
    }

    #[test]
    fn only_root_and_the_proxy_answer_from_port_53_also_on_loopback() {
        let text = loaded(&plan("example.com", &[]));
        let refused =
            "udp sport 53 meta skuid != { 0, 990, 65534 } counter name \"denied_packets\"";
        let at = |line: &str| text.find(line).unwrap_or_else(|| panic!("{line}\n{text}"));
        assert!(at(refused) < at("oifname \"lo\" accept"), "{text}");
    }

    #[test]
    fn a_flow_that_one_of_us_has_opened_is_gone_on_with_by_nobody_else() {
        let text = loaded(&plan("example.com", &[]));
        let at = |line: &str| text.find(line).unwrap_or_else(|| panic!("{line}\n{text}"));
        let claim = "meta skuid { 0, 990, 65534 } ct direction original ct mark set 0x5e99e550";
        assert!(at(claim) < at("skuid 990 return"), "{text}");
        let refused = "ct mark 0x5e99e550 ct direction original meta skuid != { 0, 990, 65534 } counter name \"denied_packets\"";
        let (_, output) = text.split_once("chain output {").unwrap();
        let first = output.lines().nth(2).unwrap().trim();
        assert!(first.starts_with(refused), "{first}");
    }

    #[test]
    fn an_engine_s_resolver_is_reached_by_the_proxy_and_root_alone() {
        let mut plan = plan("example.com", &[]);
        for (resolvers, refused) in [
            (&["10.0.0.53"][..], &["127.0.0.11"][..]),
            (&["127.0.0.11", "127.0.0.1", "::1"], &["127.0.0.11"]),
            (&["127.0.0.53"], &["127.0.0.11", "127.0.0.53"]),
        ] {
            plan.here.resolvers = resolvers.iter().map(|text| text.parse().unwrap()).collect();
            let text = loaded(&plan);
            let (before, _) = text.split_once("oifname \"lo\" accept").unwrap();
            let (_, output) = before.split_once("chain output {").unwrap();
            let others = "meta skuid != { 0, 990, 65534 } counter name \"denied_packets\"";
            let found: Vec<_> = output
                .lines()
                .filter_map(|line| line.trim().strip_prefix("ip daddr "))
                .filter(|rule| rule.contains(others))
                .map(|rule| rule.split(' ').next().unwrap())
                .collect();
            assert_eq!(found, refused, "{text}");
        }
    }

    #[test]
    fn what_was_opened_is_accepted_unless_it_is_guarded() {
        let text = loaded(&plan("example.com", &[]));
        for line in [
            "ip daddr @lifted4 ip daddr . tcp dport @allow4 ct mark set 0x5e99e551 accept",
            "ip daddr != @guarded4 ip daddr . tcp dport @allow4 ct mark set 0x5e99e551 accept",
            "ip6 daddr @lifted6 ip6 daddr . tcp dport @allow6 ct mark set 0x5e99e551 accept",
            "ip6 daddr != @guarded6 ip6 daddr . tcp dport @allow6 ct mark set 0x5e99e551 accept",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn only_what_an_address_entry_names_is_accepted_by_address() {
        let text = loaded(&plan(
            "example.com, 10.0.0.0/8:5432, 10.1.0.0/16:5432, [2001:db8:1::/48]:22",
            &[],
        ));
        assert!(
            text.contains("ip daddr { 10.0.0.0/8 } tcp dport 5432 ct mark set 0x5e99e551 accept")
                || text
                    .contains("ip daddr 10.0.0.0/8 tcp dport 5432 ct mark set 0x5e99e551 accept"),
            "{text}"
        );
        assert!(
            text.contains("2001:db8:1::/48 } tcp dport 22 ct mark set 0x5e99e551 accept")
                || text.contains("2001:db8:1::/48 tcp dport 22 ct mark set 0x5e99e551 accept"),
            "{text}"
        );
    }

    #[test]
    fn what_is_published_is_closed_to_the_neighbours_but_not_to_the_gateway() {
        let text = loaded(&plan("example.com", &["tcp:8080", "udp:6000-6010"]));
        assert!(
            text.contains("ip saddr 172.17.0.1 tcp dport 8080 ct mark set 0x5e99e551 accept"),
            "{text}"
        );
        assert!(
            text.contains("udp dport 6000-6010 ct mark set 0x5e99e551 accept"),
            "{text}"
        );
        assert!(!text.contains("\n\t\ttcp dport 8080 "), "{text}");
    }

    #[test]
    fn every_refusal_is_counted_logged_and_answered() {
        let text = loaded(&plan("example.com", &[]));
        for (counter, prefix) in [
            ("denied_packets", "packet"),
            ("denied_quic", "quic"),
            ("denied_ingress", "ingress"),
        ] {
            let rule = format!("counter name \"{counter}\" log prefix \"{prefix}\" group 4100");
            assert!(text.contains(&rule), "{rule}\n{text}");
        }
        assert!(
            text.contains("reject with tcp reset")
                && text.contains("reject with icmpx admin-prohibited")
        );
    }

    #[test]
    fn a_second_load_replaces_the_first() {
        let json = serde_json::to_string(&plan("example.com", &[]).ruleset().rules).unwrap();
        let twice = format!(
            "set -e; for i in 1 2; do printf %s '{json}' | nft -j -f -; done; nft list tables"
        );
        let output = Command::new("unshare")
            .args(["--net", "sh", "-c", &twice])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "table inet sandbox_egress\n"
        );
    }

    #[test]
    fn the_same_plan_is_the_same_transaction() {
        let text = |_| {
            serde_json::to_string(
                &plan("example.com:1-9/tcp, b.example", &["tcp:1"])
                    .ruleset()
                    .rules,
            )
            .unwrap()
        };
        assert_eq!(text(0), text(1));
    }

    /// Lines of the listing, without what was counted and the time that elements have left.
    fn lasting(text: &str) -> Vec<String> {
        let lines = text.lines().map(str::trim);
        let lasting = lines.filter(|line| !line.starts_with("packets "));
        lasting.map(str::to_owned).collect()
    }

    #[test]
    fn rules_that_follow_another_list_are_those_of_a_launch_with_it() {
        let (first, next) = (
            "example.com, example.com:8443/tls, 10.0.0.0/8:5432, a.example@192.168.0.0/16",
            "b.example:9443/tls, [2001:db8::/32]:22, 10.1.0.0/16:5432, c.example@172.16.0.0/12",
        );
        for (first, next) in [(first, next), (next, first), (first, "!example.com")] {
            let (launched, other) = (plan(first, &["tcp:1"]), plan(next, &["tcp:1"]));
            let text = |ruleset: Ruleset| serde_json::to_string(&ruleset.rules).unwrap();
            let changed = [
                text(launched.ruleset()),
                text(other.exchange(&[], &Standing::default())),
            ];
            assert_eq!(
                lasting(&in_a_namespace(&changed)),
                lasting(&loaded(&other)),
                "{next}"
            );
        }
    }

    #[test]
    fn what_stays_open_under_another_list_keeps_its_time_and_what_was_counted_stays() {
        let opened = |to: &str| Kept {
            to: to.parse().unwrap(),
            seconds: 100,
        };
        let text = |ruleset: Ruleset| serde_json::to_string(&ruleset.rules).unwrap();
        let (launched, other) = (plan("a.example:22", &[]), plan("b.example:22", &[]));
        let both = [opened("203.0.113.1:22"), opened("[2001:db8::1]:22")];
        let listing = in_a_namespace(&[
            text(launched.ruleset()),
            text(launched.exchange(&both, &Standing::default())),
            text(other.exchange(&both[1..], &Standing::default())),
        ]);
        assert!(!listing.contains("203.0.113.1"), "{listing}");
        assert!(
            listing.contains("2001:db8::1 . 22 timeout 1m40s"),
            "{listing}"
        );
        assert!(!text(other.exchange(&[], &Standing::default())).contains("counter\":{\"family"));
    }
}
