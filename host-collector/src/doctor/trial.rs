//! A run that does nothing, launched as any other: what it promises is what its record then says.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _},
    path::Path,
    process::Stdio,
    time::Duration,
};

use report::{Body, ChannelState, Enforcement, Enforcing, Ipv6, Message, Printable, Reason};
use tempfile::TempDir;
use tokio::process::Command;

use super::{Check, Subject};
use crate::{
    engine::EngineKind,
    log::{Entries, evidence_of},
    session::Session,
};

/// What became of it.
#[derive(Debug)]
pub(super) enum Trial {
    /// There is a line, and perhaps what the container said of its rules.
    Recorded {
        session: Box<Session>,
        enforcing: Option<Enforcing>,
        took: Capabilities,
    },
    /// There was no run, and this was said instead.
    Refused(Printable),
}

/// What PID 1 was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Capabilities {
    /// What every run gives it.
    Usual,
    /// `NET_RAW` besides, without which iptables-legacy does not work.
    Raw,
}

impl Trial {
    /// With this program, so that nothing is tried otherwise than it is done.
    pub(super) async fn of(subject: &Subject, engine: EngineKind) -> Self {
        match Self::with(subject, engine, Capabilities::Usual).await {
            Self::Refused(said) if said.as_str().contains("NET_RAW") => {
                Self::with(subject, engine, Capabilities::Raw).await
            }
            trial @ (Self::Refused(_) | Self::Recorded { .. }) => trial,
        }
    }

    async fn with(subject: &Subject, engine: EngineKind, capabilities: Capabilities) -> Self {
        match run(subject, engine, capabilities).await {
            Ok(trial) => trial,
            Err(error) => Self::Refused(Printable::new(&format!("try a run: {error}"))),
        }
    }

    pub(super) fn checks(&self) -> Vec<Check> {
        match self {
            Self::Refused(said) => vec![Check::fail(
                "enforcement",
                said.as_str(),
                "the container must get NET_ADMIN, and nftables or iptables that the kernel takes: see \
                 images/README.md, and try another --runtime",
            )],
            Self::Recorded {
                session,
                enforcing,
                took,
            } => {
                let mut checks = enforcement(session, enforcing.as_ref());
                if *took == Capabilities::Raw {
                    checks.push(Check::warn(
                        "enforcement",
                        "only where PID 1 has NET_RAW too, for there is no nftables",
                        "give it to every run: --engine-arg=--cap-add=NET_RAW",
                    ));
                }
                checks.push(channel(session));
                checks.extend(enforcing.as_ref().map(|enforcing| ipv6(enforcing.ipv6)));
                checks
            }
        }
    }
}

async fn run(
    subject: &Subject,
    engine: EngineKind,
    capabilities: Capabilities,
) -> io::Result<Trial> {
    let dir = TempDir::new()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["run", "--network", "allowlist", "--allow", NOWHERE]);
    command.args(["--engine", engine.as_str()]);
    command.arg("--audit-dir").arg(dir.path());
    if let Some(runtime) = &subject.runtime {
        command.args(["--runtime", runtime]);
    }
    if capabilities == Capabilities::Raw {
        command.arg("--engine-arg=--cap-add=NET_RAW");
    }
    command.args([&subject.image, "--", "true"]);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let late = || io::Error::new(io::ErrorKind::TimedOut, "it did not end within two minutes");
    let done = tokio::time::timeout(PATIENCE, command.output()).await;
    let done = done.map_err(|_| late())??;
    let Some(entry) = Entries::open(dir.path()).next() else {
        return Ok(Trial::Refused(last_line(&done.stderr)));
    };
    let evidence = entry.session.evidence.as_deref();
    let evidence = evidence.filter(|path| evidence_of(path) == "kept");
    Ok(Trial::Recorded {
        enforcing: evidence.and_then(|path| said(Path::new(path))),
        session: Box::new(entry.session),
        took: capabilities,
    })
}

/// What the container said of its rules, as its journal has it.
fn said(evidence: &Path) -> Option<Enforcing> {
    let journal = File::open(evidence.join("journal.jsonl")).ok()?;
    let lines = BufReader::new(journal.take(JOURNAL)).lines();
    lines.map_while(Result::ok).find_map(|line| {
        match serde_json::from_str::<Message<Reason>>(&line).ok()?.body {
            Body::Enforcing(enforcing) => Some(enforcing),
            Body::Hello(_)
            | Body::Denied(_)
            | Body::Allowed(_)
            | Body::Gap(_)
            | Body::Totals(_)
            | Body::Exit(_)
            | Body::Bye(_)
            | Body::Policy(_)
            | Body::Unknown => None,
        }
    })
}

fn enforcement(session: &Session, enforcing: Option<&Enforcing>) -> Vec<Check> {
    const NAME: &str = "enforcement";
    let network = &session.network;
    let first = match (network.egress_enforcement, enforcing) {
        (Some(Enforcement::Name), Some(enforcing)) => {
            let probes = enforcing.self_test.iter();
            let probes: Vec<String> = probes.map(|probe| probe.name.to_string()).collect();
            let detail = format!(
                "by name, with {}, proved from inside with {}",
                enforcing.backend,
                probes.join(", ")
            );
            Check::ok(NAME, &detail)
        }
        (Some(Enforcement::Name), None) => Check::ok(NAME, "by name"),
        _ => Check::fail(
            NAME,
            "a run was started, and nobody in it says that names decide",
            "use an image with this version's sandbox-entrypoint: see images/README.md",
        ),
    };
    let degradations = network.egress_degradations.iter().flatten();
    let worse = degradations.map(|degradation| {
        Check::warn(
            NAME,
            degradation,
            "see docs/THREAT-MODEL.md for what that costs",
        )
    });
    std::iter::once(first).chain(worse).collect()
}

fn channel(session: &Session) -> Check {
    const NAME: &str = "channel";
    let Some(channel) = &session.network.egress_channel else {
        return Check::fail(
            NAME,
            "the record says nothing of it",
            "report this as a fault",
        );
    };
    match channel.state {
        ChannelState::Complete => Check::ok(
            NAME,
            match channel.transport.as_deref() {
                Some("exec") => "every report of the trial arrived, through the engine's exec",
                _ => "every report of the trial arrived, over a socket",
            },
        ),
        ChannelState::Gap => Check::fail(
            NAME,
            channel
                .gaps
                .first()
                .map_or("the account has a gap", |gap| &gap.detail),
            "every run will say so; whatever else its line has is true: try another kernel or \
             --runtime for all of it",
        ),
        ChannelState::Interrupted | ChannelState::NeverConnected | ChannelState::NotApplicable => {
            Check::fail(
                NAME,
                channel
                    .reason
                    .as_deref()
                    .unwrap_or("the account is not complete"),
                "the container must reach a unix socket of the host, or the engine must let this user \
             `exec` in it",
            )
        }
    }
}

fn ipv6(ipv6: Ipv6) -> Check {
    Check::ok(
        "ipv6",
        match ipv6 {
            Ipv6::Routed => "has a route, and the same rules",
            Ipv6::Unrouted => "has addresses and no route, and the same rules",
            Ipv6::Absent => "containers have none here: nothing leaves by it",
        },
    )
}

fn last_line(stderr: &[u8]) -> Printable {
    let text = String::from_utf8_lossy(stderr);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    Printable::new(line.unwrap_or("there was no run, and nobody said why"))
}

/// Reserved: nobody can have it (RFC 6761).
const NOWHERE: &str = "doctor.invalid";
const PATIENCE: Duration = Duration::from_secs(120);
const JOURNAL: u64 = 1024 * 1024;

#[cfg(test)]
mod tests {
    use report::{GapKind, ProbeResult};

    use super::*;
    use crate::{
        doctor::Status,
        session::{ChannelRecord, GapRecord, Network},
    };

    fn recorded(state: ChannelState, enforcement: Option<Enforcement>) -> Trial {
        let word = Printable::new("x");
        let enforcing = enforcement.map(|enforcement| Enforcing {
            enforcement,
            backend: word.clone(),
            ruleset_digest: word.clone(),
            self_test: vec![ProbeResult {
                name: Printable::new("tcp4"),
                outcome: word,
            }],
            ipv6: Ipv6::Routed,
            degradations: Vec::new(),
        });
        let channel = ChannelRecord {
            state,
            transport: None,
            gaps: Vec::new(),
            resumed: 0,
            reason: Some("no bye".into()),
        };
        let network = Network {
            egress_enforcement: enforcement,
            egress_channel: Some(channel),
            ..Network::default()
        };
        let session = Session {
            network,
            ..Session::default()
        };
        Trial::Recorded {
            session: Box::new(session),
            enforcing,
            took: Capabilities::Usual,
        }
    }

    fn statuses(trial: &Trial) -> Vec<(&'static str, Status)> {
        let checks = trial.checks().into_iter();
        checks.map(|check| (check.name, check.status)).collect()
    }

    #[test]
    fn a_run_with_a_complete_account_by_name_is_what_was_promised() {
        let trial = recorded(ChannelState::Complete, Some(Enforcement::Name));
        assert_eq!(
            statuses(&trial),
            [
                ("enforcement", Status::Ok),
                ("channel", Status::Ok),
                ("ipv6", Status::Ok)
            ]
        );
        let detail = trial.checks()[0].detail.to_string();
        assert_eq!(detail, "by name, with x, proved from inside with tcp4");
    }

    #[test]
    fn what_a_run_takes_besides_is_a_warning() {
        let mut trial = recorded(ChannelState::Complete, Some(Enforcement::Name));
        if let Trial::Recorded { took, .. } = &mut trial {
            *took = Capabilities::Raw;
        }
        let check = &trial.checks()[1];
        assert_eq!((check.name, check.status), ("enforcement", Status::Warn));
        assert!(
            check
                .remedy
                .is_some_and(|remedy| remedy.contains("--cap-add=NET_RAW"))
        );
    }

    #[test]
    fn a_kernel_that_does_not_count_is_not_taken_for_a_channel_that_cannot_be() {
        let mut trial = recorded(ChannelState::Gap, Some(Enforcement::Name));
        let Trial::Recorded { session, .. } = &mut trial else {
            panic!("no record")
        };
        let channel = session.network.egress_channel.as_mut().unwrap();
        channel.gaps.push(GapRecord {
            kind: GapKind::Overflow,
            from_ms: 0,
            to_ms: Some(9),
            detail: "this kernel does not count".into(),
        });
        let check = &trial.checks()[1];
        assert_eq!((check.name, check.status), ("channel", Status::Fail));
        assert_eq!(check.detail.as_str(), "this kernel does not count");
        assert!(
            check
                .remedy
                .is_some_and(|remedy| !remedy.contains("socket"))
        );
    }

    #[test]
    fn anything_less_fails_and_says_what() {
        let gap = recorded(ChannelState::Gap, Some(Enforcement::Name));
        assert_eq!(statuses(&gap)[1], ("channel", Status::Fail));
        for state in [ChannelState::Interrupted, ChannelState::NeverConnected] {
            let trial = recorded(state, Some(Enforcement::Name));
            assert_eq!(statuses(&trial)[1], ("channel", Status::Fail), "{state:?}");
            assert_eq!(trial.checks()[1].detail.as_str(), "no bye");
        }
        for enforcement in [None, Some(Enforcement::Address), Some(Enforcement::None)] {
            let trial = recorded(ChannelState::Complete, enforcement);
            assert_eq!(
                statuses(&trial)[0],
                ("enforcement", Status::Fail),
                "{enforcement:?}"
            );
        }
    }

    #[test]
    fn what_was_done_without_is_a_warning() {
        let Trial::Recorded {
            mut session,
            enforcing,
            took,
        } = recorded(ChannelState::Complete, Some(Enforcement::Name))
        else {
            panic!("no record")
        };
        session.network.egress_degradations = Some(vec!["no NFLOG".into()]);
        let checks = Trial::Recorded {
            session,
            enforcing,
            took,
        }
        .checks();
        assert_eq!(
            (checks[1].status, checks[1].detail.as_str()),
            (Status::Warn, "no NFLOG")
        );
    }

    #[test]
    fn a_trial_that_was_no_run_fails_with_what_was_said_last() {
        let said = last_line(b"pulling\nsandbox-entrypoint: no NET_ADMIN\x1b[2J\n\n");
        let checks = Trial::Refused(said).checks();
        assert_eq!((checks.len(), checks[0].status), (1, Status::Fail));
        assert_eq!(
            checks[0].detail.as_str(),
            "sandbox-entrypoint: no NET_ADMIN\\u{1b}[2J"
        );
        assert!(last_line(b"").as_str().contains("nobody said why"));
    }
}
