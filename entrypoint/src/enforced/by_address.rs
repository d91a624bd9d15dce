//! The set-up where addresses decide.

use std::collections::BTreeSet;

use policy::NameRule;
use report::{Enforcement, Enforcing, Ipv6, Printable};

use super::{Enforced, prove_packets_counted};
use crate::{
    addresses::Addresses,
    allow::ALLOW,
    config::Allowlist,
    decider::Decider,
    failure::Failure,
    firewall::{AddressPlan, Firewall},
    identity::Unprivileged,
    limits,
    nflog::NfLog,
    renewal::Renewal,
    self_test::Probes,
    session::Barrier,
    surroundings::Surroundings,
};

/// nftables decides alone, by the addresses that a process without privileges finds.
pub(super) async fn set_up(
    allowlist: &Allowlist,
    guest: &Unprivileged,
    resolver_user: &Unprivileged,
    here: Surroundings,
) -> Result<Enforced, Failure> {
    if allowlist.upstream_proxy.is_some() {
        return Err(Failure::config(
            "SANDBOX_UPSTREAM_PROXY",
            "nobody dials through it where addresses decide",
            "enforce by `name`, or unset it",
        ));
    }
    let ipv6 = here.ipv6;
    let resolvers = here.resolvers.clone();
    let routed6 = ipv6 == Ipv6::Routed;
    let probes = Probes::choose(&allowlist.policy, &resolvers, routed6, None);
    let mut policy = allowlist.policy.clone();
    policy.guard_also(&here.guarded());
    let plan = address_plan(allowlist, here)?;
    let mut firewall = Firewall::load_by_address(plan)?;
    let addresses = Addresses::new(policy);
    let mut renewal = Renewal::start(resolver_user.clone(), resolvers.clone(), addresses)?;
    let proof = probes.run_as(guest)?;
    let unresolved = renewal.first_round(&mut firewall).await?;
    prove_packets_counted(&proof, &mut firewall)?;
    let nflog = NfLog::bind().map_err(Failure::system("read refused packets"))?;
    let report = Enforcing {
        enforcement: Enforcement::Address,
        backend: Printable::new(firewall.backend()),
        ruleset_digest: Printable::new(firewall.digest()),
        self_test: proof.results,
        ipv6,
        degradations: limits::of(&allowlist.policy, &resolvers, unresolved),
    };
    let barrier = Barrier {
        firewall,
        decider: Decider::Resolver(renewal),
        nflog: Some(nflog),
    };
    Ok(Enforced { barrier, report })
}

fn address_plan(allowlist: &Allowlist, here: Surroundings) -> Result<AddressPlan, Failure> {
    let policy = &allowlist.policy;
    let mut guarded = policy::guarded_ranges();
    guarded.extend(here.guarded());
    let names = policy.name_rules();
    let ports: BTreeSet<_> = names.iter().flat_map(NameRule::ports).collect();
    if ports.len() > MOST_PORT_RANGES {
        return Err(Failure::config(
            ALLOW,
            format_args!("{} different ranges of ports on names", ports.len()),
            format!("name at most {MOST_PORT_RANGES} where addresses decide"),
        ));
    }
    Ok(AddressPlan {
        ports,
        ranges: policy.address_rules(),
        denied: policy.denied_addresses(),
        lifted: policy.lifted_ranges(),
        guarded,
        ingress: allowlist.ingress.clone(),
        here,
    })
}

/// Each wide one has rules of its own, which a packet passes one by one.
const MOST_PORT_RANGES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn plan(list: &str) -> Result<AddressPlan, Failure> {
        let lookup = |name: &str| (name == ALLOW).then(|| list.into());
        let config = Config::from_lookup(vec!["true".into()], &lookup).unwrap();
        let here = Surroundings {
            own: vec!["203.0.114.2/24".parse().unwrap()],
            gateways: Vec::new(),
            resolvers: Vec::new(),
            ipv6: Ipv6::Absent,
            remapped: false,
        };
        address_plan(&config.allowlist.unwrap(), here)
    }

    #[test]
    fn so_many_ranges_of_ports_and_no_more() {
        let list = |count: u16| {
            let entry = |n: u16| format!("n{n}.example:{}-{}", 1000 + n * 20, 1018 + n * 20);
            let entries: Vec<String> = (0..count).map(entry).collect();
            entries.join(",")
        };
        assert_eq!(plan(&list(256)).unwrap().ports.len(), 256);
        let refused = plan(&list(257)).unwrap_err().one_line();
        assert!(
            refused.contains("257") && refused.contains("at most 256"),
            "{refused}"
        );
    }

    #[test]
    fn the_containers_own_addresses_are_guarded() {
        let guarded = plan("a.example").unwrap().guarded;
        assert!(
            guarded.contains(&"203.0.114.2/32".parse().unwrap()),
            "{guarded:?}"
        );
    }
}
