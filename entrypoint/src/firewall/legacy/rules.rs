//! The rules as values: of equal effect with those of nftables, as far as this kernel's `ip_tables`
//! goes.
//!
//! Pure, so that they can be read, digested and tested without a kernel. There is one script a
//! family, made by the same function, so that neither can be forgotten. The order is that of the
//! table of nftables, where the reasons stand.

use policy::AddressRule;

use super::{
    abilities::{Abilities, Ability},
    flows::{CLAIMED, LET_THROUGH, OURS, accept_known, let_through},
    incoming,
    listing::leading_in,
    openings::Openings,
    script::{Family, Table, ranges, tcp, udp},
};
use crate::firewall::{
    LOG_GROUP, LOG_SNAPLEN, LOG_THRESHOLD,
    plan::{LOOPBACK, Plan, resolvers_apart},
};

/// The script of one family, for a kernel with these abilities.
pub(super) fn script(plan: &Plan, family: Family, abilities: &Abilities) -> String {
    again(plan, family, abilities, &Openings::default(), "")
}

/// The same in the place of whatever has become of ours in a listing of the family's tables, with
/// what is open.
pub(super) fn again(
    plan: &Plan,
    family: Family,
    abilities: &Abilities,
    openings: &Openings,
    listing: &str,
) -> String {
    let rules = Rules {
        plan,
        family,
        abilities,
    };
    // Closed first: a script that ends early leaves less open, not more.
    [
        rules.filter(openings, listing),
        rules.leaving(listing),
        rules.nat(listing),
    ]
    .concat()
}

struct Rules<'a> {
    plan: &'a Plan,
    family: Family,
    abilities: &'a Abilities,
}

impl Rules<'_> {
    fn can(&self, ability: Ability) -> bool {
        self.abilities.contains(&ability)
    }

    fn filter(&self, openings: &Openings, listing: &str) -> String {
        let mut table = Table::new("filter", &FILTER_CHAINS);
        table.take_out(&leading_in(listing, "filter"));
        for hook in ["INPUT", "OUTPUT"] {
            table.policy(hook, "DROP");
        }
        self.refuse(&mut table);
        let_through(&mut table);
        self.judge_others(&mut table);
        self.judge_proxy(&mut table);
        self.judge_opened(&mut table);
        self.open(openings, &mut table);
        self.accept_ranges(&mut table);
        self.judge_output(&mut table);
        let Plan { ingress, here, .. } = self.plan;
        incoming::judge(ingress, here, self.family, self.abilities, &mut table);
        if self.can(Ability::Forwarding) {
            // A container is no router.
            table.policy("FORWARD", "DROP");
            table.enter("FORWARD", format_args!("-j {PACKET}"));
        }
        table.enter("INPUT", format_args!("-j {}", incoming::INPUT));
        table.enter("OUTPUT", format_args!("-j {OUTPUT}"));
        table.commit()
    }

    /// What is refused is counted, logged and answered, as far as can be.
    fn refuse(&self, table: &mut Table) {
        for (chain, reason) in REASONS {
            table.count(chain);
            if self.can(Ability::Logging) {
                table.rule(chain, log(reason));
            }
            table.rule(chain, format_args!("-j {REFUSE}"));
        }
        let prohibited = match self.family {
            Family::V4 => "icmp-admin-prohibited",
            Family::V6 => "icmp6-adm-prohibited",
        };
        table.rule(REFUSE, "-p 6 -j REJECT --reject-with tcp-reset");
        table.rule(REFUSE, format_args!("-j REJECT --reject-with {prohibited}"));
        table.rule(REFUSE, "-j DROP");
    }

    /// Where what only the proxy and root may send is refused to others. What the kernel sends for a
    /// socket that is gone is nobody's.
    fn judge_others(&self, table: &mut Table) {
        for uid in self.us() {
            table.rule(OTHERS, owned(uid) + " -j RETURN");
        }
        table.rule(OTHERS, format_args!("-m owner --socket-exists -j {PACKET}"));
    }

    /// The proxy and root: everybody but the guest.
    fn us(&self) -> impl Iterator<Item = u32> {
        self.plan.root_uids().chain([self.plan.proxy_uid])
    }

    fn judge_proxy(&self, table: &mut Table) {
        for resolver in self.family.addresses(&self.plan.here.resolvers) {
            for dns in [udp("dport", 53, 53), tcp("dport", 53, 53)] {
                table.rule(PROXY, format_args!("-d {resolver} {dns} -j {CLAIMED}"));
            }
        }
        if let Some(port) = self.plan.upstream_port {
            let upstream = tcp("dport", port, port);
            table.rule(PROXY, format_args!("{upstream} -j {CLAIMED}"));
        }
        for net in self.family.of(self.plan.lifted.iter().copied()) {
            table.rule(PROXY, format_args!("-d {net} -p 6 -j {CLAIMED}"));
        }
        for net in self.family.of(self.plan.guarded.iter().copied()) {
            table.rule(PROXY, format_args!("-d {net} -j {PACKET}"));
        }
        table.rule(PROXY, format_args!("-p 6 -j {CLAIMED}"));
        table.rule(PROXY, format_args!("-j {PACKET}"));
    }

    /// Where [`OPENED`] leads to: the proxy's word opens what the proxy could dial, no more.
    fn judge_opened(&self, table: &mut Table) {
        for net in self.family.of(self.plan.lifted.iter().copied()) {
            table.rule(GUARDED, format_args!("-d {net} -j {LET_THROUGH}"));
        }
        for net in self.family.of(self.plan.guarded.iter().copied()) {
            table.rule(GUARDED, format_args!("-d {net} -j RETURN"));
        }
        table.rule(GUARDED, format_args!("-j {LET_THROUGH}"));
    }

    fn open(&self, openings: &Openings, table: &mut Table) {
        if self.can(Ability::Expiring) {
            openings.fill(self.family, table);
        }
    }

    fn judge_output(&self, table: &mut Table) {
        // A flow belongs to who opened it, however long the kernel keeps it.
        let onwards = format!("-m connmark --mark {OURS} -m conntrack --ctdir ORIGINAL");
        table.rule(OUTPUT, format_args!("{onwards} -j {OTHERS}"));
        for resolver in resolvers_apart(&self.plan.here) {
            if resolver.is_ipv4() == (self.family == Family::V4) {
                table.rule(OUTPUT, format_args!("-d {resolver} -j {OTHERS}"));
            }
        }
        let answers = udp("sport", 53, 53);
        table.rule(OUTPUT, format_args!("{answers} -j {OTHERS}"));
        table.rule(OUTPUT, "-o lo -j ACCEPT");
        for net in self.family.of(LOOPBACK) {
            // A redirected packet has a loopback destination, but its route was chosen before.
            let redirected = "-m conntrack --ctstate DNAT";
            table.rule(OUTPUT, format_args!("-d {net} {redirected} -j ACCEPT"));
        }
        accept_known(OUTPUT, self.family, table);
        let proxy = owned(self.plan.proxy_uid);
        table.rule(OUTPUT, format_args!("{proxy} -j {PROXY}"));
        for uid in self.plan.root_uids() {
            for dns in [udp("dport", 53, 53), tcp("dport", 53, 53)] {
                let root = owned(uid);
                table.rule(OUTPUT, format_args!("{dns} {root} -j {CLAIMED}"));
            }
        }
        table.rule(OUTPUT, format_args!("-j {OPENED}"));
        table.rule(OUTPUT, format_args!("-j {RANGES}"));
        link_control(OUTPUT, self.family, self.abilities, table);
        let quic = udp("dport", 443, 443);
        table.rule(OUTPUT, format_args!("{quic} -j {QUIC}"));
        table.rule(OUTPUT, format_args!("-j {PACKET}"));
    }

    fn accept_ranges(&self, table: &mut Table) {
        for to in listed(self.plan, self.family) {
            table.rule(RANGES, format_args!("{to} -j {LET_THROUGH}"));
        }
    }

    fn redirect_streams(&self, table: &mut Table) {
        let port = match self.family {
            Family::V4 => Some(self.plan.redirect4),
            Family::V6 => self.plan.redirect6,
        };
        let Some(port) = port else { return };
        for (low, high) in ranges(self.plan.stream_ports.iter().copied()) {
            let stream = tcp("dport", low, high);
            table.rule(
                STREAMS,
                format_args!("{stream} -j REDIRECT --to-ports {port}"),
            );
        }
    }

    /// Loopback's addresses lead out where a socket chose its interface.
    fn leaving(&self, listing: &str) -> String {
        if !self.can(Ability::Leaving) {
            return String::new();
        }
        let mut table = Table::new("mangle", &[LEAVING]);
        table.take_out(&leading_in(listing, "mangle"));
        table.count(LEAVING);
        if self.can(Ability::Logging) {
            table.rule(LEAVING, log("packet"));
        }
        table.rule(LEAVING, "-j DROP");
        for net in self.family.of(LOOPBACK) {
            let outside = format!("! -o lo -d {net} -j {LEAVING}");
            table.enter("POSTROUTING", outside);
        }
        table.commit()
    }

    /// Who asks for a name asks the proxy, and who does not know of it is brought to it.
    fn nat(&self, listing: &str) -> String {
        let mut table = Table::new("nat", &[REDIRECT, NAMES, STREAMS]);
        table.take_out(&leading_in(listing, "nat"));
        for uid in self.us() {
            let us = owned(uid);
            table.rule(REDIRECT, format_args!("{us} -j CONNMARK --set-mark {OURS}"));
        }
        table.rule(REDIRECT, owned(self.plan.proxy_uid) + " -j RETURN");
        let dns = match self.family {
            Family::V4 => Some(self.plan.dns4),
            Family::V6 => self.plan.dns6,
        };
        if let Some(ports) = dns {
            for uid in self.plan.root_uids() {
                table.rule(NAMES, owned(uid) + " -j RETURN");
            }
            for (protocol, question, port) in [
                (17, udp("dport", 53, 53), ports.udp),
                (6, tcp("dport", 53, 53), ports.tcp),
            ] {
                table.rule(REDIRECT, format_args!("{question} -j {NAMES}"));
                table.rule(NAMES, redirect(protocol, port));
            }
        }
        for net in self.family.of(LOOPBACK) {
            table.rule(REDIRECT, format_args!("-d {net} -j RETURN"));
        }
        table.rule(REDIRECT, format_args!("-j {STREAMS}"));
        self.redirect_streams(&mut table);
        table.enter("OUTPUT", format_args!("-j {REDIRECT}"));
        table.commit()
    }
}

/// The script that has the rules of one family follow another list, and nothing else of them
/// change: what was counted stays.
pub(super) fn following(
    plan: &Plan,
    family: Family,
    abilities: &Abilities,
    openings: &Openings,
) -> String {
    let rules = Rules {
        plan,
        family,
        abilities,
    };
    let mut filter = Table::new("filter", &[PROXY, GUARDED, RANGES, OPENED]);
    rules.judge_proxy(&mut filter);
    rules.judge_opened(&mut filter);
    rules.accept_ranges(&mut filter);
    rules.open(openings, &mut filter);
    let mut nat = Table::new("nat", &[STREAMS]);
    rules.redirect_streams(&mut nat);
    [filter.commit(), nat.commit()].concat()
}

/// What the list names by address.
pub(super) fn listed(plan: &Plan, family: Family) -> impl Iterator<Item = String> {
    let mine = move |range: &&AddressRule| range.net.addr().is_ipv4() == (family == Family::V4);
    plan.ranges.iter().filter(mine).map(|range| {
        let ports = tcp("dport", range.ports.low(), range.ports.high());
        format!("-d {} {ports}", range.net)
    })
}

/// What the kernel says to its link so that IPv6 works at all passes, and what it says without need
/// is dropped. Neither is an attempt of the guest, and neither is counted as one.
pub(super) fn link_control(chain: &str, family: Family, abilities: &Abilities, table: &mut Table) {
    if !abilities.contains(&Ability::Sorting) {
        return;
    }
    match family {
        Family::V4 => table.rule(chain, "-p 2 -j DROP"),
        Family::V6 => {
            for (kinds, verdict) in [(&DISCOVERY[..], "ACCEPT"), (&MEMBERSHIP, "DROP")] {
                for kind in kinds {
                    let rule = format!("-p 58 -m icmp6 --icmpv6-type {kind} -j {verdict}");
                    table.rule(chain, rule);
                }
            }
        }
    }
}

/// Sent by a user.
pub(super) fn owned(uid: u32) -> String {
    format!("-m owner --uid-owner {uid}")
}

/// Sends all of a protocol to a port of this host.
pub(super) fn redirect(protocol: u8, port: u16) -> String {
    format!("-p {protocol} -j REDIRECT --to-ports {port}")
}

fn log(reason: &str) -> String {
    format!(
        "-j NFLOG --nflog-group {LOG_GROUP} --nflog-prefix {reason} --nflog-size {LOG_SNAPLEN} \
         --nflog-threshold {LOG_THRESHOLD}"
    )
}

/// Judges what leaves.
pub(super) const OUTPUT: &str = "sandbox_output";
const OTHERS: &str = "sandbox_others";
/// Judges what the proxy sends.
pub(super) const PROXY: &str = "sandbox_proxy";
/// Filled while the guest runs: what names of the list resolved to.
pub(super) const OPENED: &str = "sandbox_opened";
/// Where rules in [`OPENED`] lead.
pub(super) const GUARDED: &str = "sandbox_guarded";
/// Counts and refuses what leaves.
pub(super) const PACKET: &str = "sandbox_packet";
/// The same of UDP 443.
pub(super) const QUIC: &str = "sandbox_quic";
/// The same of what comes in.
pub(super) const INGRESS: &str = "sandbox_ingress";
/// Counts and drops what would leave for loopback.
pub(super) const LEAVING: &str = "sandbox_leaving";
const REFUSE: &str = "sandbox_refuse";
/// Brings to the proxy what must go through it.
pub(super) const REDIRECT: &str = "sandbox_redirect";
const NAMES: &str = "sandbox_names";
const RANGES: &str = "sandbox_ranges";
const STREAMS: &str = "sandbox_streams";
const FILTER_CHAINS: [&str; 13] = [
    LET_THROUGH,
    CLAIMED,
    RANGES,
    REFUSE,
    PACKET,
    QUIC,
    INGRESS,
    OTHERS,
    PROXY,
    GUARDED,
    OPENED,
    OUTPUT,
    incoming::INPUT,
];
const REASONS: [(&str, &str); 3] = [(PACKET, "packet"), (QUIC, "quic"), (INGRESS, "ingress")];
/// Router and neighbour solicitation and advertisement (RFC 4861).
const DISCOVERY: [u8; 4] = [133, 134, 135, 136];
/// Multicast listener query and reports (RFC 2710, RFC 3810).
const MEMBERSHIP: [u8; 3] = [130, 131, 143];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::firewall::plan::tests::plan;

    fn whole(list: &str) -> [String; 2] {
        Family::BOTH.map(|family| script(&plan(list, &[]), family, &Ability::ALL.into()))
    }

    fn without(ability: Ability, list: &str) -> [String; 2] {
        let mut abilities = Abilities::from(Ability::ALL);
        abilities.remove(&ability);
        Family::BOTH.map(|family| script(&plan(list, &[]), family, &abilities))
    }

    /// Where each part is; they must all be there.
    fn places<'a>(text: &str, parts: impl IntoIterator<Item = &'a str>) -> Vec<usize> {
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}\n{text}"));
        parts.into_iter().map(at).collect()
    }

    #[test]
    fn loopback_is_where_it_says_whatever_interface_a_socket_chose() {
        for (text, net) in whole("example.com").iter().zip(["127.0.0.0/8", "::1/128"]) {
            places(
                text,
                [
                    &*format!("-I POSTROUTING 1 ! -o lo -d {net} -j sandbox_leaving\n"),
                    &format!("-A sandbox_output -d {net} -m conntrack --ctstate DNAT -j ACCEPT\n"),
                ],
            );
            assert!(!text.contains(&format!("-d {net} -j ACCEPT")), "{text}");
        }
    }

    #[test]
    fn whoever_asks_for_a_name_asks_the_proxy_wherever_the_question_is_aimed() {
        for (text, [udp, tcp]) in whole("example.com").iter().zip([
            [
                "-p 17 -j REDIRECT --to-ports 40014\n",
                "-p 6 -j REDIRECT --to-ports 40024\n",
            ],
            [
                "-p 17 -j REDIRECT --to-ports 40016\n",
                "-p 6 -j REDIRECT --to-ports 40026\n",
            ],
        ]) {
            let order = [
                "-A sandbox_redirect -m owner --uid-owner 990 -j RETURN\n",
                "-A sandbox_redirect -p 17 -m udp --dport 53 -j sandbox_names\n",
                "-A sandbox_redirect -p 6 -m tcp --dport 53 -j sandbox_names\n",
                "-A sandbox_redirect -d ",
                "-A sandbox_redirect -j sandbox_streams\n",
                "-A sandbox_streams -p 6 -m tcp --dport 80 -j REDIRECT",
            ];
            assert!(places(text, order).is_sorted(), "{text}");
            let names = [
                "-A sandbox_names -m owner --uid-owner 0 -j RETURN\n",
                "-A sandbox_names -m owner --uid-owner 65534 -j RETURN\n",
                udp,
                tcp,
            ];
            places(text, names);
        }
    }

    #[test]
    fn only_root_and_the_proxy_send_questions_or_answer_them() {
        for text in whole("example.com") {
            let forged = places(
                &text,
                [
                    "-A sandbox_output -p 17 -m udp --sport 53 -j sandbox_others\n",
                    "-A sandbox_output -o lo -j ACCEPT\n",
                ],
            );
            assert!(forged.is_sorted(), "{text}");
            let mut answers = text
                .lines()
                .filter(|line| line.contains("-A sandbox_others"));
            assert_eq!(answers.clone().count(), 4, "{text}");
            assert_eq!(
                answers.next_back(),
                Some("-A sandbox_others -m owner --socket-exists -j sandbox_packet")
            );
            let accepted = text
                .lines()
                .filter(|line| line.contains("-A sandbox_output") && line.contains("--dport 53 "));
            let owned = accepted
                .map(|line| line.contains("--uid-owner 0 ") || line.contains("--uid-owner 65534 "));
            assert_eq!(owned.collect::<Vec<_>>(), [true; 4], "{text}");
        }
    }

    #[test]
    fn a_flow_that_one_of_us_has_opened_is_gone_on_with_by_nobody_else() {
        for text in whole("example.com") {
            for uid in [0, 990, 65_534] {
                let claim = format!("--uid-owner {uid} -j CONNMARK --set-mark 1587144016\n");
                let returned = "-A sandbox_redirect -m owner --uid-owner 990 -j RETURN\n";
                assert!(places(&text, [&*claim, returned]).is_sorted(), "{text}");
            }
            let output = text
                .lines()
                .find(|line| line.starts_with("-A sandbox_output"));
            let refused = "-A sandbox_output -m connmark --mark 1587144016 -m conntrack --ctdir ORIGINAL \
                           -j sandbox_others";
            assert_eq!(output, Some(refused));
        }
    }

    #[test]
    fn an_engine_s_resolver_is_reached_by_the_proxy_and_root_alone() {
        let [v4, v6] = whole("example.com");
        let order = [
            "-A sandbox_output -d 127.0.0.11 -j sandbox_others\n",
            "-A sandbox_output -o lo -j ACCEPT\n",
        ];
        assert!(places(&v4, order).is_sorted(), "{v4}");
        assert!(!v6.contains("127.0.0.11"), "{v6}");
    }

    #[test]
    fn the_proxy_dials_what_is_lifted_before_what_is_guarded_is_refused() {
        let [text, _] = whole("a.example@10.1.0.0/16");
        let order = [
            "-A sandbox_proxy -d 10.0.0.53 -p 17 -m udp --dport 53 -j sandbox_claimed\n",
            "-A sandbox_proxy -d 10.1.0.0/16 -p 6 -j sandbox_claimed\n",
            "-A sandbox_proxy -d 10.0.0.0/8 -j sandbox_packet\n",
            "-A sandbox_proxy -p 6 -j sandbox_claimed\n",
            "-A sandbox_proxy -j sandbox_packet\n",
        ];
        assert!(places(&text, order).is_sorted(), "{text}");
    }

    #[test]
    fn what_was_opened_is_accepted_unless_it_is_guarded() {
        let [text, _] = whole("a.example@10.1.0.0/16");
        let order = [
            "-A sandbox_guarded -d 10.1.0.0/16 -j sandbox_let_through\n",
            "-A sandbox_guarded -d 10.0.0.0/8 -j RETURN\n",
            "-A sandbox_guarded -j sandbox_let_through\n",
        ];
        assert!(places(&text, order).is_sorted(), "{text}");
    }

    #[test]
    fn only_what_an_address_entry_names_is_accepted_by_address() {
        let [v4, v6] = whole("example.com, 10.0.0.0/8:5432, [2001:db8:1::/48]:22-23");
        places(
            &v4,
            ["-A sandbox_ranges -d 10.0.0.0/8 -p 6 -m tcp --dport 5432 -j sandbox_let_through\n"],
        );
        places(
            &v6,
            [
                "-A sandbox_ranges -d 2001:db8:1::/48 -p 6 -m tcp --dport 22:23 -j sandbox_let_through\n",
            ],
        );
        assert!(
            !v4.contains("2001:") && !v6.contains("10.0.0.0"),
            "{v4}{v6}"
        );
    }

    #[test]
    fn rules_that_follow_another_list_are_those_of_a_launch_with_it() {
        let plan = plan(
            "b.example:9443/tls, 10.1.0.0/16:5432, c.example@172.16.0.0/12",
            &[],
        );
        let abilities = Abilities::from(Ability::ALL);
        for family in Family::BOTH {
            let launched = script(&plan, family, &abilities);
            let followed = following(&plan, family, &abilities, &Openings::default());
            for chain in [PROXY, GUARDED, RANGES, STREAMS] {
                let of = |text: &str| -> Vec<String> {
                    let prefix = format!("-A {chain} ");
                    let lines = text.lines().filter(|line| line.starts_with(&prefix));
                    lines.map(str::to_owned).collect()
                };
                assert_eq!(of(&followed), of(&launched), "{chain}");
            }
            // Whatever is made anew loses what it counted.
            for kept in [
                "-I ",
                ":sandbox_packet",
                ":sandbox_quic",
                ":sandbox_ingress",
                ":OUTPUT",
            ] {
                assert!(!followed.contains(kept), "{kept}\n{followed}");
            }
        }
    }

    #[test]
    fn every_refusal_is_counted_logged_and_answered() {
        for (text, prohibited) in whole("example.com")
            .iter()
            .zip(["icmp-admin-prohibited", "icmp6-adm-prohibited"])
        {
            for (chain, reason) in REASONS {
                let order = [
                    format!("-A {chain}\n"),
                    format!("-A {chain} -j NFLOG --nflog-group 4100 --nflog-prefix {reason} "),
                    format!("-A {chain} -j sandbox_refuse\n"),
                ];
                assert!(
                    places(text, order.iter().map(String::as_str)).is_sorted(),
                    "{text}"
                );
            }
            let order = [
                "-A sandbox_refuse -p 6 -j REJECT --reject-with tcp-reset\n",
                &*format!("-A sandbox_refuse -j REJECT --reject-with {prohibited}\n"),
                "-A sandbox_refuse -j DROP\n",
            ];
            assert!(places(text, order).is_sorted(), "{text}");
        }
    }

    #[test]
    fn whatever_a_kernel_lacks_the_chains_end_in_a_refusal() {
        for ability in Ability::OPTIONAL {
            for text in without(ability, "example.com, 203.0.113.0/24:22") {
                for hook in [":INPUT DROP", ":OUTPUT DROP"] {
                    assert!(text.contains(hook), "{ability:?}\n{text}");
                }
                let ends = |chain: &str| {
                    let prefix = format!("-A {chain} ");
                    let last = text.lines().rfind(|line| line.starts_with(&prefix));
                    last.unwrap_or_default().to_owned()
                };
                assert_eq!(
                    ends(OUTPUT),
                    "-A sandbox_output -j sandbox_packet",
                    "{ability:?}"
                );
                assert_eq!(
                    ends(PROXY),
                    "-A sandbox_proxy -j sandbox_packet",
                    "{ability:?}"
                );
                assert_eq!(ends(REFUSE), "-A sandbox_refuse -j DROP", "{ability:?}");
                let words = ["NFLOG", "-m time", "pkttype", "*mangle", ":FORWARD DROP"];
                for (other, word) in Ability::OPTIONAL.into_iter().zip(words) {
                    let expected = other != ability;
                    assert_eq!(
                        text.contains(word),
                        expected,
                        "{word} without {ability:?}\n{text}"
                    );
                }
            }
        }
    }
}
