//! What the record of a run does not cover, and why: said, not left to be inferred from what is
//! missing.

use report::{ChannelState, Printable};
use serde::Serialize;

use super::{going_on::is_unfinished, word};
use crate::{log::evidence_of, session::Session};

/// Something that a reader might look for and not find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Blank {
    /// What is not covered.
    pub what: &'static str,
    /// Why not.
    pub why: String,
}

/// All that a record does not cover.
#[must_use]
pub fn blanks(session: &Session) -> Vec<Blank> {
    let mut blanks = Vec::new();
    let mut add = |what, why: String| blanks.push(Blank { what, why });
    for why in network(session) {
        add("network", why);
    }
    if let Some(why) = enforcement(session) {
        add("enforcement", why);
    }
    for degradation in session.network.egress_degradations.iter().flatten() {
        add("enforcement", Printable::new(degradation).to_string());
    }
    match &session.processes {
        None => add("processes", "nobody observed them".into()),
        Some(seen) if seen.observed.is_none() => {
            add(
                "processes",
                "only those that outlived the command were counted".into(),
            );
        }
        Some(_) => {}
    }
    add(
        "changed files",
        "nobody compared the workspace before and after".into(),
    );
    for (cut, what) in [
        (session.launch.command_truncated, "the command"),
        (session.launch.egress_allow_truncated, "the allowlist"),
        (session.launch.env_names_truncated, "the names of variables"),
        (
            session.network.egress_denied_hosts_truncated,
            "the refused targets",
        ),
    ] {
        if cut {
            add(
                "the record",
                format!("{what} did not fit the line and was cut"),
            );
        }
    }
    match session.evidence.as_deref() {
        None => add("details", "none were kept".into()),
        Some(path) if evidence_of(path) == "pruned" => {
            add("details", "pruned, since newer runs needed the room".into());
        }
        Some(_) => {}
    }
    blanks
}

/// Whether it was somebody else who decided than who was asked to. What it means who decided is among
/// what was done without.
fn enforcement(session: &Session) -> Option<String> {
    let by = word(&session.network.egress_enforcement?);
    let asked = session.launch.egress_enforcement_requested.as_deref()?;
    let differs = asked != "auto" && asked != by;
    differs.then(|| {
        format!(
            "{} was asked for, and it was by {by}",
            Printable::new(asked)
        )
    })
}

fn network(session: &Session) -> Vec<String> {
    let network = &session.network;
    let Some(channel) = &network.egress_channel else {
        return vec![match network.egress_denied_reported {
            Some(_) => {
                "the number of refusals was read from output that the guest could write to".into()
            }
            None if is_unfinished(session) => {
                "what was refused is told when the run has ended".into()
            }
            None => "nobody watched it".into(),
        }];
    };
    let mut whys = Vec::new();
    let reason = channel.reason.as_deref().map_or(String::new(), |reason| {
        format!(" ({})", Printable::new(reason))
    });
    match channel.state {
        ChannelState::Gap if channel.gaps.is_empty() => {
            whys.push(format!("a detail is missing{reason}"));
        }
        // The gaps themselves are told below.
        ChannelState::Complete | ChannelState::Gap => {}
        ChannelState::Interrupted => {
            whys.push(format!(
                "the account broke off{reason}: its numbers are lower bounds"
            ));
        }
        ChannelState::NeverConnected => {
            whys.push(format!("an allowlist was asked for, and nobody reported{reason}: what was refused is not known"));
        }
        ChannelState::NotApplicable => whys.push("without an allowlist nobody watches it".into()),
    }
    for gap in &channel.gaps {
        let end = gap
            .to_ms
            .map_or_else(|| "the end".to_owned(), |to| format!("{to} ms"));
        let kind = word(&gap.kind);
        whys.push(format!(
            "{kind} from {} ms to {end}: {}",
            gap.from_ms,
            Printable::new(&gap.detail)
        ));
    }
    whys.extend(sampled(session));
    whys
}

/// Targets that the line has no room for.
fn sampled(session: &Session) -> Option<String> {
    let network = &session.network;
    let shown = network.egress_denied_hosts.as_ref()?.len() as u64;
    let distinct = network.egress_denied_hosts_distinct?;
    let about = if network.egress_denied_hosts_distinct_estimated {
        "about "
    } else {
        ""
    };
    (distinct > shown).then(|| {
        format!("{shown} of {about}{distinct} refused targets are shown: the most frequent, and a random sample")
    })
}

#[cfg(test)]
mod tests {
    use report::{Enforcement, GapKind};

    use super::*;
    use crate::session::{ChannelRecord, GapRecord, Network, Processes};

    fn session(state: ChannelState, gaps: Vec<GapRecord>) -> Session {
        let channel = ChannelRecord {
            state,
            transport: None,
            gaps,
            reason: Some("because".into()),
            resumed: 0,
        };
        let network = Network {
            egress_channel: Some(channel),
            ..Network::default()
        };
        let processes = Some(Processes {
            observed: Some(3),
            outlived_root: Some(0),
            exact: true,
        });
        Session {
            network,
            processes,
            evidence: Some("/".into()),
            ..Session::default()
        }
    }

    fn whys(session: &Session, what: &str) -> Vec<String> {
        blanks(session)
            .into_iter()
            .filter(|blank| blank.what == what)
            .map(|blank| blank.why)
            .collect()
    }

    #[test]
    fn each_state_of_the_account_is_put_into_words() {
        for (state, part) in [
            (ChannelState::Complete, None),
            (ChannelState::Gap, Some("a detail is missing (because)")),
            (ChannelState::Interrupted, Some("lower bounds")),
            (
                ChannelState::NeverConnected,
                Some("nobody reported (because)"),
            ),
            (ChannelState::NotApplicable, Some("without an allowlist")),
        ] {
            let said = whys(&session(state, Vec::new()), "network");
            assert_eq!(said.len(), usize::from(part.is_some()), "{said:?}");
            assert!(part.is_none_or(|part| said[0].contains(part)), "{said:?}");
        }
    }

    #[test]
    fn a_gap_is_told_with_its_interval() {
        let gap = |to_ms| GapRecord {
            kind: GapKind::Outage,
            from_ms: 5,
            to_ms,
            detail: "proxy\nexited".into(),
        };
        let said = whys(
            &session(ChannelState::Gap, vec![gap(Some(9)), gap(None)]),
            "network",
        );
        assert_eq!(said[0], "outage from 5 ms to 9 ms: proxy\\u{a}exited");
        assert!(said[1].contains("to the end"), "{said:?}");
    }

    #[test]
    fn a_sample_is_said_to_be_one() {
        let mut sampled = session(ChannelState::Complete, Vec::new());
        sampled.network.egress_denied_hosts = Some(Vec::new());
        sampled.network.egress_denied_hosts_distinct = Some(5000);
        sampled.network.egress_denied_hosts_distinct_estimated = true;
        assert!(whys(&sampled, "network")[0].starts_with("0 of about 5000"));
    }

    #[test]
    fn an_enforcement_that_was_not_asked_for_is_said_to_be_one() {
        let enforced = |asked: &str, by| {
            let mut session = session(ChannelState::Complete, Vec::new());
            session.launch.egress_enforcement_requested = Some(asked.to_owned());
            session.network.egress_enforcement = Some(by);
            whys(&session, "enforcement")
        };
        for (asked, by) in [
            ("name", Enforcement::Name),
            ("auto", Enforcement::Name),
            ("auto", Enforcement::Address),
            ("address", Enforcement::Address),
        ] {
            assert_eq!(enforced(asked, by), [""; 0], "{asked}");
        }
        let told = enforced("name", Enforcement::Address);
        assert_eq!(told, ["name was asked for, and it was by address"]);
        assert_eq!(enforced("name", Enforcement::None).len(), 1);
    }

    #[test]
    fn what_nobody_recorded_and_what_was_pruned_is_named() {
        let nothing = Session {
            evidence: Some("/nowhere/at/all".into()),
            ..Session::default()
        };
        assert_eq!(whys(&nothing, "processes"), ["nobody observed them"]);
        assert_eq!(whys(&nothing, "network"), ["nobody watched it"]);
        assert!(whys(&nothing, "details")[0].starts_with("pruned"));
        assert_eq!(whys(&Session::default(), "details"), ["none were kept"]);
    }

    #[test]
    fn a_number_that_a_guest_could_forge_is_called_one() {
        let mut old = Session::default();
        old.network.egress_denied_reported = Some(4);
        assert!(whys(&old, "network")[0].contains("the guest could write to"));
    }

    #[test]
    fn what_was_cut_or_done_without_is_named() {
        let mut cut = session(ChannelState::Complete, Vec::new());
        cut.launch.egress_allow_truncated = true;
        cut.network.egress_degradations = Some(vec!["no NFLOG".into()]);
        assert!(whys(&cut, "the record")[0].contains("the allowlist"));
        assert_eq!(whys(&cut, "enforcement"), ["no NFLOG"]);
    }
}
