//! A name server that gets no questions, for as long as a test wants it so.

use crate::{namespace::Namespace, process::output_of};

/// What becomes of questions to the name server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolver {
    /// They are answered.
    Answers,
    /// They get lost.
    Silent,
    /// Nobody listens, and the client is told.
    Refuses,
}

/// Decides it for the internet in `namespace`.
pub(super) fn set(namespace: &Namespace, state: Resolver) -> anyhow::Result<()> {
    let verdict = match state {
        Resolver::Answers => "accept",
        Resolver::Silent => "drop",
        Resolver::Refuses => "reject",
    };
    // The first line makes the table if there is none, the second removes it with its rules.
    let rules = format!(
        "table inet resolver {{ }}
        delete table inet resolver
        table inet resolver {{
            chain arriving {{
                type filter hook input priority 0;
                meta l4proto {{ tcp, udp }} th dport 53 {verdict}
            }}
        }}"
    );
    output_of(namespace.command("nft").arg(rules)).map(drop)
}
