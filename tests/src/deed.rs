//! What is done to a run from outside while its guest is at work, as cases spell it.

use std::str::FromStr;

use anyhow::{Context, bail};
use rustix::process::Signal;
use serde::Deserialize;

use crate::internet::Resolver;

/// One deed, done when a guest has said by `./meanwhile` that it has come so far.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Deed {
    /// `kill WHO`, `stop WHO`, `continue WHO`: a signal that nobody can catch.
    Signal(Signal, Whom),
    /// `sacrifice WHO`: the kernel takes that process first where memory runs out.
    Sacrifice(Whom),
    /// `await TEXT`: until the collector has stored a report that contains it.
    Await(String),
    /// `go on`: the guest need not wait for what follows.
    GoOn,
    /// `await-end`: until process 1 is gone.
    AwaitEnd,
    /// `resolver silent`, `refuses` or `answers`.
    Resolver(Resolver),
    /// `flush ruleset`: everything that nftables has in the guest's network.
    FlushRuleset,
    /// `take away proxy`: its program, so that no other can be started.
    TakeAwayProxy,
    /// `bring back proxy`: where it was.
    BringBackProxy,
    /// `as root SCRIPT`: by a shell that the engine starts in the container.
    AsRoot(String),
    /// `recover`: another verb of the collector's, which takes up what a killed one has left.
    Recover,
}

/// A process of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    /// The proxy.
    Proxy,
    /// Process 1.
    Entrypoint,
    /// `host-collector run`.
    Collector,
    /// The engine's client that the collector has started.
    Client,
    /// Who holds the container's streams and waits for its end: the shim, or conmon.
    Monitor,
}

impl FromStr for Deed {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
        Ok(match verb {
            "kill" => Self::Signal(Signal::KILL, rest.parse()?),
            "stop" => Self::Signal(Signal::STOP, rest.parse()?),
            "continue" => Self::Signal(Signal::CONT, rest.parse()?),
            "sacrifice" => Self::Sacrifice(rest.parse()?),
            "await" if !rest.is_empty() => Self::Await(rest.to_owned()),
            "await-end" if rest.is_empty() => Self::AwaitEnd,
            "go" if rest == "on" => Self::GoOn,
            "resolver" => Self::Resolver(resolver(rest).context("no state of a resolver")?),
            "flush" if rest == "ruleset" => Self::FlushRuleset,
            "take" if rest == "away proxy" => Self::TakeAwayProxy,
            "bring" if rest == "back proxy" => Self::BringBackProxy,
            "as" if rest.starts_with("root ") => Self::AsRoot(rest.replacen("root ", "", 1)),
            "recover" if rest.is_empty() => Self::Recover,
            _ => bail!("`{text}` is nothing that can be done"),
        })
    }
}

impl TryFrom<String> for Deed {
    type Error = anyhow::Error;

    fn try_from(text: String) -> anyhow::Result<Self> {
        text.parse()
    }
}

impl FromStr for Whom {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        Ok(match text {
            "proxy" => Self::Proxy,
            "entrypoint" => Self::Entrypoint,
            "collector" => Self::Collector,
            "client" => Self::Client,
            "monitor" => Self::Monitor,
            _ => bail!("`{text}` is no process of a run"),
        })
    }
}

fn resolver(text: &str) -> Option<Resolver> {
    match text {
        "silent" => Some(Resolver::Silent),
        "refuses" => Some(Resolver::Refuses),
        "answers" => Some(Resolver::Answers),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deed_is_read_as_it_is_spelt_and_nothing_else_is_one() {
        for (text, deed) in [
            ("kill proxy", Deed::Signal(Signal::KILL, Whom::Proxy)),
            (
                "stop collector",
                Deed::Signal(Signal::STOP, Whom::Collector),
            ),
            (
                "continue entrypoint",
                Deed::Signal(Signal::CONT, Whom::Entrypoint),
            ),
            ("sacrifice entrypoint", Deed::Sacrifice(Whom::Entrypoint)),
            ("await a b", Deed::Await("a b".to_owned())),
            ("await-end", Deed::AwaitEnd),
            ("go on", Deed::GoOn),
            ("resolver silent", Deed::Resolver(Resolver::Silent)),
            ("flush ruleset", Deed::FlushRuleset),
            ("take away proxy", Deed::TakeAwayProxy),
            ("bring back proxy", Deed::BringBackProxy),
            ("as root a root b", Deed::AsRoot("a root b".to_owned())),
            ("recover", Deed::Recover),
        ] {
            assert_eq!(text.parse::<Deed>().unwrap(), deed, "{text}");
        }
        for text in [
            "",
            "kill",
            "kill guest",
            "sacrifice",
            "resolver",
            "flush",
            "take away",
            "bring back entrypoint",
            "recover all",
            "sleep 1",
            "await",
        ] {
            assert!(text.parse::<Deed>().is_err(), "{text}");
        }
    }
}
