//! A run, step by step. The network is closed before anything untrusted could run, and privileges
//! are gone before the command exists.

use std::{ffi::OsString, io, process::ExitCode};

use report::{Body, Enforcement, Enforcing, Ipv6, Printable, RunClock, link::Start};
use rustix::process::{DumpableBehavior, getpid, set_child_subreaper, set_dumpable_behavior};

use crate::{
    account::{Account, of_self_test},
    accounts::Accounts,
    channel::Channel,
    config::{Allowlist, Config},
    environment,
    failure::Failure,
    finish,
    firewall::{Counters, Firewall, Openings, Plan},
    guest::Guest,
    identity::{Identities, run_as_user},
    launch::Launch,
    listeners::Listeners,
    nflog::NfLog,
    oom,
    outbox::Outbox,
    proxy::Proxy,
    self_test::{Probes, Proof},
    session::Session,
    signals::{Arrived, Signals},
    surroundings::Surroundings,
    watch::ProxyWatch,
};

/// How a run ends for whoever started it.
pub(crate) struct Outcome {
    /// What PID 1 exits with.
    pub(crate) code: ExitCode,
    /// What to say on standard error, where something kept the guest from starting.
    pub(crate) complaint: Option<String>,
}

/// Runs `command` as the environment asks for.
pub(crate) fn run(
    command: Vec<OsString>,
    lookup: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Outcome, Failure> {
    let clock = RunClock::start();
    let config = Config::from_lookup(command, lookup)?;
    let signals = Signals::block().map_err(Failure::system("block signals"))?;
    // What is not dumpable cannot be traced, and its /proc entries are closed to the guest.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|errno| Failure::system("hide from the guest")(errno.into()))?;
    // Orphans come to PID 1 by themselves; behind an init of the engine's, only if it asks.
    set_child_subreaper(Some(getpid()))
        .map_err(|errno| Failure::system("adopt orphans")(errno.into()))?;
    match &config.allowlist {
        None => supervise_only(&config, &signals),
        Some(allowlist) => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Failure::system("start the runtime"))?
            .block_on(enforce(&config, allowlist, signals, clock)),
    }
}

/// Without an allowlist PID 1 reaps, forwards signals, and changes nothing else.
fn supervise_only(config: &Config, signals: &Signals) -> Result<Outcome, Failure> {
    let accounts = Accounts::read().map_err(Failure::system("read the user database"))?;
    let user = config
        .run_as
        .as_deref()
        .map(|run_as| run_as_user(run_as, &accounts))
        .transpose()?;
    let launch = user
        .as_ref()
        .map_or_else(Launch::unchanged, Launch::unprivileged);
    let environment = environment::inherited(std::env::vars_os(), user.as_ref());
    let guest = match Guest::start(config, launch, &environment) {
        Ok(guest) => guest,
        Err(error) => {
            return Ok(Outcome {
                code: error.code().into(),
                complaint: Some(error.to_string()),
            });
        }
    };
    loop {
        match signals
            .wait()
            .map_err(Failure::system("wait for signals"))?
        {
            Arrived::Child => {
                if let Some(ended) = guest.reap() {
                    return Ok(Outcome {
                        code: ended.exit_code(),
                        complaint: None,
                    });
                }
            }
            Arrived::ForGuest(number) => guest.forward(number),
            Arrived::Ignored => {}
        }
    }
}

/// Under an allowlist: who runs is decided, the host is told, and only then is anything set up.
async fn enforce(
    config: &Config,
    allowlist: &Allowlist,
    signals: Signals,
    clock: RunClock,
) -> Result<Outcome, Failure> {
    require_root()?;
    let accounts = Accounts::read().map_err(Failure::system("read the user database"))?;
    let here = Surroundings::observe().map_err(Failure::system("look at the network"))?;
    let identities = Identities::resolve(config.run_as.as_deref(), &accounts, here.remapped)?;
    let mut outbox = Outbox::new(clock);
    let mut channel = Channel::open(allowlist, identities.guest.user().uid, &mut outbox)?;
    match Enforced::set_up(allowlist, &identities, here, clock).await {
        Ok(enforced) => {
            enforced
                .run(config, allowlist, &identities, signals, channel, outbox)
                .await
        }
        Err(failure) => {
            outbox.push(Body::Exit(finish::refused(&failure)));
            outbox.push_bye();
            if let Some(channel) = &mut channel {
                finish::settle(channel, &mut outbox).await;
            }
            Err(failure)
        }
    }
}

/// Proof that the network is closed, except for what the list names.
struct Enforced {
    firewall: Firewall,
    proxy: ProxyWatch,
    nflog: NfLog,
    report: Enforcing,
}

impl Enforced {
    async fn set_up(
        allowlist: &Allowlist,
        identities: &Identities,
        here: Surroundings,
        clock: RunClock,
    ) -> Result<Self, Failure> {
        let ipv6 = here.ipv6;
        let start = start_message(allowlist, &here, clock);
        let probes = Probes::choose(
            &allowlist.policy,
            &here.resolvers,
            ipv6 == Ipv6::Routed,
            allowlist.proxy_port,
        );
        let listeners = Listeners::bind(allowlist.proxy_port)?;
        let mut firewall = Firewall::load(&plan(allowlist, identities, here, &listeners))?;
        let mut proxy = Proxy::start(&identities.proxy, &listeners, &start)?;
        let proof = probes.run_as(&identities.guest)?;
        let counted = firewall.counters()?;
        prove_counted(&proof, counted, &mut proxy).await?;
        firewall.set_aside(counted);
        let nflog = NfLog::bind().map_err(Failure::system("read refused packets"))?;
        let report = Enforcing {
            enforcement: Enforcement::Name,
            backend: Printable::new("nftables"),
            ruleset_digest: Printable::new(firewall.digest()),
            self_test: proof.results,
            ipv6,
            degradations: proxy.degradations.clone(),
        };
        let openings = Openings::connect().map_err(Failure::system("reach the firewall's sets"))?;
        let identity = identities.proxy.clone();
        let proxy = ProxyWatch::new(identity, listeners, start, openings, proxy);
        Ok(Self {
            firewall,
            proxy,
            nflog,
            report,
        })
    }

    /// Starts the guest and stays with it.
    async fn run(
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
        environment::add_proxy(&mut environment, allowlist.proxy_port);
        let sacrifice = oom::Sacrifice::prepare();
        self.report.degradations.extend(sacrifice.degradation());
        outbox.push(Body::Enforcing(self.report));
        let signals = signals
            .into_async()
            .map_err(Failure::system("wait for signals"))?;
        let account = Account::new(outbox);
        let mut session = Session::new(account, channel, self.proxy, self.nflog, signals);
        let started = Guest::start(config, launch, &environment);
        sacrifice.end();
        let attended = match started {
            Ok(guest) => attend(&mut session, &guest, &self.firewall).await,
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

async fn attend(session: &mut Session, guest: &Guest, firewall: &Firewall) -> io::Result<Outcome> {
    let ended = session.attend(guest).await?;
    finish::finish(session, guest, ended, firewall).await?;
    Ok(Outcome {
        code: ended.exit_code(),
        complaint: None,
    })
}

/// Only root can close the network, and only root can then become somebody else.
fn require_root() -> Result<(), Failure> {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return Ok(());
    }
    let cause = format!("PID 1 was started as uid {}", uid.as_raw());
    Err(Failure::setup(
        "close the network",
        cause,
        "start the container as root, without --user, and name the guest's user in SANDBOX_RUN_AS",
    ))
}

/// Every refusal must show up where the record takes it from: the counters and the proxy's word.
async fn prove_counted(proof: &Proof, counted: Counters, proxy: &mut Proxy) -> Result<(), Failure> {
    let uncounted = |what: &str| {
        Failure::setup(
            "self-test",
            format_args!("{what} was refused but not counted"),
            "report this as a defect",
        )
    };
    if counted.packets < proof.refused_packets {
        return Err(uncounted("a packet"));
    }
    let word = async {
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

fn start_message(allowlist: &Allowlist, here: &Surroundings, clock: RunClock) -> Start {
    Start {
        allow: allowlist.policy.entries(),
        policy_digest: allowlist.policy.digest().to_string(),
        guard: here.guarded(),
        clock_origin_ms: clock.origin_ms(),
        max_connections: MAX_CONNECTIONS,
        resolvers: here.resolvers.clone(),
        upstream_proxy: allowlist.upstream_proxy.clone(),
    }
}

fn plan(
    allowlist: &Allowlist,
    identities: &Identities,
    here: Surroundings,
    listeners: &Listeners,
) -> Plan {
    let mut guarded = policy::guarded_ranges();
    guarded.extend(here.guarded());
    Plan {
        proxy_uid: identities.proxy.user().uid,
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

const MAX_CONNECTIONS: u32 = 4096;
