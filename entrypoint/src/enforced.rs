//! The set-up under an allowlist: each step's outcome is needed for the next, and the last is the
//! guest's start.

mod by_address;

use std::io;

use procwatch::Program;
use report::{
    Body, Enforcement, Enforcing, FIRST_GENERATION, Ipv6, Printable, RunClock, Seed, link::Start,
};

use crate::{
    account::{Account, of_self_test},
    capabilities,
    channel::Channel,
    config::{Allowlist, Config},
    decider::Decider,
    environment,
    failure::Failure,
    finish,
    firewall::{Firewall, Plan},
    guest::Guest,
    identity::{By, Identities, Unprivileged},
    launch::Launch,
    limits,
    listeners::Listeners,
    nflog::NfLog,
    notice, oom,
    outbox::Outbox,
    outcome::Outcome,
    proxy::{self, Proxy},
    self_test::{Probes, Proof},
    session::{Barrier, Session},
    signals::Signals,
    steering::Steering,
    surroundings::Surroundings,
    watch::ProxyWatch,
};

/// Proof that the network is closed, except for what the list names.
pub(crate) struct Enforced {
    barrier: Barrier,
    report: Enforcing,
}

impl Enforced {
    /// Closes the network and proves that it is.
    pub(crate) async fn set_up(
        allowlist: &Allowlist,
        identities: &Identities,
        here: Surroundings,
        told: (RunClock, Seed),
    ) -> Result<Self, Failure> {
        capabilities::require("close the network", capabilities::TO_ENFORCE)?;
        match &identities.by {
            By::Name(proxy) => by_name(allowlist, &identities.guest, proxy, here, told).await,
            By::Address(resolver) => {
                by_address::set_up(allowlist, &identities.guest, resolver, here).await
            }
        }
    }

    /// Starts the guest and stays with it.
    pub(crate) async fn run(
        mut self,
        config: &Config,
        allowlist: &Allowlist,
        identities: &Identities,
        signals: Signals,
        channel: Option<Channel>,
        mut outbox: Outbox,
    ) -> Result<Outcome, Failure> {
        let user = identities.guest.user();
        let launch = Launch::confined(&identities.guest)?;
        let mut environment = environment::inherited(std::env::vars_os(), Some(user));
        if let By::Name(_) = identities.by {
            environment::add_proxy(&mut environment, allowlist.proxy_port);
            if allowlist.policy.opens(SSH_PORT) {
                let proxy = proxy::executable()?;
                environment::add_ssh(&mut environment, allowlist.proxy_port, &proxy);
            }
        }
        if let By::Address(_) = identities.by
            && let Some(line) = limits::notice(&allowlist.policy)
        {
            notice::tell(&line);
        }
        let sacrifice = oom::Sacrifice::prepare();
        self.report.degradations.extend(sacrifice.degradation());
        outbox.push(Body::Enforcing(self.report));
        let signals = signals
            .into_async()
            .map_err(Failure::system("wait for signals"))?;
        let account = Account::new(outbox);
        let steering = Steering::new(
            &allowlist.ends.socket,
            FIRST_GENERATION,
            allowlist.policy.digest(),
        );
        let mut session = Session::new(
            account,
            channel,
            self.barrier,
            signals,
            steering,
            identities.clone(),
        );
        let started = Guest::start(config, launch, &environment);
        sacrifice.end();
        let attended = match started {
            Ok(guest) => {
                if let Ok(program) = Program::find() {
                    program.release();
                }
                attend(&mut session, &guest, identities).await
            }
            Err(error) => {
                finish::close_unstarted(&mut session, error.exit()).await;
                Ok(Outcome {
                    code: error.code().into(),
                    complaint: Some(error.to_string()),
                })
            }
        };
        attended.map_err(Failure::system("attend to the guest"))
    }
}

async fn attend(
    session: &mut Session,
    guest: &Guest,
    identities: &Identities,
) -> io::Result<Outcome> {
    let ended = session.attend(guest).await?;
    finish::finish(session, guest, ended, identities).await?;
    Ok(Outcome {
        code: ended.exit_code(),
        complaint: None,
    })
}

/// The proxy decides, and whoever does not know of it is brought to it.
async fn by_name(
    allowlist: &Allowlist,
    guest: &Unprivileged,
    proxy_user: &Unprivileged,
    here: Surroundings,
    told: (RunClock, Seed),
) -> Result<Enforced, Failure> {
    let ipv6 = here.ipv6;
    let start = start_message(allowlist, &here, told);
    let probes = Probes::choose(
        &allowlist.policy,
        &here.resolvers,
        ipv6 == Ipv6::Routed,
        Some(allowlist.proxy_port),
    );
    let listeners = Listeners::bind(allowlist.proxy_port)?;
    let plan = plan(allowlist, proxy_user, here, &listeners);
    let mut firewall = Firewall::load(plan)?;
    let (mut proxy, lacks) = Proxy::start(proxy_user, &listeners, &start).await?;
    let proof = probes.run_as(guest)?;
    prove_packets_counted(&proof, &mut firewall)?;
    prove_names_counted(&proof, &mut proxy).await?;
    let nflog = firewall.logs().then(NfLog::bind).transpose();
    let nflog = nflog.map_err(Failure::system("read refused packets"))?;
    let degradations = firewall.degradations();
    let degradations = degradations.map(|text| Printable::new(&text));
    let report = Enforcing {
        enforcement: Enforcement::Name,
        backend: Printable::new(firewall.backend()),
        ruleset_digest: Printable::new(firewall.digest()),
        self_test: proof.results,
        ipv6,
        degradations: degradations
            .chain(lacks)
            .chain(nflog.as_ref().and_then(NfLog::degradation))
            .collect(),
    };
    let proxy = ProxyWatch::new(proxy_user.clone(), listeners, start, proxy);
    let barrier = Barrier {
        firewall,
        decider: Decider::Proxy(proxy),
        nflog,
    };
    Ok(Enforced { barrier, report })
}

/// Every refusal must show up where the record takes it from: the counters.
fn prove_packets_counted(proof: &Proof, firewall: &mut Firewall) -> Result<(), Failure> {
    if !firewall.set_aside(proof.refused_packets)? {
        return Err(uncounted("a packet"));
    }
    Ok(())
}

fn uncounted(what: &str) -> Failure {
    Failure::setup(
        "self-test",
        format_args!("{what} was refused but not counted"),
        "report this as a defect",
    )
}

/// And the proxy's word.
async fn prove_names_counted(proof: &Proof, proxy: &mut Proxy) -> Result<(), Failure> {
    let word = async {
        // The probes are over, and the guest waits.
        if proxy.hurry().is_err() {
            return false;
        }
        let mut due = proof.refused_names;
        while due > 0 {
            match proxy.next().await {
                Ok(message) => due = due.saturating_sub(of_self_test(&message)),
                Err(_) => return false,
            }
        }
        true
    };
    match tokio::time::timeout(std::time::Duration::from_secs(2), word).await {
        Ok(true) => Ok(()),
        Ok(false) | Err(_) => Err(uncounted("a name")),
    }
}

fn start_message(
    allowlist: &Allowlist,
    here: &Surroundings,
    (clock, seed): (RunClock, Seed),
) -> Start {
    Start {
        generation: FIRST_GENERATION,
        allow: allowlist.policy.entries(),
        policy_digest: allowlist.policy.digest().to_string(),
        guard: here.guarded(),
        clock_origin_ms: clock.origin_ms(),
        seed,
        max_connections: allowlist.max_connections,
        resolvers: here.resolvers.clone(),
        upstream_proxy: allowlist.upstream_proxy.clone(),
    }
}

fn plan(
    allowlist: &Allowlist,
    proxy: &Unprivileged,
    here: Surroundings,
    listeners: &Listeners,
) -> Plan {
    let mut guarded = policy::guarded_ranges();
    guarded.extend(here.guarded());
    Plan {
        proxy_uid: proxy.user().uid,
        redirect4: listeners.redirect4(),
        redirect6: listeners.redirect6(),
        dns4: listeners.dns4(),
        dns6: listeners.dns6(),
        stream_ports: allowlist.policy.stream_ports(),
        ranges: allowlist.policy.address_rules(),
        lifted: allowlist.policy.lifted_ranges(),
        guarded,
        upstream_port: allowlist.upstream_proxy.as_deref().and_then(port_of),
        ingress: allowlist.ingress.clone(),
        here,
    }
}

fn port_of(authority: &str) -> Option<u16> {
    authority.rsplit_once(':')?.1.parse().ok()
}

const SSH_PORT: u16 = 22;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_an_upstream_proxy_is_what_follows_the_last_colon() {
        for (authority, port) in [
            ("proxy.example:3128", Some(3128)),
            ("[fd00::1]:8080", Some(8080)),
            ("proxy.example", None),
            ("proxy.example:", None),
            ("proxy.example:65536", None),
        ] {
            assert_eq!(port_of(authority), port, "{authority}");
        }
    }
}
