//! What PID 1 asked for, checked: only this is served.

use std::{io, net::SocketAddr};

use ipnet::IpNet;
use policy::{Policy, PolicyError};
use report::{RunClock, Seed, link::Start};
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::confine::UnforeseenCalls;

/// What the proxy serves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The allowlist, with the container's own addresses guarded.
    pub policy: Policy,
    /// Which list that is.
    pub generation: u64,
    /// Those addresses, to be guarded under the lists to come as well.
    pub guard: Vec<IpNet>,
    /// The run's time axis.
    pub clock: RunClock,
    /// The order in which refused targets are chosen to be named.
    pub seed: Seed,
    /// Connections at once.
    pub max_connections: usize,
    /// The resolvers to ask, in their order.
    pub resolvers: Vec<SocketAddr>,
    /// The HTTP proxy to dial through, as `host:port`.
    pub upstream_proxy: Option<String>,
    /// How the destination that a redirected connection was meant for is learnt.
    pub original_destination: OriginalDestination,
    /// What becomes of a system call that the filter does not list.
    pub unforeseen_calls: UnforeseenCalls,
}

/// Tells what a redirected connection was meant for.
pub type OriginalDestination = fn(&TcpStream) -> io::Result<SocketAddr>;

/// Why what PID 1 asked for cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The allowlist has a mistake.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The allowlist is not understood here as it is there.
    #[error(
        "the allowlist has digest {ours} here and {theirs} in PID 1: the two are of different versions"
    )]
    Digest {
        /// What this proxy makes of it.
        ours: String,
        /// What PID 1 makes of it.
        theirs: String,
    },
}

impl Settings {
    /// Reads the allowlist, and makes sure that PID 1 read the same.
    pub fn new(start: Start) -> Result<Self, SettingsError> {
        Ok(Self {
            policy: policy_of(&start.allow, &start.policy_digest, &start.guard)?,
            generation: start.generation,
            guard: start.guard,
            clock: RunClock::from_origin_ms(start.clock_origin_ms),
            seed: start.seed,
            max_connections: usize::try_from(start.max_connections).unwrap_or(usize::MAX),
            resolvers: start
                .resolvers
                .into_iter()
                .map(|address| SocketAddr::new(address, DNS_PORT))
                .collect(),
            upstream_proxy: start.upstream_proxy,
            original_destination,
            unforeseen_calls: UnforeseenCalls::Fail,
        })
    }
}

/// The list of these entries, if PID 1 reads it as it is read here.
pub(crate) fn policy_of(
    allow: &[String],
    digest: &str,
    guard: &[IpNet],
) -> Result<Policy, SettingsError> {
    let mut policy = Policy::from_entries(allow)?;
    let ours = policy.digest().to_string();
    if ours != digest {
        let theirs = digest.to_owned();
        return Err(SettingsError::Digest { ours, theirs });
    }
    policy.guard_also(guard);
    Ok(policy)
}

/// Asks the kernel's connection tracking, which knows what nftables rewrote (`SO_ORIGINAL_DST`).
fn original_destination(stream: &TcpStream) -> io::Result<SocketAddr> {
    let socket = SockRef::from(stream);
    let is_v4 = stream.local_addr()?.ip().to_canonical().is_ipv4();
    let address = if is_v4 {
        socket.original_dst_v4()
    } else {
        socket.original_dst_v6()
    };
    address?
        .as_socket()
        .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

const DNS_PORT: u16 = 53;

#[cfg(test)]
mod tests {
    use super::*;

    fn start(allow: &[&str], digest: &str) -> Start {
        Start {
            generation: 1,
            allow: allow.iter().map(ToString::to_string).collect(),
            policy_digest: digest.to_owned(),
            guard: vec!["203.0.113.7/32".parse().unwrap()],
            clock_origin_ms: 0,
            seed: Seed([0; 16]),
            max_connections: 7,
            resolvers: vec!["192.0.2.53".parse().unwrap()],
            upstream_proxy: None,
        }
    }

    #[test]
    fn an_allowlist_that_pid_1_reads_otherwise_is_not_served() {
        let error = Settings::new(start(&["a.example"], "00")).unwrap_err();
        assert!(matches!(error, SettingsError::Digest { .. }), "{error}");
        let ours = Policy::parse("a.example").unwrap().digest().to_string();
        let settings = Settings::new(start(&["a.example"], &ours)).unwrap();
        assert_eq!(settings.max_connections, 7);
        assert_eq!(settings.resolvers, ["192.0.2.53:53".parse().unwrap()]);
    }

    #[test]
    fn a_mistake_in_the_allowlist_is_named() {
        let error = Settings::new(start(&["a.example", "*"], "00")).unwrap_err();
        assert!(error.to_string().contains('*'), "{error}");
    }

    #[tokio::test]
    async fn a_connection_that_nobody_redirected_has_no_other_destination() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap();
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        let (guest, accepted) = tokio::join!(socket.connect(own), listener.accept());
        let _guest = guest.unwrap();
        // With connection tracking the kernel answers our own address, without it nothing.
        let answer = original_destination(&accepted.unwrap().0);
        assert!(
            answer.is_err() || answer.as_ref().is_ok_and(|address| *address == own),
            "{answer:?}"
        );
    }
}
