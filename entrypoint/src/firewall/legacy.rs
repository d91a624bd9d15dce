//! The rules in the tables of iptables, for kernels without `nf_tables` and images without `nft`.
//!
//! Both families are loaded, or nothing is started. Each table is committed whole, but not all of
//! them at once: nothing runs in the container yet that could make use of the time between.

mod abilities;
mod counted;
mod flows;
mod incoming;
mod lean;
mod listing;
mod openings;
mod rules;
mod script;

use std::{io, net::SocketAddr};

use jiff::Timestamp;
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketType, socket},
    thread::{CapabilitySet, capabilities},
};

use self::{
    abilities::{Abilities, Ability},
    openings::Openings,
    script::Family,
};
use super::{
    Counters, Finding, LOAD, Plan,
    opened::Kept,
    program::{Said, first_line, run},
};
use crate::failure::Failure;

/// The loaded tables.
pub(super) struct Tables {
    families: Vec<Family>,
    abilities: Abilities,
    openings: Openings,
    /// What is ours as it is listed once it is loaded; none where others had changed it before it
    /// became what it should be.
    listed: Option<String>,
}

impl Tables {
    /// Loads the rules of `plan`, and returns them as text as well.
    pub(super) fn load(plan: &Plan) -> Result<(Self, String), Failure> {
        require(plan)?;
        let families = families()?;
        let mut abilities = Abilities::from(Ability::ALL);
        let loaded = load_all(plan, &families, &abilities).or_else(|failure| {
            abilities = try_abilities(&families)?;
            if abilities.len() == Ability::ALL.len() {
                return Err(failure);
            }
            if is_lean(&abilities) {
                // Then nothing else is made use of either.
                abilities.clear();
                published(plan)?;
            }
            load_all(plan, &families, &abilities)
        })?;
        let mut tables = Self {
            families,
            abilities,
            openings: Openings::default(),
            listed: None,
        };
        tables.listed = Some(tables.ours()?);
        Ok((tables, loaded))
    }

    /// What is not covered, one sentence each.
    pub(super) fn degradations(&self) -> Vec<&'static str> {
        let missing = |ability: &Ability| !self.abilities.contains(ability);
        let missing = Ability::ALL.into_iter().filter(missing);
        let without = missing.map(Ability::without);
        let lean: &[_] = if is_lean(&self.abilities) {
            &[NO_IPV6, UNCOUNTED]
        } else {
            &[]
        };
        let watched = if is_lean(&self.abilities) {
            UNWATCHED
        } else {
            LOOKED_AT
        };
        let told = [watched].into_iter().chain(without);
        told.chain(lean.iter().copied()).collect()
    }

    /// Whether refused packets are handed to PID 1.
    pub(super) fn logs(&self) -> bool {
        self.abilities.contains(&Ability::Logging)
    }

    /// Whether what is refused is counted.
    pub(super) fn counts(&self) -> bool {
        !is_lean(&self.abilities)
    }

    /// Lets the guest dial these for so many seconds from now.
    pub(super) fn open(&mut self, endpoints: &[SocketAddr], seconds: u32) -> io::Result<()> {
        if !self.abilities.contains(&Ability::Expiring) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let opened = self.openings.with(endpoints, seconds, Timestamp::now())?;
        for &family in &self.families {
            if endpoints
                .iter()
                .any(|to| to.is_ipv4() == (family == Family::V4))
            {
                restore(family, &opened.chain(family)).map_err(io::Error::other)?;
            }
        }
        self.openings = opened;
        Ok(())
    }

    /// Has the rules follow another list, a table at a time.
    pub(super) fn follow(&mut self, plan: &Plan, kept: &[Kept]) -> Result<(), Failure> {
        require(plan)?;
        let openings = Openings::of(kept, Timestamp::now());
        let unchanged = Some(self.ours()?) == self.listed;
        for &family in &self.families {
            let script = if is_lean(&self.abilities) {
                lean::following(plan, family)
            } else {
                rules::following(plan, family, &self.abilities, &openings)
            };
            restore(family, &script)?;
        }
        self.openings = openings;
        self.listed = unchanged.then(|| self.ours()).transpose()?;
        Ok(())
    }

    /// Loads the same rules again, whatever has become of them, with what was open. Of others' they
    /// come before those that they have come before.
    pub(super) fn reload(&mut self, plan: &Plan, open: &[Kept]) -> Result<(), Failure> {
        let openings = Openings::of(open, Timestamp::now());
        for &family in &self.families {
            let again = || {
                let listing = self.list(family)?;
                let script = rules::again(plan, family, &self.abilities, &openings, &listing);
                restore(family, &script)
            };
            // Somebody may have been at it between the two.
            again().or_else(|_| again())?;
        }
        self.openings = openings;
        // Otherwise it is as it was, or somebody has been at it again, which the next look tells.
        if self.listed.is_none() {
            self.listed = Some(self.ours()?);
        }
        Ok(())
    }

    /// Looks what others did to the rules until now. The kernel tells nobody, so that a look costs
    /// a process a family.
    pub(super) fn look(&self) -> Finding {
        if is_lean(&self.abilities) {
            return Finding::Unseen;
        }
        match self.ours() {
            Ok(ours) if Some(&ours) == self.listed.as_ref() => Finding::Nothing,
            Ok(_) => Finding::Changed(SOMEBODY.to_owned()),
            // A guest that has all the processes there are: the next look tells.
            Err(_) => Finding::Unseen,
        }
    }

    /// What was counted since the tables were loaded.
    pub(super) fn counters(&self) -> Result<Counters, Failure> {
        if !self.counts() {
            return Err(Failure::setup(COUNT, UNCOUNTED, "use another kernel"));
        }
        let mut sum = Counters::default();
        for &family in &self.families {
            let counters = counted::parse(&self.list(family)?, &self.abilities)
                .ok_or_else(|| Failure::setup(COUNT, "the listing lacks rules of ours", KERNEL))?;
            sum.packets = sum.packets.saturating_add(counters.packets);
            sum.quic = sum.quic.saturating_add(counters.quic);
            sum.ingress = sum.ingress.saturating_add(counters.ingress);
        }
        Ok(sum)
    }

    /// What of the tables is ours.
    fn ours(&self) -> Result<String, Failure> {
        let ours = |&family| Ok(listing::ours(&self.list(family)?, &self.openings));
        self.families.iter().map(ours).collect()
    }

    /// All tables of a family that have rules of ours.
    fn list(&self, family: Family) -> Result<String, Failure> {
        let leaving = self.abilities.contains(&Ability::Leaving);
        let tables = ["filter", "nat"];
        let tables = tables.into_iter().chain(leaving.then_some("mangle"));
        // At once, where the kernel says which there are.
        let all = save(family, &["-c"])?;
        let is_there = |table| {
            all.lines()
                .any(|line| line.strip_prefix('*') == Some(table))
        };
        if tables.clone().all(is_there) {
            return Ok(all);
        }
        tables
            .map(|table| save(family, &["-c", "-t", table]))
            .collect()
    }
}

/// What would fail later, with a message that says less.
fn require(plan: &Plan) -> Result<(), Failure> {
    let effective = capabilities(None).map(|sets| sets.effective);
    if !effective.is_ok_and(|set| set.contains(CapabilitySet::NET_RAW)) {
        let cause = "iptables-legacy does not work without NET_RAW";
        return Err(Failure::setup(LOAD, cause, NET_RAW));
    }
    if plan.ranges.len() > MOST_RANGES {
        let cause = format!(
            "iptables-legacy looks through {} address entries one by one",
            plan.ranges.len()
        );
        let remedy = "shorten the list to 4096 of them, or use a kernel with nf_tables";
        return Err(Failure::setup(LOAD, cause, remedy));
    }
    Ok(())
}

/// Whether the kernel lacks what the rules are otherwise built on.
fn is_lean(abilities: &Abilities) -> bool {
    !abilities.contains(&Ability::Tracking) || !abilities.contains(&Ability::Answering)
}

/// Answers of a published port could not be told from anything else that is sent from there.
fn published(plan: &Plan) -> Result<(), Failure> {
    if plan.ingress.is_empty() {
        return Ok(());
    }
    let cause = "on a kernel without conntrack no port can be published alone";
    let remedy = "leave SANDBOX_INGRESS_PORTS out, or use a kernel with conntrack";
    Err(Failure::setup(LOAD, cause, remedy))
}

/// Both, but on a kernel that does not know IPv6 at all: addresses that a container does not have
/// yet may be given to it later.
fn families() -> Result<Vec<Family>, Failure> {
    let ipv6 = socket(AddressFamily::INET6, SocketType::DGRAM, None);
    match ipv6 {
        Ok(_) => Ok(Family::BOTH.to_vec()),
        Err(Errno::AFNOSUPPORT) => Ok(vec![Family::V4]),
        Err(errno) => Err(Failure::system("look for IPv6")(errno.into())),
    }
}

fn load_all(plan: &Plan, families: &[Family], abilities: &Abilities) -> Result<String, Failure> {
    let mut loaded = String::new();
    for &family in families {
        let script = if is_lean(abilities) {
            lean::script(plan, family)
        } else {
            rules::script(plan, family, abilities)
        };
        restore(family, &script)?;
        loaded += &script;
    }
    Ok(loaded)
}

/// What every family can do.
fn try_abilities(families: &[Family]) -> Result<Abilities, Failure> {
    let mut abilities = Abilities::new();
    for ability in Ability::ALL {
        let script = ability.trial();
        let mut everywhere = true;
        for &family in families {
            everywhere &= matches!(tell(family.restore(), &RESTORE, &script)?, Said::Done(_));
        }
        if everywhere {
            abilities.insert(ability);
        }
    }
    Ok(abilities)
}

fn restore(family: Family, script: &str) -> Result<(), Failure> {
    match tell(family.restore(), &RESTORE, script)? {
        Said::Done(_) => Ok(()),
        Said::Refused(complaint) => {
            let cause = format!("{}: {}", family.restore(), told(&complaint));
            Err(Failure::setup(LOAD, cause, KERNEL))
        }
    }
}

/// What the kernel may lack is told first, and is no reason yet.
fn told(complaint: &str) -> &str {
    let mut lines = complaint.lines().filter(|line| !line.is_empty());
    lines
        .find(|line| !line.starts_with("Warning:"))
        .unwrap_or_else(|| first_line(complaint))
}

fn save(family: Family, args: &[&str]) -> Result<String, Failure> {
    match tell(family.save(), args, "")? {
        Said::Done(listing) => Ok(listing),
        Said::Refused(complaint) => Err(Failure::setup(COUNT, first_line(&complaint), KERNEL)),
    }
}

fn tell(program: &str, args: &[&str], input: &str) -> Result<Said, Failure> {
    run(program, args, input).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            let cause = format!("no {program} in the image");
            return Failure::setup(LOAD, cause, INSTALL);
        }
        Failure::setup(LOAD, format_args!("run {program}: {error}"), INSTALL)
    })
}

/// The tables of others stay as they are.
const RESTORE: [&str; 1] = ["--noflush"];
const COUNT: &str = "read the counters";
const INSTALL: &str = "install nftables in it, or iptables for hosts whose kernel has no nf_tables";
const KERNEL: &str = "use a host whose kernel has nf_tables, or ip_tables and ip6_tables with nat, \
                      owner and REDIRECT";
const NET_RAW: &str = "give PID 1 that capability too: --engine-arg=--cap-add=NET_RAW of \
                       `host-collector run`, or --cap-add NET_RAW";
const LOOKED_AT: &str = "with iptables-legacy, it is looked every 5 s whether others changed the \
                         rules, which are loaded again then, and nobody knows who it was";
const UNWATCHED: &str = "with this kernel's iptables, it is not found out whether others changed the \
                         rules";
/// Who made a change of which the kernel tells nobody.
const SOMEBODY: &str = "somebody, of whom iptables-legacy does not tell";
const NO_IPV6: &str =
    "no name is reached over IPv6: its rules are more than this kernel takes at once";
const UNCOUNTED: &str = "this kernel does not count what its rules refuse";
/// A connection would wait for more than that.
const MOST_RANGES: usize = 4096;

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        io::{Read as _, Write as _},
    };

    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::firewall::{
        plan::tests::plan,
        tests::outside::{
            DENIED, OPENED, OUTSIDE, carries, dial, run as shell, with_a_host_outside,
        },
    };

    /// Whatever runs in this thread from now on has a network of its own with these rules.
    fn loaded(list: &str, ingress: &[&str]) -> Tables {
        unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
        let (tables, _) = Tables::load(&plan(list, ingress))
            .map_err(|failure| failure.one_line())
            .unwrap();
        tables
    }

    fn listing(family: Family, table: &str) -> String {
        save(family, &["-c", "-t", table])
            .map_err(|failure| failure.one_line())
            .unwrap()
    }

    #[test]
    fn every_rule_of_a_list_with_something_of_everything_is_taken_by_the_kernel() {
        let tables = loaded(
            "example.com, a.example:8000-8010/tls, b.example:22, 10.0.0.0/8:5432, [2001:db8::/32]:22",
            &["tcp:8080", "udp:6000-6010"],
        );
        assert_eq!(tables.abilities, BTreeSet::from(Ability::ALL));
        assert_eq!(tables.degradations(), [LOOKED_AT]);
        for family in Family::BOTH {
            let filter = listing(family, "filter");
            for hook in ["INPUT", "FORWARD", "OUTPUT"] {
                assert!(filter.contains(&format!(":{hook} DROP ")), "{filter}");
            }
            assert!(listing(family, "nat").contains("REDIRECT --to-ports 400"));
            assert!(listing(family, "mangle").contains("! -o lo -j sandbox_leaving"));
        }
    }

    #[test]
    fn nothing_is_counted_before_anything_was_refused() {
        let counters = loaded("example.com", &[]).counters();
        assert_eq!(counters.map_err(|f| f.one_line()), Ok(Counters::default()));
    }

    #[test]
    fn rules_of_others_stay_and_come_after_ours() {
        unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
        let theirs =
            "*nat\n:DOCKER_OUTPUT - [0:0]\n-A OUTPUT -d 127.0.0.11/32 -j DOCKER_OUTPUT\nCOMMIT\n";
        for script in [theirs, "*nat\nCOMMIT\n"] {
            assert!(restore(Family::V4, script).is_ok());
            assert!(Tables::load(&plan("example.com", &[])).is_ok());
        }
        let nat = listing(Family::V4, "nat");
        let at = |part: &str| nat.find(part).unwrap_or_else(|| panic!("{part}\n{nat}"));
        assert!(
            at("-A OUTPUT -j sandbox_redirect") < at("-j DOCKER_OUTPUT"),
            "{nat}"
        );
    }

    #[test]
    fn another_list_is_followed_without_losing_a_count_or_calling_it_somebody_else_s() {
        let mut tables = loaded("a.example:8443/tls, 10.0.0.0/8:5432", &[]);
        let kept = [Kept {
            to: "203.0.113.7:22".parse().unwrap(),
            seconds: 100,
        }];
        let next = plan("b.example:9443/tls, [2001:db8::/32]:22", &[]);
        tables
            .follow(&next, &kept)
            .map_err(|failure| failure.one_line())
            .unwrap();
        let (filter, nat) = (listing(Family::V4, "filter"), listing(Family::V4, "nat"));
        assert!(
            filter.contains("-d 203.0.113.7/32") && !filter.contains("5432"),
            "{filter}"
        );
        assert!(nat.contains("9443") && !nat.contains("8443"), "{nat}");
        assert_eq!(filter.matches("-A OUTPUT ").count(), 1, "{filter}");
        assert!(tables.counters().is_ok());
    }

    const TO: [&str; 2] = ["203.0.113.7:22", "[2001:db8::7]:22"];

    #[test]
    fn what_others_change_is_found_and_mended_with_what_was_open_and_what_is_theirs_stays() {
        let plan = plan("b.example:22", &["tcp:8080"]);
        let mut tables = loaded("b.example:22", &["tcp:8080"]);
        let kept = TO.map(|to| Kept {
            to: to.parse().unwrap(),
            seconds: 600,
        });
        tables.open(&kept.map(|kept| kept.to), 600).unwrap();
        let ours = tables.ours().map_err(|failure| failure.one_line());
        assert!(ours.ok() == tables.listed, "what is open is no change");
        let whole = tables.listed.clone();
        for script in [
            "*nat\n-I OUTPUT 1 -j RETURN\nCOMMIT\n",
            "*nat\n-F\nCOMMIT\n",
            "*filter\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n",
            "*filter\n-D OUTPUT 1\nCOMMIT\n",
            "*filter\n-F\n-X\nCOMMIT\n",
            "*filter\n-I OUTPUT 1 -j ACCEPT\n-I OUTPUT 1 -j sandbox_output\nCOMMIT\n",
            "*filter\n-I sandbox_opened 1 -j sandbox_guarded\nCOMMIT\n",
            "*mangle\n-F POSTROUTING\nCOMMIT\n",
        ] {
            for family in Family::BOTH {
                assert!(restore(family, script).is_ok(), "{script}");
                assert_eq!(tables.look(), Finding::Changed(SOMEBODY.into()), "{script}");
                let reloaded = tables.reload(&plan, &kept);
                assert_eq!(reloaded.map_err(|f| f.one_line()), Ok(()), "{script}");
                assert_eq!(tables.look(), Finding::Nothing, "{script}");
                assert!(tables.listed == whole, "{script}");
                assert_eq!(
                    tables
                        .list(family)
                        .unwrap()
                        .matches("--datestop 20")
                        .count(),
                    1
                );
            }
        }
        // Theirs, which come behind ours now.
        let filter = listing(Family::V4, "filter");
        let at = |part: &str| {
            filter
                .find(part)
                .unwrap_or_else(|| panic!("{part}\n{filter}"))
        };
        assert!(at("-A OUTPUT -j sandbox_output") < at("-A OUTPUT -j ACCEPT"));
        assert_eq!(
            tables.counters().map_err(|f| f.one_line()),
            Ok(Counters::default())
        );
    }

    #[test]
    fn what_others_have_behind_ours_is_no_change() {
        let tables = loaded("example.com", &[]);
        for script in [
            "*nat\n:DOCKER_OUTPUT - [0:0]\n-A OUTPUT -d 127.0.0.11/32 -j DOCKER_OUTPUT\n\
             -A DOCKER_OUTPUT -p 17 -j DNAT --to-destination 127.0.0.11:4000\n\
             -A POSTROUTING -j MASQUERADE\nCOMMIT\n",
            "*filter\n-A OUTPUT -j ACCEPT\nCOMMIT\n",
            "*raw\n-A OUTPUT -p 6 -j ACCEPT\nCOMMIT\n",
        ] {
            assert!(restore(Family::V4, script).is_ok(), "{script}");
            assert_eq!(tables.look(), Finding::Nothing, "{script}");
        }
    }

    #[test]
    fn what_was_changed_before_another_list_is_found_after_it_and_mended_by_it() {
        let mut tables = loaded("a.example:8443/tls", &[]);
        let next = plan("b.example:9443/tls, 10.0.0.0/8:22", &[]);
        assert!(restore(Family::V6, "*filter\n-F OUTPUT\nCOMMIT\n").is_ok());
        assert!(tables.follow(&next, &[]).is_ok());
        for _ in 0..2 {
            assert!(matches!(tables.look(), Finding::Changed(_)));
        }
        assert!(tables.reload(&next, &[]).is_ok());
        assert_eq!(tables.look(), Finding::Nothing);
        assert!(listing(Family::V4, "nat").contains("9443"));
        assert!(restore(Family::V6, "*filter\n-F OUTPUT\nCOMMIT\n").is_ok());
        assert!(matches!(tables.look(), Finding::Changed(_)), "again");
    }

    #[test]
    fn what_cannot_be_looked_at_is_no_finding() {
        let mut tables = loaded("example.com", &[]);
        tables.abilities.clear();
        assert_eq!(tables.look(), Finding::Unseen);
        assert!(tables.degradations().contains(&UNWATCHED));
    }

    #[test]
    fn what_is_opened_is_in_the_rules_of_its_family_and_stays_counted() {
        let mut tables = loaded("b.example:22", &[]);
        let both = ["203.0.113.7:22", "[2001:db8::7]:22"].map(|to| to.parse().unwrap());
        tables.open(&both, 120).unwrap();
        for (family, to) in [
            (Family::V4, "203.0.113.7/32"),
            (Family::V6, "2001:db8::7/128"),
        ] {
            let filter = listing(family, "filter");
            let rule = format!("-A sandbox_opened -d {to} -p tcp -m tcp --dport 22 -m time");
            assert_eq!(filter.matches(&rule).count(), 1, "{filter}");
        }
        assert!(tables.counters().is_ok());
    }

    #[test]
    fn all_abilities_are_found_where_there_are_all_and_leave_nothing_behind() {
        unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
        let found = try_abilities(&Family::BOTH).map_err(|failure| failure.one_line());
        assert_eq!(found, Ok(BTreeSet::from(Ability::ALL)));
        for table in ["filter", "mangle"] {
            assert!(!listing(Family::V4, table).contains("sandbox"));
        }
    }

    #[test]
    fn a_list_that_would_make_connections_wait_is_refused_with_its_length() {
        let entries: Vec<_> = (0..5000)
            .map(|n| format!("10.{}.{}.0/30:22", n / 256, n % 256))
            .collect();
        let failure = require(&plan(&entries.join(","), &[])).unwrap_err();
        assert!(
            failure.one_line().contains("5000 address entries"),
            "{}",
            failure.one_line()
        );
    }

    #[test]
    fn a_lean_kernel_counts_logs_and_opens_nothing_and_that_is_told() {
        let mut tables = Tables {
            families: Vec::new(),
            abilities: Abilities::new(),
            openings: Openings::default(),
            listed: None,
        };
        assert!(!tables.counts() && !tables.logs() && tables.counters().is_err());
        assert!(tables.open(&[], 60).is_err());
        assert!(tables.degradations().ends_with(&[NO_IPV6, UNCOUNTED]));
    }

    #[test]
    fn rules_for_lesser_kernels_are_taken_by_this_one_too() {
        unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
        let plan = plan(
            "example.com, b.example:22, 10.0.0.0/8:5432, [2001:db8::/32]:22",
            &[],
        );
        assert!(load_all(&plan, &Family::BOTH, &Abilities::new()).is_ok());
        for ability in Ability::OPTIONAL {
            let mut abilities = Abilities::from(Ability::ALL);
            abilities.remove(&ability);
            assert!(
                load_all(&plan, &Family::BOTH, &abilities).is_ok(),
                "{ability:?}"
            );
        }
    }

    #[test]
    fn without_conntrack_a_published_port_is_refused() {
        let failure = published(&plan("example.com", &["tcp:80"])).unwrap_err();
        assert!(failure.one_line().contains("SANDBOX_INGRESS_PORTS"));
        assert!(published(&plan("example.com", &[])).is_ok());
    }

    #[test]
    fn a_warning_is_told_only_where_nothing_else_was_said() {
        assert_eq!(
            told("Warning: Extension\nline 88 failed\n"),
            "line 88 failed"
        );
        assert_eq!(told("Warning: Extension\n"), "Warning: Extension");
    }

    #[test]
    fn a_program_that_is_missing_is_named_with_its_remedy() {
        let failure = tell("/usr/sbin/no-such", &[], "").unwrap_err();
        assert_eq!(
            failure.one_line(),
            format!("load the firewall: no /usr/sbin/no-such in the image; {INSTALL}")
        );
    }

    #[test]
    fn what_was_opened_without_rules_ends_with_them_and_what_they_let_through_goes_on() {
        let taken = with_a_host_outside();
        let plan = plan("example.com:22", &[]);
        let load = || Tables::load(&plan).map_err(|failure| failure.one_line());
        let (mut tables, _) = load().unwrap();
        let to = format!("{OUTSIDE}:{OPENED}").parse().unwrap();
        tables.open(&[to], 60).unwrap();
        let [ours, theirs] = dial(OPENED, &taken);
        assert!(carries([&ours, &theirs]));
        for family in ["iptables-legacy", "ip6tables-legacy"] {
            shell(&format!(
                "for hook in INPUT OUTPUT FORWARD; do {family} -P $hook ACCEPT; done
                 for table in filter nat mangle; do {family} -t $table -F; {family} -t $table -X; done
                 {family} -A OUTPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT"
            ));
        }
        let [mut denied, theirs_of_denied] = dial(DENIED, &taken);
        assert!(carries([&denied, &theirs_of_denied]));
        for family in ["iptables-legacy", "ip6tables-legacy"] {
            shell(&format!("{family} -F OUTPUT"));
        }
        let (tables, _) = load().unwrap();
        assert!(carries([&ours, &theirs]), "it was let through before");
        denied.write_all(b"x").unwrap();
        let error = denied.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        let counted = tables.counters().map_err(|failure| failure.one_line());
        assert_eq!(counted.unwrap().packets, 1);
    }
}
