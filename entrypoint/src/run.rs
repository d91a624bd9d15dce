//! A run, step by step. The network is closed before anything untrusted could run, and privileges
//! are gone before the command exists.

use std::ffi::OsString;

use report::{Body, RunClock, Seed};
use rustix::process::{
    DumpableBehavior, getgid, getpid, getuid, set_child_subreaper, set_dumpable_behavior,
};

use crate::{
    accounts::{Accounts, User},
    capabilities,
    channel::Channel,
    config::{Allowlist, Config},
    enforced::Enforced,
    environment,
    failure::Failure,
    finish,
    guest::Guest,
    identity::{Identities, run_as_user},
    launch::Launch,
    outbox::Outbox,
    outcome::Outcome,
    proxy,
    signals::{Arrived, Signals},
    surroundings::Surroundings,
};

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
        .map_or_else(|| Ok(Launch::unchanged()), as_user)?;
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
                if let Some(ended) = guest.reap(|_, _| ()) {
                    return Ok(Outcome {
                        code: ended.exit_code(),
                        complaint: None,
                    });
                }
            }
            Arrived::ForGuest(number) => guest.forward(number),
            Arrived::FromTerminal(number) => guest.signal(number),
            Arrived::Ignored => {}
        }
    }
}

/// Without an allowlist the engine may have made PID 1 the guest's user already.
fn as_user(user: &User) -> Result<Launch, Failure> {
    let (uid, gid) = (getuid(), getgid());
    if !uid.is_root() && (uid.as_raw(), gid.as_raw()) == (user.uid, user.gid) {
        return Ok(Launch::powerless());
    }
    capabilities::require("become the guest's user", capabilities::TO_CHANGE_USER)?;
    Ok(Launch::unprivileged(user))
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
    let identities = Identities::resolve(
        config.run_as.as_deref(),
        &accounts,
        allowlist.enforce,
        proxy::executable().is_ok(),
        here.remapped,
    )?;
    let mut outbox = Outbox::new(clock, own_seed()?);
    let mut channel = Channel::open(allowlist, identities.guest.user().uid, &mut outbox).await?;
    match Enforced::set_up(allowlist, &identities, here, (clock, outbox.seed())).await {
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

/// The order in which refused targets are chosen, until a collector says in which it samples them.
fn own_seed() -> Result<Seed, Failure> {
    let mut seed = [0; 16];
    getrandom::fill(&mut seed)
        .map_err(|error| Failure::system("draw a random number")(error.into()))?;
    Ok(Seed(seed))
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
