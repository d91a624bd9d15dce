//! Lets the guest reach what it resolved, without sets: a rule for each, which ends by itself.
//!
//! The kernel knows the time of each rule, so that nobody has to be there to take it out. What has
//! ended is left out the next time that the chain is written.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};

use super::{
    rules::{GUARDED, OPENED},
    script::{Family, Table, tcp},
};
use crate::firewall::opened::Kept;

/// What is open, and until when.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Openings(BTreeMap<SocketAddr, Timestamp>);

impl Openings {
    /// These and `endpoints`, for so many seconds from `now`. An error where there are too many.
    pub(super) fn with(
        &self,
        endpoints: &[SocketAddr],
        seconds: u32,
        now: Timestamp,
    ) -> io::Result<Self> {
        let seconds = i64::from(seconds.clamp(SHORTEST, LONGEST));
        let until = now
            .checked_add(SignedDuration::from_secs(seconds))
            .map_err(io::Error::other)?;
        let mut open = self.0.clone();
        open.retain(|_, until| *until > now);
        open.extend(endpoints.iter().map(|to| (*to, until)));
        if open.len() > MOST {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(Self(open))
    }

    /// What stays open under another list, from `now`.
    pub(super) fn of(kept: &[Kept], now: Timestamp) -> Self {
        let until = |kept: &Kept| {
            let left = SignedDuration::from_secs(kept.seconds.into());
            Some((kept.to, now.checked_add(left).ok()?))
        };
        Self(kept.iter().filter_map(until).take(MOST).collect())
    }

    /// Whether this is how the kernel lists one of them. What has ended may still be there.
    pub(super) fn has_rule(&self, listed: &str) -> bool {
        let words: Vec<&str> = listed.split(' ').collect();
        let [
            "-A",
            OPENED,
            "-d",
            net,
            "-p",
            "tcp",
            "-m",
            "tcp",
            "--dport",
            port,
            "-m",
            "time",
            "--datestop",
            until,
            "-j",
            GUARDED,
        ] = words[..]
        else {
            return false;
        };
        let address = net.split('/').next().and_then(|net| net.parse().ok());
        let (Some(address), Ok(port)) = (address, port.parse()) else {
            return false;
        };
        let is_single = net
            .parse::<IpNet>()
            .is_ok_and(|net| net == IpNet::from(address));
        let held = self.0.get(&SocketAddr::new(address, port));
        is_single && held.is_some_and(|held| written(*held) == until)
    }

    /// The chain of one family, as a script.
    pub(super) fn chain(&self, family: Family) -> String {
        let mut table = Table::new("filter", &[OPENED]);
        self.fill(family, &mut table);
        table.commit()
    }

    /// The rules of one family, for the chain of a table that is being made.
    pub(super) fn fill(&self, family: Family, table: &mut Table) {
        // One that ended long ago: a kernel that has no such rules says so at the start.
        table.rule(OPENED, "-m time --datestop 1970-01-02T00:00:00 -j DROP");
        let mine = |to: &SocketAddr| to.is_ipv4() == (family == Family::V4);
        for (to, until) in self.0.iter().filter(|(to, _)| mine(to)) {
            table.rule(OPENED, rule(to.ip(), to.port(), *until));
        }
    }
}

fn rule(address: IpAddr, port: u16, until: Timestamp) -> String {
    format!(
        "-d {address} {} -m time --datestop {} -j {GUARDED}",
        tcp("dport", port, port),
        written(until)
    )
}

/// As iptables(8) writes times.
fn written(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S").to_string()
}

/// Every connection is compared with each.
const MOST: usize = 1024;
const SHORTEST: u32 = 60;
const LONGEST: u32 = 86_400;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn endpoints(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn each_opening_is_a_rule_of_its_family_with_its_port_and_its_end() {
        let both = endpoints(&["203.0.113.7:22", "[2001:db8::7]:9418"]);
        let open = Openings::default().with(&both, 60, at(0)).unwrap();
        assert_eq!(
            open.chain(Family::V4),
            "*filter\n:sandbox_opened - [0:0]\n\
             -A sandbox_opened -m time --datestop 1970-01-02T00:00:00 -j DROP\n\
             -A sandbox_opened -d 203.0.113.7 -p 6 -m tcp --dport 22 -m time \
             --datestop 2027-01-15T08:01:00 -j sandbox_guarded\nCOMMIT\n"
        );
        let v6 = open.chain(Family::V6);
        assert!(
            v6.contains("-d 2001:db8::7 ") && !v6.contains("203.0"),
            "{v6}"
        );
    }

    #[test]
    fn only_what_was_opened_is_one_of_the_rules_as_the_kernel_lists_them() {
        let both = endpoints(&["203.0.113.7:22", "[2001:db8::7]:9418"]);
        let open = Openings::default().with(&both, 60, at(0)).unwrap();
        let listed = |to: &str, port: u16, until: &str| {
            format!(
                "-A sandbox_opened -d {to} -p tcp -m tcp --dport {port} -m time --datestop \
                 2027-01-15T{until} -j sandbox_guarded"
            )
        };
        assert!(open.has_rule(&listed("203.0.113.7/32", 22, "08:01:00")));
        assert!(open.has_rule(&listed("2001:db8::7/128", 9418, "08:01:00")));
        for other in [
            listed("203.0.113.7/32", 23, "08:01:00"),
            listed("203.0.113.8/32", 22, "08:01:00"),
            listed("203.0.113.7/24", 22, "08:01:00"),
            listed("203.0.113.7/32", 22, "09:01:00"),
            listed("203.0.113.7/32", 22, "08:01:00").replace("sandbox_guarded", "ACCEPT"),
            "-A sandbox_opened -j sandbox_guarded".to_owned(),
            String::new(),
        ] {
            assert!(!open.has_rule(&other), "{other}");
        }
    }

    #[test]
    fn what_stays_open_has_the_time_that_it_had_left() {
        let [to] = endpoints(&["203.0.113.7:22"])[..] else {
            panic!("one")
        };
        let open = Openings::of(&[Kept { to, seconds: 7 }], at(0));
        assert_eq!(open.0[&to], at(7));
    }

    #[test]
    fn it_is_open_for_a_minute_at_least_and_a_day_at_most() {
        for (seconds, length) in [(1, 60), (600, 600), (u32::MAX, 86_400)] {
            let one = endpoints(&["203.0.113.7:22"]);
            let open = Openings::default().with(&one, seconds, at(0)).unwrap();
            assert_eq!(open.0[&one[0]], at(length));
        }
    }

    #[test]
    fn opening_again_starts_the_time_again() {
        let one = endpoints(&["203.0.113.7:22"]);
        let open = Openings::default().with(&one, 600, at(0)).unwrap();
        let open = open.with(&one, 60, at(30)).unwrap();
        assert_eq!(open.0[&one[0]], at(90));
    }

    #[test]
    fn what_has_ended_makes_room() {
        let many: Vec<SocketAddr> = (1..=1024_u16)
            .map(|port| ([203, 0, 113, 7], port).into())
            .collect();
        let full = Openings::default().with(&many, 60, at(0)).unwrap();
        let more = endpoints(&["203.0.113.8:22"]);
        assert!(full.with(&more, 60, at(59)).is_err());
        assert_eq!(full.with(&more, 60, at(60)).unwrap().0.len(), 1);
    }
}
