//! The ruleset where addresses decide alone: what names of the list resolved to, on their ports.
//!
//! There is no proxy to bring anything to, and so no nat of ours. The guest asks the container's own
//! resolvers, which is a way out for whatever fits into a name; nobody else may be asked.

use std::net::IpAddr;

use nftables::expr::MetaKey;
use policy::PortRange;

use super::{
    flows::accept_flow,
    incoming,
    openings::{self, SETS},
    outgoing,
    ruleset::LIFTED,
    terms::{
        address, any_of, daddr, dport, endpoint, family, field, is, jump, leave, meta, number,
    },
    transaction::{OUTPUT, QUESTIONS, RANGES, Ruleset, Transaction},
};
use crate::firewall::plan::{AddressPlan, guarded_of};

impl AddressPlan {
    /// The whole ruleset as one transaction, which replaces an earlier one of ours and touches
    /// nothing else.
    pub(crate) fn ruleset(&self) -> Ruleset {
        let mut rules = Transaction::new();
        rules.questions();
        rules.set("guarded", &self.guarded);
        rules.set(LIFTED, &guarded_of(&self.lifted, &self.guarded));
        rules.endpoints(SETS);
        for &ports in self.wide() {
            rules.addresses(&openings::wide_set(ports));
        }
        outgoing::claim_flows(QUESTIONS, &self.here, None, &mut rules);
        self.judge_questions(&mut rules);
        self.judge_output(&mut rules);
        self.judge_listed(&mut rules);
        incoming::judge(&self.ingress, &self.here, &mut rules);
        outgoing::close(&mut rules);
        rules.into_ruleset()
    }

    /// Ranges of ports that have sets of their own.
    pub(super) fn wide(&self) -> impl Iterator<Item = &PortRange> {
        self.ports.iter().filter(|ports| openings::is_wide(**ports))
    }

    /// Whom a question may be aimed at, before an engine's resolver takes it to another port: one
    /// that listens on loopback passes on what it is asked.
    fn judge_questions(&self, rules: &mut Transaction) {
        for proto in ["udp", "tcp"] {
            let asked = || is(dport(proto), number(53_u16));
            let root = is(meta(MetaKey::Skuid), outgoing::roots(&self.here));
            rules.rule(QUESTIONS, [asked(), root, leave()]);
            for (family, resolvers) in self.resolvers() {
                let to = is(field(family, "daddr"), any_of(resolvers.map(address)));
                rules.rule(QUESTIONS, [asked(), to, leave()]);
            }
            rules.rule(
                QUESTIONS,
                [vec![asked()], outgoing::refuse().into()].concat(),
            );
        }
    }

    fn judge_output(&self, rules: &mut Transaction) {
        outgoing::refuse_forged_answers(&self.here, None, rules);
        outgoing::close_back_doors_but_the_port(&self.here, rules);
        outgoing::accept_inside(rules);
        outgoing::accept_roots_dns(&self.here, rules);
        for &resolver in &self.here.resolvers {
            for proto in ["udp", "tcp"] {
                let to = is(daddr(resolver), address(resolver));
                let asks = vec![to, is(dport(proto), number(53_u16))];
                rules.rule(OUTPUT, [asks, accept_flow().into()].concat());
            }
        }
        rules.rule(OUTPUT, [jump(RANGES)]);
        outgoing::refuse_the_rest(rules);
    }

    /// All that hangs on the list, which another takes the place of.
    pub(super) fn judge_listed(&self, rules: &mut Transaction) {
        outgoing::on_ranges(RANGES, &self.denied, || outgoing::refuse().into(), rules);
        outgoing::accept_opened(RANGES, SETS, endpoint, rules);
        for &ports in self.wide() {
            let set = openings::wide_set(ports);
            let address = |family| field(family, "daddr");
            let on = (ports.low(), ports.high());
            outgoing::accept_opened_on(RANGES, &set, address, Some(on), rules);
        }
        outgoing::on_ranges(RANGES, &self.ranges, || accept_flow().into(), rules);
    }

    /// The resolvers of either family, where there are any.
    fn resolvers(&self) -> impl Iterator<Item = (&'static str, impl Iterator<Item = IpAddr> + '_)> {
        let of = |wanted| {
            let all = self.here.resolvers.iter().copied();
            all.filter(move |resolver| family(*resolver) == wanted)
        };
        ["ip", "ip6"]
            .into_iter()
            .map(move |family| (family, of(family)))
            .filter(move |(family, _)| of(family).next().is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        process::{Command, Stdio},
    };

    use policy::Policy;
    use report::Ipv6;

    use super::{super::change::Standing, *};
    use crate::surroundings::Surroundings;

    fn plan(list: &str, resolvers: &[&str]) -> AddressPlan {
        let policy = Policy::parse(list).unwrap();
        let rules = policy.name_rules();
        AddressPlan {
            ports: rules.iter().flat_map(policy::NameRule::ports).collect(),
            ranges: policy.address_rules(),
            denied: policy.denied_addresses(),
            lifted: policy.lifted_ranges(),
            guarded: policy::guarded_ranges(),
            ingress: Vec::new(),
            here: Surroundings {
                own: vec!["172.17.0.2/16".parse().unwrap()],
                gateways: vec!["172.17.0.1".parse().unwrap()],
                resolvers: resolvers.iter().map(|text| text.parse().unwrap()).collect(),
                ipv6: Ipv6::Routed,
                remapped: false,
            },
        }
    }

    /// What nft makes of the ruleset, in a network namespace of its own.
    fn loaded(plan: &AddressPlan) -> String {
        in_a_namespace(&[plan.ruleset()])
    }

    fn in_a_namespace(transactions: &[Ruleset]) -> String {
        let json = transactions
            .iter()
            .map(|one| serde_json::to_string(&one.rules).unwrap());
        let json = json.collect::<Vec<_>>().join("\n") + "\n";
        let script = "while read -r transaction; do
                          printf %s \"$transaction\" | nft -j -f - || exit 1
                      done
                      nft list table inet sandbox_egress";
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this test needs root, unshare and nft");
        let mut input = child.stdin.take().unwrap();
        input.write_all(json.as_bytes()).unwrap();
        drop(input);
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}\n{json}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn chain<'a>(text: &'a str, name: &str) -> &'a str {
        let (_, rest) = text.split_once(&format!("chain {name} {{")).unwrap();
        rest.split_once("\n\t}").unwrap().0
    }

    #[test]
    fn nothing_is_redirected_and_all_chains_that_judge_drop_by_default() {
        let text = loaded(&plan("example.com", &["10.0.0.53"]));
        assert!(
            !text.contains("redirect") && !text.contains("type nat"),
            "{text}"
        );
        for hook in ["output", "input", "forward"] {
            let policy = format!("type filter hook {hook} priority filter; policy drop;");
            assert!(text.contains(&policy), "{policy}\n{text}");
        }
    }

    #[test]
    fn a_question_goes_to_the_configured_resolvers_and_to_nobody_else_also_on_loopback() {
        let text = loaded(&plan(
            "example.com",
            &["127.0.0.11", "10.0.0.53", "fd00::53"],
        ));
        let questions = chain(&text, "questions");
        assert!(questions.contains("hook output priority -110"), "{text}");
        for proto in ["udp", "tcp"] {
            let to = format!("{proto} dport 53 ip daddr {{ 10.0.0.53, 127.0.0.11 }} return");
            let at = |line: &str| {
                questions
                    .find(line)
                    .unwrap_or_else(|| panic!("{line}\n{text}"))
            };
            let refused = format!("{proto} dport 53 counter name \"denied_packets\" log");
            assert!(at(&to) < at(&refused), "{text}");
        }
        assert!(questions.contains("ip6 daddr fd00::53 return"), "{text}");
        let output = chain(&text, "output");
        assert!(
            output.contains("ip daddr 10.0.0.53 udp dport 53 ct mark set 0x5e99e551 accept"),
            "{text}"
        );
        assert!(!output.contains("\n\t\tudp dport 53 "), "{text}");
    }

    #[test]
    fn without_a_resolver_no_question_leaves_but_root_s() {
        let text = loaded(&plan("example.com", &[]));
        let left = chain(&text, "questions").matches("return").count();
        assert_eq!(left, 2, "{text}");
    }

    #[test]
    fn a_wide_range_has_sets_of_its_own_and_the_guard_before_them() {
        let text = loaded(&plan("a.example:8000-9000, b.example:22", &["10.0.0.53"]));
        for line in [
            "ip daddr != @guarded4 tcp dport 8000-9000 ip daddr @ports_8000_9000_4 ct mark set 0x5e99e551 accept",
            "ip6 daddr @lifted6 tcp dport 8000-9000 ip6 daddr @ports_8000_9000_6 ct mark set 0x5e99e551 accept",
            "ip daddr != @guarded4 ip daddr . tcp dport @allow4 ct mark set 0x5e99e551 accept",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("ports_22"), "{text}");
    }

    /// Lines of the listing, without the time that elements have left.
    fn lasting(text: &str) -> Vec<String> {
        let lines = text.lines().map(|line| match line.split_once(" expires ") {
            Some((lasting, _)) => lasting.trim(),
            None => line.trim(),
        });
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn rules_that_follow_another_list_are_those_of_a_launch_with_it() {
        let lists = [
            "a.example:8000-9000, b.example:22, 10.0.0.0/8:5432, c.example@192.168.0.0/16",
            "a.example:8000-9000, d.example:1-1023, !203.0.114.7:22, [2001:db8::/32]:22",
            "!a.example",
        ];
        for first in lists {
            for next in lists {
                let (launched, other) = (plan(first, &["10.0.0.53"]), plan(next, &["10.0.0.53"]));
                let changed = in_a_namespace(&[
                    launched.ruleset(),
                    other.exchange(&launched, &[], &Standing::default()),
                ]);
                let sorted = |text: &str| {
                    // A set that is new stands behind those that were there.
                    let (mut lines, all) = (Vec::new(), lasting(text));
                    lines.extend(all.split(|line| line == "}").map(<[_]>::to_vec));
                    lines.sort();
                    lines
                };
                assert_eq!(
                    sorted(&changed),
                    sorted(&loaded(&other)),
                    "{first} -> {next}"
                );
            }
        }
    }

    #[test]
    fn what_another_list_holds_is_open_in_the_same_transaction_and_nothing_else_is() {
        let held = |net: &str, low, high| {
            let ports = PortRange::new(low, high).unwrap();
            let net = net.parse().unwrap();
            (policy::AddressRule { net, ports }, 100)
        };
        let before = plan("a.example:8000-9000, b.example:22", &["10.0.0.53"]);
        let after = plan("a.example:8000-9000, c.example:1-1023", &["10.0.0.53"]);
        let text = in_a_namespace(&[
            before.ruleset(),
            before.exchange(
                &before,
                &[
                    held("203.0.114.7/32", 8000, 9000),
                    held("203.0.114.8/32", 22, 22),
                ],
                &Standing::default(),
            ),
            after.exchange(
                &before,
                &[
                    held("203.0.114.9/32", 8000, 9000),
                    held("2001:db8::9/128", 1, 1023),
                    held("203.0.114.9/32", 22, 23),
                ],
                &Standing::default(),
            ),
        ]);
        let set = |name: &str| {
            let (_, rest) = text.split_once(&format!("set {name} {{")).unwrap();
            rest.split_once("\n\t}").unwrap().0
        };
        assert!(
            set("ports_8000_9000_4").contains("203.0.114.9 timeout 1m40s"),
            "{text}"
        );
        assert!(
            set("ports_1_1023_6").contains("2001:db8::9 timeout 1m40s"),
            "{text}"
        );
        for port in ["22", "23"] {
            let element = format!("203.0.114.9 . {port} timeout 1m40s");
            assert!(set("allow4").contains(&element), "{text}");
        }
        assert!(
            !text.contains("203.0.114.7") && !text.contains("203.0.114.8"),
            "{text}"
        );
    }

    #[test]
    fn an_engine_s_resolver_is_asked_at_its_port_and_at_no_other() {
        for resolvers in [&["127.0.0.11"][..], &["10.0.0.53"]] {
            let text = loaded(&plan("example.com", resolvers));
            let output = chain(&text, "output");
            let at = |line: &str| {
                output
                    .find(line)
                    .unwrap_or_else(|| panic!("{line}\n{text}"))
            };
            let refused = at("ip daddr 127.0.0.11 meta skuid != 0 counter name \"denied_packets\"");
            assert!(refused < at("oifname \"lo\" accept"), "{text}");
            for line in [
                "ip daddr 127.0.0.11 ct status dnat accept",
                "ip daddr 127.0.0.11 udp dport 53 accept",
                "ip daddr 127.0.0.11 tcp dport 53 accept",
            ] {
                assert!(at(line) < refused, "{line}\n{text}");
            }
        }
    }

    #[test]
    fn a_deny_by_address_comes_before_whatever_opens_it() {
        let text = loaded(&plan("a.example:*, !203.0.114.7:22", &["10.0.0.53"]));
        let output = chain(&text, "ranges");
        let at = |line: &str| {
            output
                .find(line)
                .unwrap_or_else(|| panic!("{line}\n{text}"))
        };
        let denied = at("tcp dport 22 counter name \"denied_packets\" log prefix \"packet\"");
        assert!(denied < at("@allow4"), "{text}");
        assert!(denied < at("@ports_"), "{text}");
    }

    #[test]
    fn nobody_but_root_answers_from_port_53() {
        let text = loaded(&plan("example.com", &["127.0.0.11"]));
        let output = chain(&text, "output");
        let refused = output.find("udp sport 53 meta skuid != 0 counter").unwrap();
        assert!(
            refused < output.find("oifname \"lo\" accept").unwrap(),
            "{text}"
        );
    }

    #[test]
    fn quic_is_counted_apart() {
        let text = loaded(&plan("example.com", &["10.0.0.53"]));
        assert!(
            text.contains("udp dport 443 counter name \"denied_quic\""),
            "{text}"
        );
    }
}
