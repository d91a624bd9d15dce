//! The policy: a list of entries, read once and then asked.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::builder::{Builder, Full};
use crate::decision::{Decision, Denial, Permit};
use crate::digest::Digest;
use crate::entry::{Effect, Terms};
use crate::error::PolicyError;
use crate::fault::{ErrorCode, Fault};
use crate::filter::NameRule;
use crate::host::Destination;
use crate::name::HostName;
use crate::naming::NamePermit;
use crate::packet::{self, AddressRule};
use crate::reason::DenyReason;
use crate::rule::RuleId;
use crate::rules::Rules;
use crate::similar::Similar;
use crate::stream::StreamKind;
use crate::verdict::{Outcome, Verdict};
use crate::warning::{self, Warning};
use crate::{filter, grammar, guard, hint, list, naming, net, window};

/// Which destinations are allowed.
///
/// The answer depends on the entries alone: not on their order, not on repetition, not on what was
/// asked before. Cloning is cheap.
#[derive(Clone)]
pub struct Policy {
    rules: Arc<Rules>,
    similar: Arc<Similar>,
    warnings: Arc<[Warning]>,
    digest: Digest,
    own: Vec<IpNet>,
}

impl Policy {
    /// Reads entries separated by commas or line ends; `#` starts a comment.
    ///
    /// # Errors
    /// The first entry that is not one, or `empty` if there is none.
    pub fn parse(list: &str) -> Result<Self, PolicyError> {
        Self::from_entries([list])
    }

    /// Reads entries, each of which may itself be a list as [`Policy::parse`] takes it.
    pub fn from_entries<I, S>(entries: I) -> Result<Self, PolicyError>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<str>,
    {
        let mut builder = Builder::default();
        let mut position = 0;
        for item in entries {
            for text in list::entries(item.as_ref()) {
                position += 1;
                let entry = grammar::parse(text)
                    .map_err(|fault| PolicyError::in_entry(text, position, fault))?;
                builder
                    .push(&entry)
                    .map_err(|Full| PolicyError::in_entry(text, position, too_many()))?;
            }
        }
        let rules = builder.finish().ok_or_else(PolicyError::empty_list)?;
        Ok(Self {
            similar: Arc::new(Similar::new(&rules)),
            warnings: warning::find(&rules).into(),
            digest: Digest::of(rules.text()),
            rules: Arc::new(rules),
            own: Vec::new(),
        })
    }

    /// May a client go there?
    ///
    /// A deny wins over every allow. It takes a hash lookup for each label of the name, whatever
    /// the number of entries, and a permit allocates nothing.
    pub fn decide(&self, to: &Destination) -> Decision {
        if to.host.is_window() {
            return Decision::Deny(window::denial());
        }
        let rules = &self.rules;
        match Verdict::of(rules.covering(&to.host), to.port).outcome() {
            Outcome::Allowed(rule, kinds) => {
                Decision::Allow(Permit::new(to.clone(), Arc::clone(rules), rule, kinds))
            }
            Outcome::Denied(rule) => Decision::Deny(hint::denied_by_rule(rules, rule)),
            Outcome::Elsewhere(rule) => Decision::Deny(hint::port_not_allowed(rules, rule, to)),
            Outcome::Unknown => Decision::Deny(hint::not_allowed(rules, &self.similar, to)),
        }
    }

    /// May this name be resolved: does some entry allow it on some port, denies taken off?
    ///
    /// Like [`Policy::decide`] it takes a hash lookup for each label, whatever the number of entries.
    #[must_use]
    pub fn decide_name(&self, name: &HostName) -> Option<NamePermit> {
        if name.is_window() {
            return None;
        }
        naming::decide(&self.rules, name)
    }

    /// Of the addresses that a name resolved to, those that somebody who asks may be told, in the
    /// same order and v4-mapped ones as IPv4: what no entry about the name would let be dialled on
    /// any port is left out. None in, none out.
    ///
    /// # Errors
    /// If there are addresses and none may be told: `private_address`, with one of them for the
    /// record. The hint does not name it: it is the guest that would read it.
    pub fn check_answer(
        &self,
        permit: &NamePermit,
        addresses: &[IpAddr],
    ) -> Result<Vec<IpAddr>, Denial> {
        let lifted = naming::lifted(&self.rules, permit.name());
        let is_lifted = |address: &IpAddr| lifted.iter().any(|range| range.contains(address));
        let canonical = addresses.iter().map(IpAddr::to_canonical);
        let told: Vec<IpAddr> = canonical
            .filter(|address| !self.is_guarded(*address) || is_lifted(address))
            .filter(|address| !naming::is_denied(&self.rules, *address))
            .collect();
        match addresses.first() {
            Some(address) if told.is_empty() => Err(Denial {
                address: Some(address.to_canonical()),
                ..Denial::new(DenyReason::PrivateAddress)
            }),
            Some(_) | None => Ok(told),
        }
    }

    /// Of the addresses that a permitted host resolved to, those that may be dialled, in the same
    /// order and v4-mapped ones as IPv4.
    ///
    /// None in, none out: a name without addresses is a failure of the network, not a denial.
    ///
    /// # Errors
    /// If there are addresses and none may be dialled: `private_address`, or `denied_by_rule` where
    /// deny entries alone took them away.
    pub fn check_addresses(
        &self,
        permit: &Permit,
        addresses: &[IpAddr],
    ) -> Result<Vec<IpAddr>, Denial> {
        let to = permit.destination();
        let lifted = self.lifted_for(to);
        let mut allowed = Vec::with_capacity(addresses.len());
        let (mut guarded, mut denied) = (None, None);
        for address in addresses.iter().map(IpAddr::to_canonical) {
            if let Some(rule) = self.denied_address(permit, address) {
                denied.get_or_insert((rule, address));
            } else if self.is_guarded(address)
                && !lifted.iter().any(|range| range.contains(&address))
            {
                guarded.get_or_insert(address);
            } else {
                allowed.push(address);
            }
        }
        match (allowed.is_empty(), guarded, denied) {
            (true, Some(address), _) => Err(hint::private_address(permit.rule(), to, address)),
            (true, None, Some((rule, address))) => {
                Err(hint::denied_address(&self.rules, rule, to, address))
            }
            _ => Ok(allowed),
        }
    }

    /// Guards these as well: the container's own addresses and its gateways, which may be public
    /// ones. An entry that names a range lifts it there like anywhere else.
    pub fn guard_also(&mut self, nets: &[IpNet]) {
        self.own
            .extend(nets.iter().map(|range| net::canonical(range.trunc())));
    }

    /// The policy's identity. What [`Policy::guard_also`] added is not part of it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The canonical, sorted, deduplicated entries, from which [`Policy::from_entries`] makes the
    /// same policy.
    #[must_use]
    pub fn entries(&self) -> Vec<String> {
        self.spellings().map(str::to_owned).collect()
    }

    /// [`Policy::entries`], one by one.
    pub fn spellings(&self) -> impl Iterator<Item = &str> {
        self.rules.text().lines()
    }

    /// What is odd about the list, in the order of the entries.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The ports whose streams are to be looked into: 80, 443, and those that an entry names as
    /// `tls` or `http`, one by one or in a range of at most 256.
    #[must_use]
    pub fn stream_ports(&self) -> BTreeSet<u16> {
        let named = self
            .rules
            .iter()
            .map(|(_, rule)| rule.terms)
            .filter(|terms| terms.effect == Effect::Allow)
            .filter(|terms| matches!(terms.kind, Some(StreamKind::Tls | StreamKind::Http)))
            .filter_map(|terms| terms.ports)
            .filter(|ports| ports.high() - ports.low() < WIDEST_STREAM_RANGE)
            .flat_map(|ports| ports.low()..=ports.high());
        [80, 443].into_iter().chain(named).collect()
    }

    /// Whether some entry allows `port` of some host for any stream, as SSH needs it.
    #[must_use]
    pub fn opens(&self, port: u16) -> bool {
        let allows = |terms: Terms| {
            terms.effect == Effect::Allow
                && matches!(terms.kind, None | Some(StreamKind::Tcp))
                && terms.ports.is_some_and(|ports| ports.contains(port))
        };
        self.rules.iter().any(|(_, rule)| allows(rule.terms))
    }

    /// What the address entries allow, less what is denied, as pieces that do not overlap: for a
    /// packet filter, which knows no order and no exception.
    #[must_use]
    pub fn address_rules(&self) -> Vec<AddressRule> {
        packet::address_rules(&self.rules)
    }

    /// The ranges in which the guard is lifted for some destination, by an address entry or by
    /// `name@range`, as ranges that do not overlap.
    #[must_use]
    pub fn lifted_ranges(&self) -> Vec<IpNet> {
        packet::lifted_ranges(&self.rules)
    }

    /// The names that the list spells out, with what may be opened to them where addresses decide.
    #[must_use]
    pub fn name_rules(&self) -> Vec<NameRule> {
        filter::name_rules(&self.rules)
    }

    /// The entries that allow names which nobody can know beforehand: where addresses decide, they
    /// allow nothing.
    pub fn wildcards(&self) -> impl Iterator<Item = &str> {
        filter::wildcards(&self.rules)
    }

    /// What may be opened where the name of `rule` resolved to `addresses`: no guarded one that no
    /// entry about the name lifts, none that is denied altogether, v4-mapped ones as IPv4. What is
    /// denied on some of the ports is left to [`Policy::denied_addresses`].
    #[must_use]
    pub fn openings(&self, rule: &NameRule, addresses: &[IpAddr]) -> Vec<AddressRule> {
        let canonical = addresses.iter().map(IpAddr::to_canonical);
        let open = canonical.flat_map(|address| rule.openings(address, self.is_guarded(address)));
        open.filter(|opening| !packet::is_denied(&self.rules, *opening))
            .collect()
    }

    /// What address entries deny: for a packet filter, which must refuse it before it opens anything
    /// to a name.
    #[must_use]
    pub fn denied_addresses(&self) -> Vec<AddressRule> {
        packet::denied(&self.rules)
    }

    /// The number of entries, repeated ones counted once.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Never true: a list with nothing in it is refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ranges that the entries behind a permit open for this destination.
    fn lifted_for(&self, to: &Destination) -> Vec<IpNet> {
        self.rules
            .covering(&to.host)
            .filter(|(_, rule)| {
                rule.terms.effect == Effect::Allow && !rule.terms.kinds_on(to.port).is_empty()
            })
            .filter_map(|(_, rule)| rule.range)
            .collect()
    }

    /// The address entry that denies what the permit allows, if the host turns out to be there.
    fn denied_address(&self, permit: &Permit, address: IpAddr) -> Option<RuleId> {
        let port = permit.destination().port;
        self.rules
            .covering_net(net::of_address(address))
            .filter(|(_, rule)| rule.terms.effect == Effect::Deny)
            .find(|(_, rule)| permit.kinds().without(rule.terms.kinds_on(port)).is_empty())
            .map(|(id, _)| id)
    }

    fn is_guarded(&self, address: IpAddr) -> bool {
        guard::is_guarded(address).is_some()
            || self.own.iter().any(|range| range.contains(&address))
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("digest", &format_args!("{}", self.digest))
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

fn too_many() -> Fault {
    Fault::new(
        ErrorCode::TooLong,
        format!("a list has at most {} entries", Builder::CAPACITY),
    )
}

/// A wider range of ports is no service that is known to speak TLS, but a slip or a sweep.
const WIDEST_STREAM_RANGE: u16 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn permit(policy: &Policy, host: &str, port: u16) -> Permit {
        match policy.decide(&Destination::parse(host, port).unwrap()) {
            Decision::Allow(permit) => permit,
            Decision::Deny(denial) => panic!("{host}:{port}: {denial:?}"),
        }
    }

    /// What is left of some addresses, or the reason why nothing is.
    fn checked(policy: &Policy, host: &str, addresses: &[&str]) -> Result<String, String> {
        let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        match policy.check_addresses(&permit(policy, host, 443), &addresses) {
            Ok(left) => Ok(left
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(" ")),
            Err(denial) => Err(denial.reason.to_string()),
        }
    }

    #[test]
    fn a_list_with_nothing_in_it_is_refused() {
        for list in ["", " , \n,, ", "# all of it\n"] {
            assert_eq!(
                Policy::parse(list).unwrap_err().code,
                ErrorCode::Empty,
                "{list:?}"
            );
        }
        assert_eq!(
            Policy::from_entries::<_, &str>([]).unwrap_err().code,
            ErrorCode::Empty
        );
    }

    #[test]
    fn an_error_counts_the_entries_before_it() {
        let error =
            Policy::from_entries(["a.example,,b.example", "# c\n\nd.example\r\n*"]).unwrap_err();
        assert_eq!((error.position, error.entry.as_str()), (4, "*"));
    }

    #[test]
    fn equal_lists_have_equal_digests() {
        let policy = Policy::parse("b.example, A.example.,a.example:443/tls").unwrap();
        assert_eq!(
            policy.entries(),
            ["a.example", "a.example:443", "b.example"]
        );
        assert_eq!(policy.len(), 3);
        let same = Policy::parse("a.example:443\nb.example\na.example\na.example").unwrap();
        assert_eq!(policy.digest(), same.digest());
        assert_eq!(
            policy.digest(),
            Digest::of("a.example\na.example:443\nb.example\n")
        );
        assert_ne!(
            policy.digest(),
            Policy::parse("a.example").unwrap().digest()
        );
    }

    #[test]
    fn guarded_addresses_are_removed() {
        let policy = Policy::parse("a.example").unwrap();
        for (addresses, left) in [
            (
                vec!["8.8.8.8", "10.0.0.1", "2606:4700::1"],
                Ok("8.8.8.8 2606:4700::1"),
            ),
            (vec!["::ffff:8.8.8.8"], Ok("8.8.8.8")),
            (vec!["10.0.0.1", "127.0.0.1"], Err("private_address")),
            (vec!["64:ff9b::a00:1"], Err("private_address")),
            (vec![], Ok("")),
        ] {
            let left = left.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(
                checked(&policy, "a.example", &addresses),
                left,
                "{addresses:?}"
            );
        }
    }

    #[test]
    fn the_guard_is_lifted_only_for_the_name_the_port_and_the_range() {
        let policy = Policy::parse(
            "a.example@10.0.0.0/8,b.example,*.c.example,d.c.example:22@10.0.0.0/8,10.9.9.9",
        )
        .unwrap();
        for (host, addresses, left) in [
            (
                "a.example",
                vec!["10.1.2.3", "::ffff:10.1.2.4"],
                Ok("10.1.2.3 10.1.2.4"),
            ),
            ("a.example", vec!["192.168.0.1"], Err("private_address")),
            ("b.example", vec!["10.1.2.3"], Err("private_address")),
            // An address entry is for clients that name the address.
            ("b.example", vec!["10.9.9.9"], Err("private_address")),
            ("10.9.9.9", vec!["10.9.9.9"], Ok("10.9.9.9")),
            ("d.c.example", vec!["10.1.2.3"], Err("private_address")),
        ] {
            let left = left.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(
                checked(&policy, host, &addresses),
                left,
                "{host} at {addresses:?}"
            );
        }
    }

    #[test]
    fn a_denied_range_holds_for_names_as_well() {
        let policy =
            Policy::parse("a.example@10.0.0.0/8,!10.1.0.0/16,!8.8.8.0/24:443,!9.9.9.9:22").unwrap();
        for (addresses, left) in [
            (
                vec!["10.1.2.3", "10.2.2.3", "8.8.8.8", "9.9.9.9"],
                Ok("10.2.2.3 9.9.9.9"),
            ),
            (vec!["10.1.2.3", "8.8.8.8"], Err("denied_by_rule")),
            (vec!["10.1.2.3", "127.0.0.1"], Err("private_address")),
        ] {
            let left = left.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(
                checked(&policy, "a.example", &addresses),
                left,
                "{addresses:?}"
            );
        }
    }

    #[test]
    fn the_containers_own_addresses_are_guarded_too() {
        let mut policy =
            Policy::parse("a.example,b.example@198.51.100.0/24,c.example@9.9.9.0/24").unwrap();
        let digest = policy.digest();
        policy.guard_also(&[
            "9.9.9.9/24".parse().unwrap(),
            "::ffff:8.8.8.8/128".parse().unwrap(),
        ]);
        for (host, address, left) in [
            ("a.example", "9.9.9.1", Err("private_address")),
            ("a.example", "8.8.8.8", Err("private_address")),
            ("a.example", "9.9.8.1", Ok("9.9.8.1")),
            ("c.example", "9.9.9.1", Ok("9.9.9.1")),
        ] {
            let left = left.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(
                checked(&policy, host, &[address]),
                left,
                "{host} at {address}"
            );
        }
        assert_eq!(policy.digest(), digest);
    }

    #[test]
    fn a_permit_tells_what_was_allowed_and_by_what() {
        let policy = Policy::parse("ssh.github.com:443/tcp,*.github.com").unwrap();
        let permit = permit(&policy, "SSH.github.com.", 443);
        assert_eq!(permit.destination().to_string(), "ssh.github.com:443");
        assert_eq!(permit.rule(), "ssh.github.com:443/tcp");
        assert!(permit.kinds().is_opaque() && permit.kinds().contains(StreamKind::Tls));
        assert!(!permit.kinds().contains(StreamKind::Http));
    }

    #[test]
    fn a_port_is_open_where_an_entry_allows_any_stream_on_it() {
        for (list, opens) in [
            ("a.example:22", true),
            ("a.example:20-30", true),
            ("*.a.example:*", true),
            ("192.0.2.0/24:22", true),
            ("a.example:22/tcp", true),
            ("a.example", false),
            ("a.example:22/tls", false),
            ("a.example, !b.example:22", false),
        ] {
            assert_eq!(Policy::parse(list).unwrap().opens(22), opens, "{list}");
        }
    }

    #[test]
    fn stream_ports_are_those_that_are_to_be_looked_into() {
        for (list, ports) in [
            ("a.example", vec![80, 443]),
            (
                "a.example:8443/tls,b.example:8080/http,c.example:22",
                vec![80, 443, 8080, 8443],
            ),
            ("a.example:9000-9002/tls", vec![80, 443, 9000, 9001, 9002]),
            ("a.example:*/tls,!b.example:9/tls", vec![80, 443]),
        ] {
            assert_eq!(
                Policy::parse(list).unwrap().stream_ports(),
                BTreeSet::from_iter(ports),
                "{list}"
            );
        }
    }

    #[test]
    fn a_v4_mapped_destination_is_judged_as_ipv4() {
        // Not from `Host::parse`, which would have made it IPv4: from a socket.
        let mapped = Destination {
            host: crate::Host::Address("::ffff:203.0.113.7".parse().unwrap()),
            port: 443,
        };
        let policy = Policy::parse("203.0.113.7").unwrap();
        assert!(matches!(policy.decide(&mapped), Decision::Allow(_)));
        let policy = Policy::parse("::ffff:203.0.113.7,!203.0.113.0/24").unwrap();
        assert!(matches!(policy.decide(&mapped), Decision::Deny(_)));
    }

    #[test]
    fn debug_does_not_print_the_list() {
        let shown = format!("{:?}", Policy::parse("secret-project.example").unwrap());
        assert!(
            !shown.contains("secret") && shown.contains("len: 1"),
            "{shown}"
        );
    }

    #[test]
    fn an_entry_that_is_too_long_is_shown_cut() {
        let error = Policy::parse(&"a".repeat(100_000)).unwrap_err();
        assert_eq!(error.code, ErrorCode::TooLong);
        assert!(error.to_string().len() < 300, "{error}");
    }

    #[test]
    fn an_embedded_address_is_not_lifted_by_the_range_of_the_embedded_one() {
        let policy = Policy::parse("a.example@10.0.0.0/8").unwrap();
        let refused = Err("private_address".to_owned());
        assert_eq!(checked(&policy, "a.example", &["64:ff9b::a00:1"]), refused);
        let policy = Policy::parse("a.example@64:ff9b::/96").unwrap();
        assert_eq!(
            checked(&policy, "a.example", &["64:ff9b::a00:1"]),
            Ok("64:ff9b::a00:1".to_owned())
        );
    }

    #[test]
    fn a_clone_gives_the_same_answers() {
        let policy = Policy::parse("a.example").unwrap();
        let clone = policy.clone();
        assert_eq!(clone.digest(), policy.digest());
        assert_eq!(permit(&clone, "a.example", 443).rule(), "a.example");
    }

    #[test]
    fn a_permit_outlives_its_policy() {
        let permit = permit(&Policy::parse("a.example").unwrap(), "a.example", 443);
        assert_eq!(permit.rule(), "a.example");
        assert!(format!("{permit:?}").contains("a.example"));
    }

    #[test]
    fn denies_alone_make_a_policy_that_allows_nothing() {
        let policy = Policy::parse("!a.example").unwrap();
        for host in ["a.example", "b.example", "8.8.8.8"] {
            let decision = policy.decide(&Destination::parse(host, 443).unwrap());
            assert!(matches!(decision, Decision::Deny(_)), "{host}");
        }
    }

    #[test]
    fn the_deepest_name_is_decided_like_any_other() {
        let host = ["a"; 127].join(".");
        let policy = Policy::parse("*.a.a,!*.a.a.a.a:22").unwrap();
        assert_eq!(permit(&policy, &host, 443).rule(), "*.a.a");
        let decision = policy.decide(&Destination::parse(&host, 22).unwrap());
        assert!(
            matches!(decision, Decision::Deny(denial) if denial.reason.as_str() == "denied_by_rule")
        );
    }
}
