//! What PID 1 and the proxy say to each other, over a socketpair made before the proxy exists.
//!
//! The proxy's end is its standard input, so that nothing has to be found or opened. Framing is
//! that of the report channel, with a larger bound because an allowlist travels here. PID 1 alone
//! gives sequence numbers: the proxy's word reaches the host only through it.

use std::net::SocketAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{Allowed, Denied, Printable, Seed};

/// The greatest size of a message on this link, in bytes: an allowlist of 100 000 names fits.
pub const MAX_FRAME: usize = 64 * 1024 * 1024;

/// The name that PID 1 asks for to see it refused, before there is a guest. Nothing is called so
/// (RFC 6761 section 6.4), and what is refused to it is nobody's attempt.
pub const SELF_TEST_NAME: &str = "self-test.invalid";

/// From PID 1 to the proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToProxy {
    /// The first message. The listening sockets come with its first byte, as `SCM_RIGHTS`
    /// (unix(7)), in the order of `kinds`.
    Listeners {
        /// What each descriptor is for.
        kinds: Vec<Ingress>,
    },
    /// The second message: everything else the proxy must know.
    Start(Box<Start>),
    /// Another allowlist is to decide from now on; [`FromProxy::Policy`] answers.
    Policy(Box<Succession>),
    /// The answer to [`FromProxy::Open`].
    Opened {
        /// Of which request.
        id: u64,
        /// Whether the guest can reach all of it now.
        opened: bool,
    },
    /// Say now what was counted so far, instead of waiting for more.
    Hurry,
    /// Stop accepting, let the relays end, report what they carried, and answer
    /// [`FromProxy::Drained`].
    Drain,
}

/// An allowlist that takes the place of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Succession {
    /// Which list it is, see [`crate::PolicyOrder`].
    pub generation: u64,
    /// The entries, in their canonical spelling.
    pub allow: Vec<String>,
    /// Digest of that list: the proxy must arrive at the same.
    pub policy_digest: String,
}

/// How connections arrive at a listener. Told, never guessed: only where nftables redirects may the
/// kernel be asked for the original destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ingress {
    /// Clients that were told of the proxy.
    Explicit,
    /// Connections that nftables redirected.
    Redirect,
    /// DNS over TCP, redirected.
    Dns,
    /// DNS over UDP, redirected: the one socket that does not listen.
    DnsUdp,
}

/// A request that the guest may reach some addresses without the proxy: a name that it resolved has
/// them, and an entry lets any stream pass to that name on these ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// What the answer says again.
    pub id: u64,
    /// Which list allows it: what an earlier one allowed is not opened any more.
    pub generation: u64,
    /// The name that has the addresses.
    pub name: String,
    /// What is to be reached over TCP; at most [`Open::MAX_ENDPOINTS`].
    pub endpoints: Vec<SocketAddr>,
    /// For how long.
    pub seconds: u32,
}

impl Open {
    /// The most that one request may name.
    pub const MAX_ENDPOINTS: usize = 4096;
}

/// What the proxy works with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Which list this is, see [`crate::PolicyOrder`].
    pub generation: u64,
    /// The entries of the allowlist, in their canonical spelling.
    pub allow: Vec<String>,
    /// Digest of that list: the proxy must arrive at the same.
    pub policy_digest: String,
    /// Addresses to guard besides the special-purpose ones: the container's own and its gateways.
    pub guard: Vec<IpNet>,
    /// Origin of the run's time axis, see [`crate::RunClock`].
    pub clock_origin_ms: u64,
    /// The order in which refused targets are chosen to be named. The guest must not know it.
    pub seed: Seed,
    /// Connections at once; one more is answered 503 and counted.
    pub max_connections: u32,
    /// The resolvers of the container.
    pub resolvers: Vec<std::net::IpAddr>,
    /// The host and port of an HTTP proxy to dial through, where the network demands one.
    pub upstream_proxy: Option<String>,
}

/// From the proxy to PID 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromProxy {
    /// Every listener is being served.
    Ready {
        /// The proxy's version.
        version: Printable,
        /// What could not be had and was done without, one sentence each.
        degradations: Vec<Printable>,
    },
    /// It cannot work, and ends.
    Failed {
        /// Why.
        detail: Printable,
    },
    /// Refused attempts.
    Denied(Denied),
    /// Attempts that were let through.
    Allowed(Allowed),
    /// The answer to [`ToProxy::Policy`]: what follows was decided by that list, unless it is
    /// refused.
    Policy {
        /// Which list.
        generation: u64,
        /// Why the one before it still decides, where it does.
        refused: Option<Printable>,
    },
    /// A request that [`ToProxy::Opened`] answers.
    Open(Open),
    /// The answer to [`ToProxy::Drain`]: nothing follows.
    Drained,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Start {
        Start {
            generation: 1,
            allow: vec!["a.example".into()],
            policy_digest: "d".into(),
            guard: Vec::new(),
            clock_origin_ms: 5,
            seed: Seed([6; 16]),
            max_connections: 6,
            resolvers: vec![[192, 0, 2, 53].into()],
            upstream_proxy: None,
        }
    }

    #[test]
    fn what_pid_1_says_is_what_the_proxy_reads() {
        for message in [
            ToProxy::Listeners {
                kinds: vec![
                    Ingress::Explicit,
                    Ingress::Redirect,
                    Ingress::Dns,
                    Ingress::DnsUdp,
                ],
            },
            ToProxy::Start(Box::new(start())),
            ToProxy::Policy(Box::new(Succession {
                generation: 2,
                allow: vec!["b.example".into()],
                policy_digest: "d".into(),
            })),
            ToProxy::Opened {
                id: 7,
                opened: true,
            },
            ToProxy::Hurry,
            ToProxy::Drain,
        ] {
            let line = serde_json::to_string(&message).unwrap();
            assert_eq!(
                serde_json::from_str::<ToProxy>(&line).unwrap(),
                message,
                "{line}"
            );
        }
    }

    #[test]
    fn what_the_proxy_asks_for_is_what_pid_1_reads() {
        let open = FromProxy::Open(Open {
            id: 7,
            generation: 1,
            name: "a.example".into(),
            endpoints: vec![
                "203.0.113.7:22".parse().unwrap(),
                "[2001:db8::7]:22".parse().unwrap(),
            ],
            seconds: 60,
        });
        let line = serde_json::to_string(&open).unwrap();
        assert_eq!(serde_json::from_str::<FromProxy>(&line).unwrap(), open);
    }

    #[test]
    fn an_allowlist_of_a_hundred_thousand_names_fits() {
        let allow = (0..100_000)
            .map(|n| format!("{}{n}.example", "x".repeat(230)))
            .collect();
        let start = ToProxy::Start(Box::new(Start { allow, ..start() }));
        assert!(crate::encode(&start, MAX_FRAME).is_ok());
    }
}
