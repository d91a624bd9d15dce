//! What every connection works with: the policy, the way out, and the account.

use std::{net::SocketAddr, sync::Arc};

use policy::{Decision, Denial, DenyReason, Destination, Host, HostName, Permit, StreamKind};
use report::Transport;
use tokio::{net::TcpStream, time::timeout};

use crate::{
    account::Account,
    dial::{self, Checked},
    fan_out::FanOut,
    openings::Openings,
    refusal::{Failure, Refusal, Refused},
    relay::Spares,
    resolve::Resolver,
    ruling::Rulings,
    upstream::Upstream,
};

/// What every connection works with.
pub(crate) struct Proxy {
    pub(crate) rulings: Rulings,
    pub(crate) resolver: Resolver,
    pub(crate) upstream: Option<Upstream>,
    pub(crate) account: Arc<Account>,
    pub(crate) spares: Spares,
    pub(crate) fan_out: FanOut,
    pub(crate) openings: Openings,
}

impl Proxy {
    /// May a client go there?
    pub(crate) fn decide(&self, destination: &Destination) -> Result<Permit, Denial> {
        match self.rulings.now().policy.decide(destination) {
            Decision::Allow(permit) => {
                if let (Some(domain), Host::Name(name)) = (permit.below(), &destination.host) {
                    self.fan_out.admit(domain, name)?;
                }
                Ok(permit)
            }
            Decision::Deny(denial) => Err(denial),
        }
    }

    /// What [`Proxy::decide`] would say, for somebody who only wants to know: nothing is used up.
    pub(crate) fn why(&self, destination: &Destination) -> Result<Permit, Denial> {
        match self.rulings.now().policy.decide(destination) {
            Decision::Allow(permit) => {
                if let (Some(domain), Host::Name(name)) = (permit.below(), &destination.host) {
                    self.fan_out.check(domain, name)?;
                }
                Ok(permit)
            }
            Decision::Deny(denial) => Err(denial),
        }
    }

    /// May a client that was redirected go on: to what it named on its stream, or else to the
    /// address that it dialled? A deny rule for either is final.
    pub(crate) fn decide_redirected(
        &self,
        named: Option<&HostName>,
        dialled: SocketAddr,
    ) -> Result<Permit, Denial> {
        let refused = match named {
            None => Denial::new(DenyReason::NoName),
            Some(name) => match self.decide(&Destination {
                host: Host::Name(name.clone()),
                port: dialled.port(),
            }) {
                Ok(permit) => return Ok(permit),
                Err(denial) if denial.reason == DenyReason::DeniedByRule => return Err(denial),
                Err(denial) => denial,
            },
        };
        self.decide(&by_address(dialled)).map_err(|denial| {
            if denial.reason == DenyReason::DeniedByRule {
                denial
            } else {
                refused
            }
        })
    }

    /// Connects to what was permitted: resolves it once, has the guard judge every answer, dials
    /// those addresses. 10 s in all.
    pub(crate) async fn reach(&self, permit: &Permit) -> Result<TcpStream, Refusal> {
        let reaching = async {
            if let Some(upstream) = &self.upstream {
                return Ok(upstream.connect(permit.destination()).await?);
            }
            let answers = self.resolver.resolve(&permit.destination().host).await?;
            let ruling = self.rulings.now();
            // Another list may be in force by now, and the guard's word must be of the same.
            let permit = match ruling.policy.decide(permit.destination()) {
                Decision::Allow(permit) => permit,
                Decision::Deny(denial) => return Err(denial.into()),
            };
            let checked = Checked::new(&ruling.policy, &permit, &answers)?;
            Ok(dial::connect(&checked).await?)
        };
        let late = || Failure::ConnectionTimeout(dial::PATIENCE);
        // Boxed: a tunnel that is open must not hold the room for this.
        timeout(dial::PATIENCE, Box::pin(reaching))
            .await
            .unwrap_or_else(|_| Err(late().into()))
    }

    /// Counts an attempt that goes no further.
    pub(crate) fn record(&self, refused: &Refused) {
        let mut target = refused.target.clone();
        target.address = target.address.or(refused.refusal.address());
        if let Some(reason) = refused.refusal.reason() {
            let hint = refused.refusal.hint();
            return self.account.deny_over(Transport::Tcp, target, reason, hint);
        }
        self.account.allow(target.clone());
        self.account.fail(target);
    }
}

/// The destination that is an address and nothing else.
pub(crate) fn by_address(address: SocketAddr) -> Destination {
    Destination {
        host: Host::Address(address.ip().to_canonical()),
        port: address.port(),
    }
}

/// Whether the entry lets through a stream of this kind.
pub(crate) fn require(permit: &Permit, seen: StreamKind) -> Result<(), Denial> {
    if permit.kinds().is_opaque() || permit.kinds().contains(seen) {
        Ok(())
    } else {
        Err(other_kind(permit))
    }
}

/// The denial of a stream that is of none of the kinds that the entry lets through.
pub(crate) fn other_kind(permit: &Permit) -> Denial {
    let wants_tls = permit.kinds().contains(StreamKind::Tls);
    let (reason, kind) = if wants_tls {
        (DenyReason::NotTls, "TLS")
    } else {
        (DenyReason::NotHttp, "HTTP")
    };
    let hint = format!(
        "`{}` lets {kind} through; add `{}/tcp` for any stream",
        permit.rule(),
        permit.destination()
    );
    Denial {
        hint: Some(hint),
        nearest: Some(permit.rule().to_owned()),
        ..Denial::new(reason)
    }
}

#[cfg(any(test, fuzzing))]
#[expect(clippy::unwrap_used, reason = "only tests and fuzzers have it")]
impl Proxy {
    /// A proxy with this allowlist, and no resolver.
    pub(crate) fn allowing(list: &str) -> Self {
        Self {
            rulings: Rulings::new(
                crate::ruling::Ruling::new(1, policy::Policy::parse(list).unwrap()),
                Vec::new(),
            ),
            resolver: Resolver::new(&[]).unwrap(),
            upstream: None,
            account: Arc::new(Account::new(
                report::RunClock::start(),
                report::Seed([0; 16]),
            )),
            spares: Spares::default(),
            fan_out: FanOut::default(),
            openings: Openings::default(),
        }
    }

    /// What was refused so far, as `(target, reason)`.
    pub(crate) fn denials(&self) -> Vec<(String, DenyReason)> {
        let denied = self.account.take().0.denied.into_iter();
        let shown = |target: &report::Target| {
            let address = target.address.map(|address| address.to_string());
            target
                .host
                .as_ref()
                .map(ToString::to_string)
                .or(address)
                .unwrap_or_default()
        };
        let mut denials: Vec<_> = denied
            .map(|denied| (shown(&denied.target), denied.reason))
            .collect();
        denials.sort();
        denials
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIALLED: &str = "203.0.113.9:443";

    fn redirected(list: &str, name: Option<&str>) -> Result<String, DenyReason> {
        let name = name.map(|name| HostName::parse(name).unwrap());
        let permit =
            Proxy::allowing(list).decide_redirected(name.as_ref(), DIALLED.parse().unwrap());
        permit
            .map(|permit| permit.destination().to_string())
            .map_err(|denial| denial.reason)
    }

    fn permit(list: &str, host: &str, port: u16) -> Permit {
        Proxy::allowing(list)
            .decide(&Destination::parse(host, port).unwrap())
            .unwrap()
    }

    #[test]
    fn a_name_that_is_allowed_is_where_it_goes_whatever_was_dialled() {
        assert_eq!(
            redirected("a.example", Some("a.example")),
            Ok("a.example:443".to_owned())
        );
        let both = "a.example, 203.0.113.0/24";
        assert_eq!(
            redirected(both, Some("a.example")),
            Ok("a.example:443".to_owned())
        );
    }

    #[test]
    fn a_name_that_is_not_allowed_keeps_its_reason() {
        assert_eq!(
            redirected("a.example", Some("b.example")),
            Err(DenyReason::NotAllowed)
        );
        assert_eq!(
            redirected("b.example:22", Some("b.example")),
            Err(DenyReason::PortNotAllowed)
        );
    }

    #[test]
    fn an_address_rule_stands_in_for_a_name_that_is_not_allowed() {
        let dialled = Ok(DIALLED.to_owned());
        assert_eq!(redirected("203.0.113.0/24", Some("b.example")), dialled);
        assert_eq!(redirected("203.0.113.0/24", None), dialled);
    }

    #[test]
    fn a_deny_rule_for_the_name_or_the_address_is_final() {
        let name = "203.0.113.0/24, !b.example";
        assert_eq!(
            redirected(name, Some("b.example")),
            Err(DenyReason::DeniedByRule)
        );
        let address = "203.0.113.0/24, !203.0.113.9";
        assert_eq!(
            redirected(address, Some("b.example")),
            Err(DenyReason::DeniedByRule)
        );
        assert_eq!(redirected(address, None), Err(DenyReason::DeniedByRule));
    }

    #[test]
    fn names_below_a_wildcard_run_out_for_connections_too() {
        let proxy = Proxy::allowing("*.a.example, z.a.example");
        let decide = |label: &str| {
            let host = format!("{label}.a.example");
            let permit = proxy.decide(&Destination::parse(&host, 443).unwrap());
            permit.map(drop).map_err(|denial| denial.reason)
        };
        for n in 0..512 {
            assert_eq!(decide(&format!("n{n}")), Ok(()));
        }
        assert_eq!(decide("one-more"), Err(DenyReason::Limit));
        // Those that an entry names are not counted, and those that were used stay.
        assert_eq!((decide("z"), decide("n0")), (Ok(()), Ok(())));
    }

    #[test]
    fn a_stream_without_a_name_has_none() {
        assert_eq!(redirected("a.example", None), Err(DenyReason::NoName));
    }

    #[test]
    fn a_stream_of_another_kind_is_refused_with_what_would_allow_it() {
        let tls = permit("a.example", "a.example", 443);
        assert!(require(&tls, StreamKind::Tls).is_ok());
        let denial = require(&tls, StreamKind::Http).unwrap_err();
        assert_eq!(denial.reason, DenyReason::NotTls);
        assert!(denial.hint.unwrap().contains("`a.example:443/tcp`"));
        let http = permit("a.example", "a.example", 80);
        assert_eq!(
            require(&http, StreamKind::Tls).unwrap_err().reason,
            DenyReason::NotHttp
        );
    }

    #[test]
    fn an_opaque_entry_lets_any_stream_through() {
        let opaque = permit("a.example:22", "a.example", 22);
        assert!(
            require(&opaque, StreamKind::Tls).is_ok() && require(&opaque, StreamKind::Http).is_ok()
        );
    }

    #[test]
    fn a_mapped_address_is_the_address_that_it_maps() {
        let mapped = by_address("[::ffff:203.0.113.9]:443".parse().unwrap());
        assert_eq!(mapped, by_address(DIALLED.parse().unwrap()));
    }

    #[tokio::test]
    async fn a_failure_counts_as_let_through_and_failed() {
        let proxy = Proxy::allowing("a.example");
        let target = report::Target::default();
        proxy.record(&Refused {
            target,
            refusal: Failure::ConnectionRefused.into(),
        });
        let allowed = proxy.account.take().0.allowed.pop().unwrap();
        assert_eq!((allowed.connections, allowed.failures), (1, 1));
        assert_eq!(proxy.denials(), []);
    }

    #[tokio::test]
    async fn a_guarded_address_is_not_dialled() {
        let proxy = Proxy::allowing("localhost:7");
        let permit = proxy
            .decide(&Destination::parse("localhost", 7).unwrap())
            .unwrap();
        let refusal = proxy.reach(&permit).await.unwrap_err();
        assert_eq!(refusal.reason(), Some(DenyReason::PrivateAddress));
        assert!(
            refusal
                .address()
                .is_some_and(|address| address.is_loopback())
        );
    }

    #[test]
    fn what_a_name_resolved_to_is_in_the_record_where_that_is_why_it_was_refused() {
        let proxy = Proxy::allowing("a.example");
        let inward = "10.1.2.3".parse().ok();
        for address in [inward, None] {
            let denial = Denial {
                address,
                ..Denial::new(DenyReason::PrivateAddress)
            };
            proxy.record(&Refused::new(report::Target::default(), denial));
        }
        let denied = proxy.account.take().0.denied.into_iter();
        let mut recorded: Vec<_> = denied.map(|denied| denied.target.address).collect();
        recorded.sort();
        assert_eq!(recorded, [None, inward]);
    }

    #[tokio::test]
    async fn a_name_that_no_resolver_knows_is_a_failure() {
        let proxy = Proxy::allowing("a.example");
        let permit = proxy
            .decide(&Destination::parse("a.example", 443).unwrap())
            .unwrap();
        let refusal = proxy.reach(&permit).await.unwrap_err();
        assert_eq!(refusal.reason(), None, "{refusal:?}");
    }

    fn succeed(proxy: &Proxy, list: &str) {
        let policy = policy::Policy::parse(list).unwrap();
        proxy.rulings.succeed(&report::link::Succession {
            generation: 2,
            allow: policy.entries(),
            policy_digest: policy.digest().to_string(),
        });
    }

    #[tokio::test]
    async fn what_an_earlier_list_permitted_is_not_dialled_any_more() {
        let proxy = Proxy::allowing("127.0.0.1:9");
        let to = Destination::parse("127.0.0.1", 9).unwrap();
        let permit = proxy.decide(&to).unwrap();
        succeed(&proxy, "b.example");
        let refusal = proxy.reach(&permit).await.unwrap_err();
        assert_eq!(refusal.reason(), Some(DenyReason::AddressLiteral));
    }

    #[test]
    fn names_that_a_wildcard_allowed_stay_counted_under_another_list() {
        let proxy = Proxy::allowing("*.example.com");
        let names = |range: std::ops::Range<u32>| {
            let proxy = &proxy;
            range.map(move |n| {
                let host = format!("n{n}.example.com");
                let to = Destination::parse(&host, 443).unwrap();
                proxy.decide(&to).is_ok()
            })
        };
        assert!(names(0..512).all(|is_allowed| is_allowed));
        succeed(&proxy, "*.example.com, b.example");
        assert!(names(0..512).all(|is_allowed| is_allowed));
        assert!(!names(512..513).any(|is_allowed| is_allowed));
    }
}
