//! Proves the rules from the guest's side before there is a guest, without any host outside.
//!
//! The probes run in a process of their own, as the guest's user: what it cannot reach, the guest
//! cannot. That a probe was refused is not enough, it must also have been counted.

mod attempt;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    process::{Command, Stdio},
};

use policy::{Decision, Destination, Host, Policy};
use report::{Printable, ProbeResult};
use serde::{Deserialize, Serialize};

use self::attempt::Outcome;
pub(crate) use self::attempt::UNLISTED_NAME;
use crate::{failure::Failure, identity::Unprivileged, launch::Launch};

/// The name by which PID 1 starts itself to run the probes.
pub(crate) const VERB: &str = "sandbox-self-test";

/// What to try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Probes {
    tcp: Vec<SocketAddr>,
    udp: Vec<SocketAddr>,
    dns: Vec<SocketAddr>,
    /// Absent where addresses decide, and whoever may not be asked is refused by the rules.
    proxy: Option<SocketAddr>,
}

impl Probes {
    /// Chooses addresses that the list does not name and ports that are not redirected.
    pub(crate) fn choose(
        policy: &Policy,
        resolvers: &[IpAddr],
        ipv6: bool,
        proxy_port: Option<u16>,
    ) -> Self {
        let redirected = policy.stream_ports();
        let v4 = UNLISTED4.iter().map(|&ip| IpAddr::V4(ip));
        let v6 = UNLISTED6.iter().map(|&ip| IpAddr::V6(ip)).filter(|_| ipv6);
        let target = |addresses: &mut dyn Iterator<Item = IpAddr>, ports: &[u16]| {
            addresses
                .filter(|ip| !resolvers.contains(ip))
                .find_map(|ip| {
                    let free = ports.iter().filter(|port| !redirected.contains(port));
                    free.map(|&port| SocketAddr::new(ip, port))
                        .find(|&to| is_unlisted(policy, to))
                })
        };
        let both = |ports: &[u16]| -> Vec<SocketAddr> {
            let found = [
                target(&mut v4.clone(), ports),
                target(&mut v6.clone(), ports),
            ];
            found.into_iter().flatten().collect()
        };
        // Where addresses decide, the container's own resolver may be asked, wherever it is.
        let may_be_asked = proxy_port.is_none() && resolvers.contains(&EMBEDDED_RESOLVER.into());
        let embedded = (!may_be_asked).then_some(EMBEDDED_RESOLVER);
        Self {
            tcp: both(&UNUSED_PORTS),
            udp: both(&UNUSED_PORTS),
            dns: both(&[53])
                .into_iter()
                .chain(embedded.map(|resolver| SocketAddr::from((resolver, 53))))
                .collect(),
            proxy: proxy_port.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        }
    }

    /// Runs the probes as `guest` and judges them. `Ok` is proof; how many of them reached the
    /// rules, and so must have been counted, is given with it.
    pub(crate) fn run_as(&self, guest: &Unprivileged) -> Result<Proof, Failure> {
        let fail = |cause: String| {
            Failure::setup(
                STEP,
                cause,
                "do not run this guest; report this as a defect",
            )
        };
        let plan = serde_json::to_string(self).map_err(|error| fail(error.to_string()))?;
        let own = std::env::current_exe().map_err(|error| fail(error.to_string()))?;
        let mut command = Command::new(own);
        {
            use std::os::unix::process::CommandExt as _;
            command.arg0(VERB);
        }
        command
            .arg(plan)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let child = Launch::confined(guest)?
            .spawn(&mut command)
            .map_err(|error| fail(error.to_string()))?;
        let output = child
            .wait_with_output()
            .map_err(|error| fail(error.to_string()))?;
        let outcomes: Vec<(String, Outcome)> = serde_json::from_slice(&output.stdout)
            .map_err(|error| fail(format!("the probes gave no result: {error}")))?;
        Proof::judge(outcomes, self.needed()).map_err(fail)
    }

    /// Tries everything. This is the other process.
    fn attempt(&self) -> Vec<(String, Outcome)> {
        let named =
            |kind: &str, to: &SocketAddr| format!("{kind}{}", if to.is_ipv4() { 4 } else { 6 });
        let local = |to: &SocketAddr, kind: &'static str| {
            if to.ip().is_loopback() {
                "dns_loopback"
            } else {
                kind
            }
        };
        let tcp = self
            .tcp
            .iter()
            .map(|to| (named("tcp", to), attempt::tcp(*to)));
        let udp = self
            .udp
            .iter()
            .map(|to| (named("udp", to), attempt::udp(*to)));
        let dns = self.dns.iter().flat_map(|to| {
            let name = named(local(to, "dns"), to);
            match self.proxy {
                Some(_) => vec![(name, attempt::dns(*to))],
                None => vec![
                    (name, attempt::refused_question(*to)),
                    (named(local(to, "dns_tcp"), to), attempt::tcp(*to)),
                ],
            }
        });
        let connect = self
            .proxy
            .map(|proxy| ("connect".to_owned(), attempt::connect(proxy)));
        tcp.chain(udp).chain(dns).chain(connect).collect()
    }

    /// What must be among the results: without it they would prove nothing.
    const fn needed(&self) -> &[&str] {
        match self.proxy {
            Some(_) => &["connect", "dns4"],
            None => &["dns4", "dns_tcp4"],
        }
    }
}

/// The rules held against every probe.
#[derive(Debug)]
pub(crate) struct Proof {
    /// What was tried and how it went.
    pub(crate) results: Vec<ProbeResult>,
    /// How many of the probes were packets that the rules refused.
    pub(crate) refused_packets: u64,
    /// How many of them the proxy refused: each a denial of [`UNLISTED_NAME`].
    pub(crate) refused_names: u64,
}

impl Proof {
    fn judge(outcomes: Vec<(String, Outcome)>, needed: &[&str]) -> Result<Self, String> {
        let mut results = Vec::new();
        let (mut refused_packets, mut refused_names) = (0, 0);
        for (name, outcome) in outcomes {
            let shown = match &outcome {
                Outcome::Refused => {
                    refused_packets += 1;
                    "refused"
                }
                Outcome::NoSuchName => {
                    refused_names += 1;
                    "refused"
                }
                Outcome::Unroutable => "unroutable",
                Outcome::NotRefused(what) => {
                    return Err(format!("probe {name} was not refused: {what}"));
                }
            };
            results.push(ProbeResult {
                name: Printable::new(&name),
                outcome: Printable::new(shown),
            });
        }
        let tried = |name| results.iter().any(|result| result.name.as_str() == name);
        if let Some(missing) = needed.iter().find(|name| !tried(**name)) {
            return Err(format!("probe {missing} was not tried"));
        }
        Ok(Self {
            results,
            refused_packets,
            refused_names,
        })
    }
}

/// Runs the probes that the argument describes and prints how they went.
pub(crate) fn attempt_all(plan: &str) -> io::Result<()> {
    let probes: Probes = serde_json::from_str(plan)?;
    serde_json::to_writer(io::stdout(), &probes.attempt())?;
    Ok(())
}

fn is_unlisted(policy: &Policy, to: SocketAddr) -> bool {
    let destination = Destination {
        host: Host::Address(to.ip()),
        port: to.port(),
    };
    matches!(policy.decide(&destination), Decision::Deny(_))
}

const STEP: &str = "self-test";
/// Where docker's embedded resolver listens: a loopback address is no way around the proxy.
const EMBEDDED_RESOLVER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 11);
/// Discard, daytime, chargen, …: none that anybody lists by chance.
const UNUSED_PORTS: [u16; 4] = [9, 13, 19, 1];
/// Documentation ranges (RFC 5737, RFC 3849): nobody is there, should the rules not hold.
const UNLISTED4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(192, 0, 2, 1),
    Ipv4Addr::new(198, 51, 100, 1),
    Ipv4Addr::new(203, 0, 113, 1),
];
const UNLISTED6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1),
];

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDED: [&str; 2] = ["connect", "dns4"];

    fn choose(list: &str, resolvers: &[&str]) -> Probes {
        let resolvers: Vec<IpAddr> = resolvers.iter().map(|r| r.parse().unwrap()).collect();
        Probes::choose(&Policy::parse(list).unwrap(), &resolvers, true, Some(3128))
    }

    #[test]
    fn a_probe_never_aims_at_what_is_allowed() {
        let probes = choose(
            "192.0.2.0/24:*, example.com:9/tls, [2001:db8::/33]:*",
            &["198.51.100.1"],
        );
        let aims: Vec<_> = probes.tcp.iter().map(ToString::to_string).collect();
        assert_eq!(aims, ["203.0.113.1:13", "[2001:db8:ffff::1]:13"]);
        assert_eq!(probes.dns[0].to_string(), "203.0.113.1:53");
    }

    #[test]
    fn one_probe_that_gets_through_is_no_proof() {
        let refused = || ("tcp4".to_owned(), Outcome::Refused);
        let through = ("udp4".to_owned(), Outcome::NotRefused("answered".into()));
        assert!(Proof::judge(vec![refused(), through], &NEEDED).is_err());
        assert!(
            Proof::judge(vec![refused()], &NEEDED).is_err(),
            "the proxy was not tried"
        );
        let proxy = |name: &str| (name.to_owned(), Outcome::NoSuchName);
        assert!(Proof::judge(vec![refused(), proxy("connect")], &NEEDED).is_err());
        let proof =
            Proof::judge(vec![refused(), proxy("connect"), proxy("dns4")], &NEEDED).unwrap();
        assert_eq!((proof.refused_packets, proof.refused_names), (1, 2));
    }

    #[test]
    fn where_addresses_decide_nobody_but_the_containers_resolvers_may_be_asked() {
        let policy = Policy::parse("example.com").unwrap();
        let aims = |resolver: &str| {
            let resolver = [resolver.parse().unwrap()];
            let probes = Probes::choose(&policy, &resolver, false, None);
            assert_eq!((probes.proxy, probes.needed()[1]), (None, "dns_tcp4"));
            probes
                .dns
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(aims("127.0.0.11"), ["192.0.2.1:53"]);
        assert_eq!(aims("192.0.2.1"), ["198.51.100.1:53", "127.0.0.11:53"]);
    }

    #[test]
    fn without_ipv6_only_ipv4_is_tried() {
        let probes = Probes::choose(
            &Policy::parse("example.com").unwrap(),
            &[],
            false,
            Some(3128),
        );
        assert!(
            probes
                .tcp
                .iter()
                .chain(&probes.udp)
                .all(SocketAddr::is_ipv4),
            "{probes:?}"
        );
    }

    #[test]
    fn a_list_that_names_every_candidate_leaves_nothing_to_aim_at() {
        let list = "192.0.2.0/24:*,198.51.100.0/24:*,203.0.113.0/24:*";
        let probes = Probes::choose(&Policy::parse(list).unwrap(), &[], false, Some(3128));
        assert!(probes.tcp.is_empty() && probes.udp.is_empty(), "{probes:?}");
    }

    #[test]
    fn the_plan_is_understood_by_the_other_process() {
        let probes = choose("example.com", &[]);
        let text = serde_json::to_string(&probes).unwrap();
        assert_eq!(serde_json::from_str::<Probes>(&text).unwrap(), probes);
    }

    #[test]
    fn a_plan_that_is_none_is_an_error_and_no_proof() {
        assert!(attempt_all("").is_err());
        assert!(attempt_all("{}").is_err());
    }
}
