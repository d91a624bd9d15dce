//! The set-up where addresses decide.

use report::{Enforcement, Enforcing, Ipv6, Printable};

use super::{Enforced, prove_packets_counted};
use crate::{
    addresses::Addresses,
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
    let addresses = Addresses::new(&allowlist.policy, here.guarded());
    let plan = AddressPlan::of(&allowlist.policy, allowlist.ingress.clone(), here)?;
    let mut firewall = Firewall::load_by_address(plan)?;
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
