//! Answers the guest's DNS questions: those about names that some rule could allow with what the
//! proxy's own resolver says, all others with a refusal that says so.
//!
//! Nothing of a refused question goes anywhere, since the name is the message of whoever leaks
//! through names. What is answered is flat (the name that was asked for, and addresses), holds no
//! address that the guard would not let the proxy dial, and no record type that carries text.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod question;
mod reply;
mod serve;
mod service;

use std::{net::SocketAddr, sync::Arc};

use hickory_resolver::proto::rr::{DNSClass, RData, RecordType, rdata};
use policy::{Decision, Denial, DenyReason, Destination, Host, HostName, NamePermit, PortRange};
use report::{Printable, Target, Transport};

pub(crate) use self::{
    question::name_in,
    serve::{converse, datagrams},
};
use self::{
    question::{Question, Unreadable},
    reply::{Reply, Said},
};
use crate::{proxy::Proxy, refusal::Failure, resolve::Records, ruling::Ruling, window};

/// What becomes of a message.
enum Step {
    /// It is answered with this.
    Answer(Vec<u8>),
    /// It is answered once somebody else was asked.
    Ask(Lookup),
    /// It is not answered: it is no question.
    Silence,
}

/// A question that may be asked of the resolver.
struct Lookup {
    question: Question,
    permit: NamePermit,
    /// By which it may, to the end.
    ruling: Arc<Ruling>,
    via: Transport,
}

/// Reads a message and judges it, without waiting for anybody.
fn consider(message: &[u8], via: Transport, proxy: &Proxy) -> Step {
    let question = match Question::read(message) {
        Ok(question) => question,
        Err(unreadable) => {
            let target = Target {
                port: Some(PORT),
                ..Target::default()
            };
            proxy
                .account
                .deny_over(via, target, DenyReason::Malformed, None);
            return match unreadable {
                Unreadable::Answer(answer) => Step::Answer(answer),
                Unreadable::Silence => Step::Silence,
            };
        }
    };
    let ruling = proxy.rulings.now();
    match judge(&question, &ruling, proxy) {
        Ok(permit) => Step::Ask(Lookup {
            question,
            permit,
            ruling,
            via,
        }),
        Err(reply) => Step::Answer(count_and_write(&reply, &question, via, proxy)),
    }
}

/// Decides on a question; what must not be asked comes with its answer.
fn judge(question: &Question, ruling: &Ruling, proxy: &Proxy) -> Result<NamePermit, Reply> {
    let kind = question.query.query_type();
    if kind == RecordType::PTR && question.is_reverse() {
        // Programs ask for the names of their peers' addresses unbidden: no attempt at anything.
        return Err(Reply::new(Said::NoSuchName));
    }
    let name = HostName::parse(&question.subject());
    if name.as_ref().is_ok_and(HostName::is_window) {
        return Err(window(kind));
    }
    let permit = name
        .as_ref()
        .ok()
        .and_then(|name| ruling.policy.decide_name(name));
    let Some(permit) = permit else {
        let nearest = name.ok().and_then(|name| nearest(name, ruling));
        let denial = Denial {
            reason: DenyReason::DnsNotAllowed,
            ..nearest.unwrap_or(Denial::new(DenyReason::DnsNotAllowed))
        };
        return Err(Reply::denied(Said::NoSuchName, denial));
    };
    if question.query.query_class() != DNSClass::IN || !ASKED_FOR.contains(&kind) {
        let reply = if ASKED_UNBIDDEN.contains(&kind) || question.is_for_service() {
            Reply::new(Said::NoData)
        } else {
            Reply::denied(Said::NoData, Denial::new(DenyReason::DnsTypeRefused))
        };
        return Err(reply);
    }
    if let Some(domain) = permit.below() {
        let admitted = proxy.fan_out.admit(domain, permit.name());
        admitted.map_err(|denial| Reply::denied(Said::NoSuchName, denial))?;
    }
    Ok(permit)
}

/// Where the guest's own window is: at addresses that are redirected to it and that nobody has.
fn window(kind: RecordType) -> Reply {
    let (v4, v6) = window::ADDRESSES;
    let mut data = vec![RData::A(rdata::A(v4)), RData::AAAA(rdata::AAAA(v6))];
    data.retain(|data| data.record_type() == kind);
    Reply::records(Records {
        data,
        ttl: WINDOW_STAYS,
    })
}

/// What a connection to the name would be told: the hint is worth having here already.
fn nearest(name: HostName, ruling: &Ruling) -> Option<Denial> {
    let host = Host::Name(name);
    match ruling.policy.decide(&Destination { host, port: 443 }) {
        Decision::Deny(denial) => Some(denial),
        Decision::Allow(_) => None,
    }
}

impl Lookup {
    /// Asks the resolver, and makes the answer usable before it is given.
    async fn resolve(self, proxy: &Proxy) -> Vec<u8> {
        let kind = self.question.query.query_type();
        let reply = match proxy.resolver.records(self.permit.name(), kind).await {
            Err(Failure::NoSuchName) => Reply::new(Said::NoSuchName),
            Err(failure) => Reply::failed(&failure.to_string()),
            Ok(records) if matches!(kind, RecordType::A | RecordType::AAAA) => {
                self.addresses(records, proxy).await
            }
            Ok(records) => Reply::records(service::disclosed(records, &self.question.query)),
        };
        count_and_write(&reply, &self.question, self.via, proxy)
    }

    /// The answer where as many questions as may be are being asked.
    fn give_up(&self, proxy: &Proxy) -> Vec<u8> {
        let reply = Reply::denied(Said::Failed, Denial::new(DenyReason::Limit));
        count_and_write(&reply, &self.question, self.via, proxy)
    }

    /// What the guest is told of these addresses, once it can reach those that need no name.
    async fn addresses(&self, records: Records, proxy: &Proxy) -> Reply {
        let is_v4 = self.question.query.query_type() == RecordType::A;
        let addresses: Vec<_> = records.data.iter().filter_map(RData::ip_addr).collect();
        let policy = &self.ruling.policy;
        let mut shown = match policy.check_answer(&self.permit, &addresses) {
            Ok(shown) => shown,
            Err(denial) => return Reply::denied(Said::NoData, denial),
        };
        shown.retain(|address| address.is_ipv4() == is_v4);
        if shown.is_empty() && !addresses.is_empty() {
            return Reply::denied(Said::NoData, Denial::new(DenyReason::PrivateAddress));
        }
        let ports = self.ruling.opaque_ports(&self.permit);
        if !ports.is_empty() {
            shown.truncate(SHOWN_AND_OPENED);
        }
        let endpoints = ports.iter().flat_map(|&port| {
            let host = Host::Name(self.permit.name().clone());
            // What may be dialled on this port, not on some other: the guard's word is final.
            let dialled = match policy.decide(&Destination { host, port }) {
                Decision::Allow(permit) => policy.check_addresses(&permit, &shown).ok(),
                Decision::Deny(_) => None,
            };
            let dialled = dialled.unwrap_or_default().into_iter();
            dialled.map(move |address| SocketAddr::new(address, port))
        });
        let lifetime = records.ttl.max(SHORTEST_OPENING);
        if proxy
            .openings
            .open(
                (self.permit.name(), self.ruling.generation),
                endpoints.collect(),
                lifetime,
            )
            .await
            .is_err()
        {
            return Reply::failed("the way to this name could not be opened");
        }
        let data = shown.into_iter().map(|address| match address {
            std::net::IpAddr::V4(address) => RData::A(rdata::A(address)),
            std::net::IpAddr::V6(address) => RData::AAAA(rdata::AAAA(address)),
        });
        Reply::records(Records {
            data: data.collect(),
            ttl: records.ttl,
        })
    }
}

impl Ruling {
    /// The ports on which the guest may reach this name's addresses without the proxy: those where
    /// nothing need be seen on the stream, and that nftables does not redirect.
    fn opaque_ports(&self, permit: &NamePermit) -> Vec<u16> {
        let narrow = |range: &PortRange| range.high() - range.low() < WIDEST_OPENING;
        let narrow = permit.opaque_ports().iter().copied().filter(narrow);
        narrow
            .flat_map(|range| range.low()..=range.high())
            .filter(|port| *port != PORT && !self.stream_ports.contains(port))
            .take(usize::from(WIDEST_OPENING))
            .collect()
    }
}

fn count_and_write(reply: &Reply, question: &Question, via: Transport, proxy: &Proxy) -> Vec<u8> {
    if let Some(reason) = reply.reason() {
        let target = Target {
            host: Some(Printable::new(&question.subject())),
            address: reply.address(),
            port: Some(PORT),
        };
        proxy.account.deny_over(via, target, reason, reply.hint());
    }
    reply.write(question, via)
}

/// For how long a client may remember where the window is, in seconds.
const WINDOW_STAYS: u32 = 60;
/// Where DNS is spoken.
const PORT: u16 = 53;
/// What is resolved: addresses, and how to speak with who is there.
const ASKED_FOR: [RecordType; 4] = [
    RecordType::A,
    RecordType::AAAA,
    RecordType::HTTPS,
    RecordType::SVCB,
];
/// What resolvers and validators ask on their own account. That there is none is no refusal of what
/// a program wanted; everything else that is not resolved carries what a name's owner likes, and who
/// asks for it is told no.
const ASKED_UNBIDDEN: [RecordType; 10] = [
    RecordType::NS,
    RecordType::SOA,
    RecordType::PTR,
    RecordType::DS,
    RecordType::DNSKEY,
    RecordType::RRSIG,
    RecordType::NSEC,
    RecordType::NSEC3,
    RecordType::NSEC3PARAM,
    RecordType::CAA,
];
/// A client that has just been told an address has at least a minute to dial it.
const SHORTEST_OPENING: u32 = 60;
/// Of a name with opaque ports, so many addresses are told and opened.
const SHOWN_AND_OPENED: usize = 16;
/// A wider range of ports is reached through the proxy alone.
const WIDEST_OPENING: u16 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// What a question is answered with before anybody is asked; `ask` if it would be.
    fn considered(list: &str, name: &str, kind: RecordType) -> (String, Vec<(String, DenyReason)>) {
        let proxy = Proxy::allowing(list);
        let step = consider(&question::asking(name, kind), Transport::Udp, &proxy);
        let said = match step {
            Step::Answer(answer) => reply::shown(&answer),
            Step::Ask(_) => "ask".to_owned(),
            Step::Silence => "silence".to_owned(),
        };
        (said, proxy.denials())
    }

    fn denied(name: &str, reason: DenyReason) -> Vec<(String, DenyReason)> {
        vec![(name.to_owned(), reason)]
    }

    #[test]
    fn only_names_that_some_rule_could_allow_are_asked_for() {
        let list = "a.example, *.b.example:22, c.example, !c.example";
        for asked in ["a.example.", "A.eXample.", "x.y.b.example."] {
            for kind in ASKED_FOR {
                let (said, denials) = considered(list, asked, kind);
                assert_eq!((said.as_str(), denials), ("ask", vec![]), "{asked} {kind}");
            }
        }
        for asked in [
            "b.example.",
            "c.example.",
            "secret.x.example.",
            "a.example.evil.",
        ] {
            for kind in [RecordType::A, RecordType::TXT, RecordType::HTTPS] {
                let (said, denials) = considered(list, asked, kind);
                assert!(said.starts_with("NXDomain"), "{asked}: {said}");
                let name = asked.trim_end_matches('.');
                assert_eq!(denials, denied(name, DenyReason::DnsNotAllowed));
            }
        }
    }

    #[test]
    fn what_no_list_can_name_is_refused_like_any_other_name() {
        for asked in [".", "10.0.0.1.", "*.a.example.", "0x7f.1."] {
            let (said, denials) = considered("a.example", asked, RecordType::A);
            assert!(said.starts_with("NXDomain"), "{asked}: {said}");
            assert!(
                matches!(denials[..], [(_, DenyReason::DnsNotAllowed)]),
                "{asked}"
            );
        }
    }

    #[test]
    fn types_that_carry_what_their_owner_likes_are_refused_and_those_asked_unbidden_are_not() {
        for (kind, counted) in [
            (RecordType::TXT, true),
            (RecordType::NULL, true),
            (RecordType::ANY, true),
            (RecordType::CNAME, true),
            (RecordType::MX, true),
            (RecordType::SRV, true),
            (RecordType::Unknown(65399), true),
            (RecordType::SOA, false),
            (RecordType::DS, false),
            (RecordType::PTR, false),
        ] {
            let (said, denials) = considered("a.example", "a.example.", kind);
            assert!(said.starts_with("NoError"), "{kind}: {said}");
            let expected = denied("a.example", DenyReason::DnsTypeRefused);
            assert_eq!(denials, if counted { expected } else { vec![] }, "{kind}");
        }
    }

    #[test]
    fn who_asks_for_a_host_s_service_is_told_of_none_and_judged_by_the_host() {
        let service = |name, kind| considered("a.example", name, kind);
        let (said, denials) = service("_http._tcp.a.example.", RecordType::SRV);
        assert!(said.starts_with("NoError"), "{said}");
        assert_eq!(denials, [], "it goes to the host itself next");
        let (said, denials) = service("_http._tcp.b.example.", RecordType::SRV);
        assert!(said.starts_with("NXDomain"), "{said}");
        assert_eq!(denials, denied("b.example", DenyReason::DnsNotAllowed));
        for (name, kind) in [
            ("_http._tcp.a.example", RecordType::A),
            ("_http.a.example", RecordType::SRV),
            ("_http._tcp", RecordType::SRV),
        ] {
            let (said, denials) = service(name, kind);
            assert!(said.starts_with("NXDomain"), "{name} {kind}: {said}");
            assert_eq!(denials, denied(name, DenyReason::DnsNotAllowed), "{kind}");
        }
    }

    #[test]
    fn the_window_has_addresses_that_nobody_has_and_is_never_asked_for() {
        let list = "egress.sandbox, *.egress.sandbox";
        for (kind, expected) in [
            (RecordType::A, "192.0.2.80"),
            (RecordType::AAAA, "100::80"),
            (RecordType::HTTPS, "NoError"),
            (RecordType::TXT, "NoError"),
        ] {
            let (said, denials) = considered(list, "Egress.sandbox.", kind);
            assert!(said.contains(expected), "{kind}: {said}");
            assert_eq!(denials, [], "{kind}");
        }
        let (said, _) = considered(list, "x.egress.sandbox.", RecordType::A);
        assert_eq!(said, "ask", "names below it are like any other");
    }

    #[test]
    fn a_reverse_lookup_finds_nothing_and_is_no_denial() {
        let v6 = format!("{}ip6.arpa.", "0.".repeat(32));
        for (asked, counted) in [
            ("9.113.0.203.in-addr.arpa.", false),
            (v6.as_str(), false),
            ("secret.9.113.0.203.in-addr.arpa.", true),
            ("113.0.203.in-addr.arpa.", true),
        ] {
            let (said, denials) = considered("a.example", asked, RecordType::PTR);
            assert!(said.starts_with("NXDomain"), "{asked}: {said}");
            assert_eq!(!denials.is_empty(), counted, "{asked}");
        }
    }

    #[test]
    fn names_below_a_wildcard_run_out() {
        let proxy = Proxy::allowing("*.a.example");
        for n in 0..512 {
            let asked = question::asking(&format!("n{n}.a.example."), RecordType::A);
            let step = consider(&asked, Transport::Udp, &proxy);
            assert!(matches!(step, Step::Ask(_)), "{n}");
        }
        let asked = question::asking("n512.a.example.", RecordType::A);
        let Step::Answer(answer) = consider(&asked, Transport::Udp, &proxy) else {
            panic!("asked for")
        };
        assert!(reply::shown(&answer).starts_with("NXDomain"));
        assert_eq!(proxy.denials(), denied("n512.a.example", DenyReason::Limit));
        // A type that is not asked for uses up nothing.
        let asked = question::asking("n513.a.example.", RecordType::SOA);
        let Step::Answer(answer) = consider(&asked, Transport::Udp, &proxy) else {
            panic!("asked for")
        };
        assert!(reply::shown(&answer).starts_with("NoError"));
    }

    #[test]
    fn a_message_that_cannot_be_read_is_malformed() {
        let proxy = Proxy::allowing("a.example");
        let step = consider(&[0; 5], Transport::Udp, &proxy);
        assert!(matches!(step, Step::Silence));
        assert_eq!(proxy.denials(), denied("", DenyReason::Malformed));
    }

    #[test]
    fn ports_that_need_no_name_and_are_not_redirected_are_opened() {
        for (list, ports) in [
            ("a.example", vec![]),
            ("a.example:22", vec![22]),
            ("a.example:443/tcp, a.example:53, a.example:22", vec![22]),
            ("a.example:8000-8002, b.example:8001/tls", vec![8000, 8002]),
            ("a.example:1000-1255", (1000..=1255).collect()),
            ("a.example:1000-1256", vec![]),
            ("a.example:*", vec![1]),
        ] {
            let proxy = Proxy::allowing(list);
            let name = HostName::parse("a.example").unwrap();
            let ruling = proxy.rulings.now();
            let permit = ruling.policy.decide_name(&name).unwrap();
            let opened = ruling.opaque_ports(&permit);
            // Of every port but 80 and 443, those between are too many.
            let expected = if list.ends_with('*') {
                (1..=79).filter(|port| *port != 53).collect()
            } else {
                ports
            };
            assert_eq!(opened, expected, "{list}");
        }
    }
}
