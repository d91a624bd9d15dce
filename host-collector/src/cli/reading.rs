//! Options of the verbs that read the session log.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::AuditArgs;
use crate::{session::Session, since::Since};

/// Which runs.
#[derive(Debug, Clone, Default, Args)]
pub struct Selection {
    /// Only runs launched since then: `7d`, `12h`, a date, or a time in RFC 3339
    #[arg(long, value_name = "TIME")]
    pub since: Option<Since>,
    /// Only runs for this agent
    #[arg(long)]
    pub agent: Option<String>,
    /// Only runs on this branch
    #[arg(long)]
    pub branch: Option<String>,
    /// Only runs of this image, in whatever version if none is named
    #[arg(long)]
    pub image: Option<String>,
    /// Only runs in this workspace
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// Only runs that were refused something
    #[arg(long)]
    pub refused: bool,
}

/// What a selection asks of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct About<'a> {
    /// When it was launched, RFC 3339.
    pub time: &'a str,
    /// Its agent.
    pub agent: Option<&'a str>,
    /// Its branch.
    pub branch: Option<&'a str>,
    /// Its image.
    pub image: &'a str,
    /// Its workspace.
    pub workspace: Option<&'a str>,
    /// How often it was refused something, or at least.
    pub refused: u64,
}

impl Selection {
    /// Whether a run is among them.
    #[must_use]
    pub fn admits(&self, about: &About<'_>) -> bool {
        let same = |wanted: &Option<String>, found: Option<&str>| {
            wanted.is_none() || wanted.as_deref() == found
        };
        self.since.is_none_or(|since| since.admits(about.time))
            && same(&self.agent, about.agent)
            && same(&self.branch, about.branch)
            && self
                .image
                .as_deref()
                .is_none_or(|image| is_image(image, about.image))
            && self.admits_workspace(about.workspace)
            && (!self.refused || about.refused > 0)
    }

    /// The same of a line that was read whole.
    #[must_use]
    pub fn admits_session(&self, session: &Session) -> bool {
        let (launch, network) = (&session.launch, &session.network);
        self.admits(&About {
            time: &session.time,
            agent: launch.agent.as_deref(),
            branch: launch.branch.as_deref(),
            image: &launch.image,
            workspace: launch.workspace.as_deref(),
            refused: network
                .egress_denied
                .or(network.egress_denied_at_least)
                .unwrap_or(0),
        })
    }

    fn admits_workspace(&self, found: Option<&str>) -> bool {
        self.workspace.as_ref().is_none_or(|wanted| {
            // The log has it as the engine was told: absolute.
            let wanted = std::path::absolute(wanted).unwrap_or_else(|_| wanted.clone());
            let real = wanted.canonicalize().unwrap_or_else(|_| wanted.clone());
            found.is_some_and(|found| wanted == *found || real == *found)
        })
    }
}

/// `python` names `python:3.13` and `python@sha256:…`, not `python-dev`.
fn is_image(wanted: &str, found: &str) -> bool {
    found
        .strip_prefix(wanted)
        .is_some_and(|version| version.is_empty() || version.starts_with([':', '@']))
}

/// Options of `list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// How many runs
    #[arg(short = 'n', long, default_value_t = 50)]
    pub limit: usize,
    /// Which runs
    #[command(flatten)]
    pub selection: Selection,
    /// Print the recorded lines as they are, one a line
    #[arg(long)]
    pub json: bool,
    /// Where the session log is kept
    #[command(flatten)]
    pub audit: AuditArgs,
}

/// Options of `show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The run: the beginning of its name, or `last`
    pub run: String,
    /// Print the record and what it does not cover as JSON
    #[arg(long)]
    pub json: bool,
    /// Where the session log is kept
    #[command(flatten)]
    pub audit: AuditArgs,
}

/// Options of `tail`.
#[derive(Debug, Args)]
pub struct TailArgs {
    /// How many runs to begin with
    #[arg(short = 'n', long, default_value_t = 10)]
    pub limit: usize,
    /// Go on with every line that is appended, until interrupted
    #[arg(short, long)]
    pub follow: bool,
    /// Which runs
    #[command(flatten)]
    pub selection: Selection,
    /// Print the recorded lines as they are, one a line
    #[arg(long)]
    pub json: bool,
    /// Where the session log is kept
    #[command(flatten)]
    pub audit: AuditArgs,
}

/// Options of `denials`.
#[derive(Debug, Args)]
#[command(
    after_help = "Counts by host come from what each line has room for, and say how many \
    attempts they leave out; counts by anything else are those of the runs' accounts."
)]
pub struct DenialsArgs {
    /// What to count by
    #[arg(long, value_enum, default_value_t = By::Host)]
    pub by: By,
    /// Only attempts to reach this host or address
    #[arg(long)]
    pub host: Option<String>,
    /// Only attempts that were refused for this reason
    #[arg(long)]
    pub reason: Option<String>,
    /// How many rows
    #[arg(short = 'n', long, default_value_t = 50)]
    pub limit: usize,
    /// Which runs
    #[command(flatten)]
    pub selection: Selection,
    /// Print the counts as JSON
    #[arg(long)]
    pub json: bool,
    /// Where the session log is kept
    #[command(flatten)]
    pub audit: AuditArgs,
}

/// What refused attempts are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// The host or address that was not reached.
    Host,
    /// The reason of the refusal.
    Reason,
    /// The agent of the run.
    Agent,
    /// The branch of the run.
    Branch,
    /// The image of the run.
    Image,
    /// The workspace of the run.
    Workspace,
}

impl By {
    /// The word in JSON and the heading of the table.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Reason => "reason",
            Self::Agent => "agent",
            Self::Branch => "branch",
            Self::Image => "image",
            Self::Workspace => "workspace",
        }
    }
}

/// Options of `suggest`.
#[derive(Debug, Args)]
#[command(
    after_help = "Names come from the guest: read an entry before you paste it. Nothing is applied."
)]
pub struct SuggestArgs {
    /// The run: the beginning of its name, or `last` [default: all those selected]
    pub run: Option<String>,
    /// Which runs
    #[command(flatten)]
    pub selection: Selection,
    /// Print the suggestion as JSON
    #[arg(long)]
    pub json: bool,
    /// Where the session log is kept
    #[command(flatten)]
    pub audit: AuditArgs,
}

/// Options of `verify`.
#[derive(Debug, Args)]
#[command(after_help = "Exits with 0 for a sound log, and with 1 if something was found.")]
pub struct VerifyArgs {
    /// Check the checkpoints with this public key, a file of `keygen`
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Where the checkpoints are, such as a copy on another machine [default: beside the log]
    #[arg(long, value_name = "FILE")]
    pub checkpoints: Option<PathBuf>,
    /// Sign a checkpoint with this key if the log is sound
    #[arg(long, value_name = "FILE")]
    pub sign: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
    /// Where the session log is kept
    #[command(flatten)]
    pub audit: AuditArgs,
}

/// Options of `keygen`.
#[derive(Debug, Args)]
pub struct KeygenArgs {
    /// Where the secret key goes; the public one goes beside it, with `.pub` added
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about() -> About<'static> {
        About {
            time: "2026-01-31T12:00:00Z",
            agent: Some("a"),
            branch: Some("b"),
            image: "img:3",
            workspace: Some("/w"),
            refused: 0,
        }
    }

    #[test]
    fn a_selection_admits_what_fits_all_of_it() {
        let any = Selection::default();
        let since = |time: &str| Some(Since(time.parse().unwrap()));
        let text = |text: &str| Some(text.to_owned());
        for (selection, admitted) in [
            (any.clone(), true),
            (
                Selection {
                    since: since("2026-01-31T00:00:00Z"),
                    ..any.clone()
                },
                true,
            ),
            (
                Selection {
                    since: since("2026-02-01T00:00:00Z"),
                    ..any.clone()
                },
                false,
            ),
            (
                Selection {
                    agent: text("a"),
                    branch: text("b"),
                    ..any.clone()
                },
                true,
            ),
            (
                Selection {
                    agent: text("a"),
                    branch: text("x"),
                    ..any.clone()
                },
                false,
            ),
            (
                Selection {
                    image: text("img"),
                    ..any.clone()
                },
                true,
            ),
            (
                Selection {
                    image: text("im"),
                    ..any.clone()
                },
                false,
            ),
            (
                Selection {
                    workspace: Some("/w".into()),
                    ..any.clone()
                },
                true,
            ),
            (
                Selection {
                    workspace: Some("/".into()),
                    ..any.clone()
                },
                false,
            ),
            (
                Selection {
                    refused: true,
                    ..any
                },
                false,
            ),
        ] {
            assert_eq!(selection.admits(&about()), admitted, "{selection:?}");
        }
    }

    #[test]
    fn a_run_without_an_agent_is_not_one_of_any() {
        let selection = Selection {
            agent: Some(String::new()),
            ..Selection::default()
        };
        assert!(!selection.admits(&About {
            agent: None,
            ..about()
        }));
        assert!(!selection.admits_session(&Session::default()));
    }

    #[test]
    fn a_lower_bound_is_a_refusal_too() {
        let refused = Selection {
            refused: true,
            ..Selection::default()
        };
        let mut session = Session::default();
        assert!(!refused.admits_session(&session));
        session.network.egress_denied_at_least = Some(1);
        assert!(refused.admits_session(&session));
    }
}
