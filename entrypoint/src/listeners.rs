//! The sockets that the proxy serves, bound before it exists and kept while it may be restarted:
//! nobody else can take their ports.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
};

use report::link::Ingress;

use crate::failure::Failure;

/// Listening sockets, by kind.
#[derive(Debug)]
pub(crate) struct Listeners {
    explicit: Vec<TcpListener>,
    redirect4: TcpListener,
    redirect6: Option<TcpListener>,
    dns4: Dns,
    dns6: Option<Dns>,
}

/// Where names are asked for, over one family.
#[derive(Debug)]
struct Dns {
    udp: UdpSocket,
    tcp: TcpListener,
}

/// The ports of that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DnsPorts {
    /// Of datagrams.
    pub(crate) udp: u16,
    /// Of connections.
    pub(crate) tcp: u16,
}

impl Listeners {
    /// Binds all of them on loopback: `port` for clients that know of the proxy, ports of the
    /// kernel's choice for what is redirected.
    pub(crate) fn bind(port: u16) -> Result<Self, Failure> {
        let v4 = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let mut explicit = vec![listen(v4, port)?];
        explicit.extend(if_family_exists(listen(v6, port))?);
        Ok(Self {
            explicit,
            redirect4: listen(v4, 0)?,
            redirect6: if_family_exists(listen(v6, 0))?,
            dns4: Dns::bind(v4)?,
            dns6: if_family_exists(Dns::bind(v6))?,
        }
        .with_deep_backlog())
    }

    /// Where nftables sends IPv4.
    pub(crate) fn redirect4(&self) -> u16 {
        self.redirect4
            .local_addr()
            .map_or(0, |address| address.port())
    }

    /// Where nftables sends IPv6, where there is any.
    pub(crate) fn redirect6(&self) -> Option<u16> {
        Some(self.redirect6.as_ref()?.local_addr().ok()?.port())
    }

    /// Where nftables sends DNS over IPv4.
    pub(crate) fn dns4(&self) -> DnsPorts {
        self.dns4.ports()
    }

    /// The same over IPv6, where there is any.
    pub(crate) fn dns6(&self) -> Option<DnsPorts> {
        self.dns6.as_ref().map(Dns::ports)
    }

    /// Every socket with its kind, in the order in which they are handed over.
    pub(crate) fn all(&self) -> Vec<(Ingress, BorrowedFd<'_>)> {
        let explicit = self
            .explicit
            .iter()
            .map(|socket| (Ingress::Explicit, socket.as_fd()));
        let redirect = [Some(&self.redirect4), self.redirect6.as_ref()];
        let redirect = redirect
            .into_iter()
            .flatten()
            .map(|socket| (Ingress::Redirect, socket.as_fd()));
        let dns = [Some(&self.dns4), self.dns6.as_ref()];
        let dns = dns.into_iter().flatten().flat_map(|dns| {
            let tcp = (Ingress::Dns, dns.tcp.as_fd());
            [tcp, (Ingress::DnsUdp, dns.udp.as_fd())]
        });
        explicit.chain(redirect).chain(dns).collect()
    }

    /// What arrives while the proxy is being restarted waits, instead of being refused.
    fn with_deep_backlog(self) -> Self {
        for (_, socket) in self.all() {
            // Listening again only changes the backlog (listen(2)); with the old one it works too,
            // and a socket for datagrams refuses to.
            let _ = rustix::net::listen(socket, BACKLOG);
        }
        self
    }
}

impl Dns {
    fn bind(address: IpAddr) -> Result<Self, Refusal> {
        let at = SocketAddr::new(address, 0);
        let udp = UdpSocket::bind(at).map_err(|error| Refusal { address: at, error })?;
        let tcp = listen(address, 0)?;
        Ok(Self { udp, tcp })
    }

    fn ports(&self) -> DnsPorts {
        let port = |address: io::Result<SocketAddr>| address.map_or(0, |address| address.port());
        DnsPorts {
            udp: port(self.udp.local_addr()),
            tcp: port(self.tcp.local_addr()),
        }
    }
}

/// Refusals name the address, so that the port to change is known.
fn listen(address: IpAddr, port: u16) -> Result<TcpListener, Refusal> {
    let address = SocketAddr::new(address, port);
    TcpListener::bind(address).map_err(|error| Refusal { address, error })
}

struct Refusal {
    address: SocketAddr,
    error: io::Error,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let Refusal { address, error } = refusal;
        let cause = format!("{address}: {error}");
        Self::setup("listen", cause, "choose another SANDBOX_PROXY_PORT")
    }
}

fn if_family_exists<T>(result: Result<T, Refusal>) -> Result<Option<T>, Refusal> {
    let absent = [
        rustix::io::Errno::ADDRNOTAVAIL,
        rustix::io::Errno::AFNOSUPPORT,
    ];
    match result {
        Ok(bound) => Ok(Some(bound)),
        Err(refusal)
            if refusal
                .error
                .raw_os_error()
                .is_some_and(|code| absent.iter().any(|errno| errno.raw_os_error() == code)) =>
        {
            Ok(None)
        }
        Err(refusal) => Err(refusal),
    }
}

const BACKLOG: i32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_named() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let line = Listeners::bind(port).unwrap_err().one_line();
        assert!(line.contains(&format!("127.0.0.1:{port}")), "{line}");
        assert!(line.contains("SANDBOX_PROXY_PORT"), "{line}");
    }

    #[test]
    fn every_listener_is_of_loopback_alone() {
        let listeners = Listeners::on_any_port();
        let sockets = listeners.explicit.iter().chain([&listeners.redirect4]);
        for socket in sockets.chain(&listeners.redirect6) {
            assert!(socket.local_addr().unwrap().ip().is_loopback());
        }
        for dns in [Some(&listeners.dns4), listeners.dns6.as_ref()]
            .into_iter()
            .flatten()
        {
            assert!(dns.udp.local_addr().unwrap().ip().is_loopback());
            assert!(dns.tcp.local_addr().unwrap().ip().is_loopback());
        }
    }

    #[test]
    fn a_socket_is_handed_over_as_what_it_is() {
        let listeners = Listeners::on_any_port();
        for (kind, socket) in listeners.all() {
            let accepts = rustix::net::sockopt::socket_acceptconn(socket).unwrap();
            assert_eq!(accepts, kind != Ingress::DnsUdp, "{kind:?}");
        }
    }

    impl Listeners {
        /// A port that was free a moment ago may be another program's by now: another is tried.
        pub(crate) fn on_any_port() -> Self {
            let attempt = |_| {
                let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                let port = free.local_addr().unwrap().port();
                drop(free);
                Self::bind(port).ok()
            };
            (0..100).find_map(attempt).unwrap()
        }
    }

    #[test]
    fn what_is_redirected_arrives_elsewhere_than_what_is_asked() {
        let listeners = Listeners::on_any_port();
        let explicit: Vec<_> = listeners
            .explicit
            .iter()
            .map(|socket| socket.local_addr().unwrap().port())
            .collect();
        assert!(!explicit.contains(&listeners.redirect4()));
        assert_ne!(listeners.redirect4(), 0);
    }

    #[test]
    fn every_kind_is_handed_over() {
        let listeners = Listeners::on_any_port();
        let kinds: Vec<_> = listeners.all().iter().map(|(kind, _)| *kind).collect();
        for kind in [
            Ingress::Explicit,
            Ingress::Redirect,
            Ingress::Dns,
            Ingress::DnsUdp,
        ] {
            assert!(kinds.contains(&kind), "{kind:?} of {kinds:?}");
        }
    }
}
