//! Rules as iptables-restore(8) reads them: one script a family, each table of it committed whole.

use std::{
    fmt::{Display, Write as _},
    net::IpAddr,
};

use ipnet::IpNet;

/// Which protocol a script is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// For `iptables`.
    V4,
    /// For `ip6tables`.
    V6,
}

impl Family {
    /// Both, and so are they always covered.
    pub(super) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// Loads scripts. Absolute, as all that root runs.
    pub(super) const fn restore(self) -> &'static str {
        match self {
            Self::V4 => "/usr/sbin/iptables-legacy-restore",
            Self::V6 => "/usr/sbin/ip6tables-legacy-restore",
        }
    }

    /// Lists what is loaded.
    pub(super) const fn save(self) -> &'static str {
        match self {
            Self::V4 => "/usr/sbin/iptables-legacy-save",
            Self::V6 => "/usr/sbin/ip6tables-legacy-save",
        }
    }

    /// Those of `addresses` that are of this family.
    pub(super) fn addresses(self, addresses: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
        let mine = move |address: &IpAddr| address.is_ipv4() == (self == Self::V4);
        addresses.iter().copied().filter(mine)
    }

    /// Those of `nets` that are of this family, without overlaps.
    pub(super) fn of(self, nets: impl IntoIterator<Item = IpNet>) -> Vec<IpNet> {
        let mine = |net: &IpNet| net.addr().is_ipv4() == (self == Self::V4);
        IpNet::aggregate(&nets.into_iter().filter(mine).collect())
    }
}

/// One table of a script.
#[derive(Debug)]
pub(super) struct Table {
    text: String,
}

impl Table {
    /// A table with these chains of our own: empty ones, whatever was in them.
    pub(super) fn new(name: &str, chains: &[&str]) -> Self {
        let mut table = Self {
            text: format!("*{name}\n"),
        };
        for chain in chains {
            table.line(format_args!(":{chain} - [0:0]"));
        }
        table
    }

    /// Takes rules out, given as the lines that do so.
    pub(super) fn take_out(&mut self, lines: &[String]) {
        for line in lines {
            self.line(line);
        }
    }

    /// What becomes of packets that reach the end of a chain of the kernel's.
    pub(super) fn policy(&mut self, hook: &str, verdict: &str) {
        self.line(format_args!(":{hook} {verdict} [0:0]"));
    }

    /// Appends a rule.
    pub(super) fn rule(&mut self, chain: &str, rule: impl Display) {
        self.line(format_args!("-A {chain} {rule}"));
    }

    /// A rule that only counts.
    pub(super) fn count(&mut self, chain: &str) {
        self.line(format_args!("-A {chain}"));
    }

    /// Leads from a chain of the kernel's to one of ours, before what others have there: the
    /// engine's resolver works by rules of its own.
    pub(super) fn enter(&mut self, hook: &str, rule: impl Display) {
        self.line(format_args!("-I {hook} 1 {rule}"));
    }

    /// The whole.
    pub(super) fn commit(mut self) -> String {
        self.line("COMMIT");
        self.text
    }

    fn line(&mut self, line: impl Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

/// `--dport` or `--sport` of TCP, with nothing looked up by name: an image may lack the files.
pub(super) fn tcp(end: &str, low: u16, high: u16) -> String {
    format!("-p 6 -m tcp --{end} {}", ports(low, high))
}

/// The same of UDP.
pub(super) fn udp(end: &str, low: u16, high: u16) -> String {
    format!("-p 17 -m udp --{end} {}", ports(low, high))
}

fn ports(low: u16, high: u16) -> String {
    if low == high {
        return low.to_string();
    }
    format!("{low}:{high}")
}

/// Ports in as few ranges as possible: each takes a rule.
pub(super) fn ranges(ports: impl IntoIterator<Item = u16>) -> Vec<(u16, u16)> {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for port in ports {
        match ranges.last_mut() {
            Some((_, high)) if high.checked_add(1) == Some(port) => *high = port,
            _ => ranges.push((port, port)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_ports_are_one_range() {
        for (ports, expected) in [
            (&[80, 443][..], &[(80, 80), (443, 443)][..]),
            (&[1, 2, 3, 5], &[(1, 3), (5, 5)]),
            (&[65_534, 65_535], &[(65_534, 65_535)]),
            (&[], &[]),
        ] {
            assert_eq!(ranges(ports.iter().copied()), expected, "{ports:?}");
        }
    }

    #[test]
    fn a_table_is_committed_once_and_at_its_end() {
        let mut table = Table::new("filter", &["mine"]);
        table.policy("OUTPUT", "DROP");
        table.enter("OUTPUT", "-j mine");
        table.count("mine");
        table.rule("mine", udp("dport", 6000, 6010) + " -j ACCEPT");
        assert_eq!(
            table.commit(),
            "*filter\n:mine - [0:0]\n:OUTPUT DROP [0:0]\n-I OUTPUT 1 -j mine\n-A mine\n\
             -A mine -p 17 -m udp --dport 6000:6010 -j ACCEPT\nCOMMIT\n"
        );
    }

    #[test]
    fn a_single_port_is_no_range() {
        assert_eq!(tcp("sport", 53, 53), "-p 6 -m tcp --sport 53");
    }

    #[test]
    fn networks_are_told_apart_by_family_and_never_overlap() {
        let nets = ["10.0.0.0/8", "2001:db8::/32", "10.1.0.0/16"].map(|net| net.parse().unwrap());
        let shown = |family: Family| {
            let nets = family.of(nets);
            nets.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(shown(Family::V4), ["10.0.0.0/8"]);
        assert_eq!(shown(Family::V6), ["2001:db8::/32"]);
    }

    #[test]
    fn what_root_runs_is_absolute_and_of_its_family() {
        for (family, part) in [(Family::V4, "/iptables-"), (Family::V6, "/ip6tables-")] {
            for program in [family.restore(), family.save()] {
                assert!(program.starts_with("/usr/sbin/") && program.contains(part));
            }
        }
    }
}
