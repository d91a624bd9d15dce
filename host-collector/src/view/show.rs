//! `show`: all that is known of one run, and what is not.

use std::{
    collections::BTreeSet,
    fmt::{self, Write as _},
    io::{self, Write},
};

use jiff::{Timestamp, tz::TimeZone};
use report::{ChannelState, Enforcement, Printable};

use super::{
    ViewError,
    ago::{ago, local, took},
    counted,
    coverage::blanks,
    going_on::{going_on, is_unfinished},
    log_dir,
    shell::quoted,
    unless_gone, word,
};
use crate::{
    cli::ShowArgs,
    environment::Environment,
    log::{Entries, Entry},
    session::{DeniedHost, PolicyChange, PolicyIdentity, PolicyState, ReachedHost, Session},
};

/// Prints one run.
///
/// # Errors
/// When there is no such run, or more than one.
pub fn show(args: &ShowArgs, environment: &Environment) -> Result<(), ViewError> {
    let dir = log_dir(&args.audit, environment)?;
    let all = going_on(environment, &dir).chain(Entries::open(&dir));
    let entry = find(all, &args.run)?;
    let text = if args.json {
        let blanks = serde_json::to_string(&blanks(&entry.session)).unwrap_or_default();
        // The line as it stands in the log, so that its digest can be checked.
        format!(
            "{{\"run\":{},\"not_covered\":{blanks}}}
",
            entry.line
        )
    } else {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = describe(
            &entry.session,
            Timestamp::now(),
            &TimeZone::system(),
            &mut text,
        );
        text
    };
    let mut out = io::stdout().lock();
    unless_gone(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// The newest line of the run whose name begins so, or of the last run.
pub(super) fn find(
    mut entries: impl Iterator<Item = Entry>,
    run: &str,
) -> Result<Entry, ViewError> {
    let missing = || ViewError::NoRun(Printable::new(run));
    if run == "last" {
        return entries.next().ok_or_else(missing);
    }
    let mut found = None;
    let mut names = BTreeSet::new();
    for entry in entries {
        let Some(name) = entry
            .session
            .run_id
            .clone()
            .filter(|name| name.starts_with(run))
        else {
            continue;
        };
        names.insert(name);
        found.get_or_insert(entry);
    }
    match names.len() {
        0 | 1 => found.ok_or_else(missing),
        count => Err(ViewError::Ambiguous {
            run: Printable::new(run),
            count,
        }),
    }
}

pub(super) fn describe(
    session: &Session,
    now: Timestamp,
    zone: &TimeZone,
    out: &mut String,
) -> fmt::Result {
    launch(session, now, zone, out)?;
    network(session, out)?;
    if let Some(evidence) = &session.evidence {
        field(out, "details", evidence)?;
    }
    writeln!(out, "\nnot covered")?;
    for blank in blanks(session) {
        writeln!(out, "  {}: {}", blank.what, blank.why)?;
    }
    Ok(())
}

fn launch(session: &Session, now: Timestamp, zone: &TimeZone, out: &mut String) -> fmt::Result {
    let launch = &session.launch;
    let launched = format!(
        "{} ({})",
        local(&session.time, zone),
        ago(&session.time, now)
    );
    field(
        out,
        "run",
        session.run_id.as_deref().unwrap_or("without a name"),
    )?;
    field(out, "launched", &launched)?;
    field(out, "ended", &ending(session))?;
    field(out, "image", &launch.image)?;
    // An argument at a time, so that none can pass for two.
    words(out, "command", &launch.command)?;
    for (name, value) in [
        ("host", &session.host),
        ("engine", &launch.engine),
        ("runtime", &launch.runtime),
        ("agent", &launch.agent),
        ("branch", &launch.branch),
        ("workspace", &launch.workspace),
        ("workdir", &launch.workdir),
        ("routed from", &launch.routed_from),
        ("because", &launch.route_reason),
        ("task", &launch.route_id),
        ("handed by", &launch.handoff_from),
        ("its session", &launch.handoff_session),
    ] {
        if let Some(value) = value {
            field(out, name, value)?;
        }
    }
    if let Some(attempt) = launch.route_attempt {
        field(out, "attempt", &attempt.to_string())?;
    }
    if let Some(names) = launch.env_names.as_ref().filter(|names| !names.is_empty()) {
        words(out, "variables", names)?;
    }
    Ok(())
}

fn ending(session: &Session) -> String {
    let how = match (session.signal, session.exit_code) {
        (Some(signal), _) => format!("by signal {signal}"),
        (None, Some(code)) => format!("with code {code}"),
        (None, None) if is_unfinished(session) => "not yet, or nobody was there to see it".into(),
        (None, None) => "not known".into(),
    };
    session.duration_ms.map_or_else(
        || how.clone(),
        |duration| format!("{how}, after {}", took(duration)),
    )
}

/// The list in force at last, and how it came to be from that of the launch, which is shown above.
fn policy_and_changes(policy: &PolicyIdentity, out: &mut String) -> fmt::Result {
    let PolicyIdentity {
        digest, generation, ..
    } = policy;
    let digest = Printable::new(digest);
    field(out, "policy", &format!("{digest}, generation {generation}"))?;
    if policy.changes_truncated {
        writeln!(out, "{:12}not all changes are shown", "")?;
    }
    for change in policy.changes.iter().flatten() {
        writeln!(out, "{:12}{}", "", changed(change))?;
    }
    if policy.unasked > 0 {
        let count = policy.unasked;
        writeln!(
            out,
            "{:12}the container spoke of {count} that it was never given",
            ""
        )?;
    }
    Ok(())
}

/// A change in one line: what was asked for, and what came of it.
fn changed(change: &PolicyChange) -> String {
    let signed = |sign: char, entries: &[String]| {
        let entries = entries.iter();
        let signed: Vec<_> = entries
            .map(|entry| format!(" {sign}{}", Printable::new(entry)))
            .collect();
        signed.concat()
    };
    let state = match change.state {
        PolicyState::InForce => format!("in force from {} ms", change.at_ms.unwrap_or_default()),
        PolicyState::Refused => "refused by the container".to_owned(),
        PolicyState::Unconfirmed => "not confirmed by the container".to_owned(),
    };
    let more = if change.entries_truncated { " …" } else { "" };
    let why = change.detail.as_deref().map(Printable::new);
    format!(
        "generation {}:{}{}{more}, {state}{}",
        change.generation,
        signed('+', &change.added),
        signed('-', &change.removed),
        why.map_or_else(String::new, |why| format!(": {why}")),
    )
}

fn network(session: &Session, out: &mut String) -> fmt::Result {
    let (launch, network) = (&session.launch, &session.network);
    if let Some(mode) = &launch.network {
        let by = network.egress_enforcement.map(|by| match by {
            Enforcement::Address => {
                ", enforced by address: whoever shares an allowed one was reachable".to_owned()
            }
            Enforcement::Name | Enforcement::None => format!(", enforced by {}", word(&by)),
        });
        field(out, "network", &format!("{mode}{}", by.unwrap_or_default()))?;
    }
    if let Some(allow) = &launch.egress_allow {
        words(out, "allowed", allow)?;
    }
    if let Some(policy) = &launch.egress_policy {
        policy_and_changes(policy, out)?;
    }
    if let Some(channel) = &network.egress_channel {
        field(
            out,
            "account",
            &format!("{}: {}", word(&channel.state), meaning(channel.state)),
        )?;
    }
    attempts(
        out,
        "refused",
        network.egress_denied,
        network.egress_denied_at_least,
    )?;
    for host in network.egress_denied_hosts.iter().flatten() {
        writeln!(out, "{:12}{}", "", denied(host))?;
    }
    attempts(
        out,
        "reached",
        network.egress_allowed,
        network.egress_allowed_at_least,
    )?;
    for host in network.egress_hosts.iter().flatten() {
        writeln!(out, "{:12}{}", "", reached(host))?;
    }
    let ech = network.egress_ech_offered;
    match ech.or(network.egress_ech_offered_at_least) {
        Some(0) | None => {}
        Some(count) => {
            let bound = if ech.is_some() { "" } else { "at least " };
            writeln!(
                out,
                "{:12}{bound}{count} offered to hide the name (Encrypted ClientHello)",
                ""
            )?;
        }
    }
    Ok(())
}

const fn meaning(state: ChannelState) -> &'static str {
    match state {
        ChannelState::Complete => "every report arrived, and they add up",
        ChannelState::Gap => "the numbers are final, with a hole that is told below",
        ChannelState::Interrupted => "it broke off, and the numbers are lower bounds",
        ChannelState::NeverConnected => "nobody reported",
        ChannelState::NotApplicable => "there was no allowlist to report on",
    }
}

fn attempts(out: &mut String, name: &str, all: Option<u64>, at_least: Option<u64>) -> fmt::Result {
    match (all, at_least) {
        (Some(count), _) => field(out, name, &counted(count, "attempt")),
        (None, Some(count)) => {
            let attempts = counted(count, "attempt");
            field(out, name, &format!("at least {attempts}"))
        }
        (None, None) => Ok(()),
    }
}

fn denied(host: &DeniedHost) -> String {
    let bound = if host.at_least { "at least " } else { "" };
    let times = match host.count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    };
    let when = match (host.first_ms, host.last_ms) {
        (first, last) if first == last => format!("at {first} ms"),
        (first, last) => format!("from {first} to {last} ms"),
    };
    format!(
        "{} {}, {bound}{times}, {when}",
        host.target(),
        Printable::new(&host.reason)
    )
}

fn reached(host: &ReachedHost) -> String {
    let name = host
        .host
        .as_deref()
        .or(host.address.as_deref())
        .unwrap_or("several hosts");
    let port = host
        .port
        .map_or_else(String::new, |port| format!(":{port}"));
    let bound = if host.at_least { "at least " } else { "" };
    format!(
        "{}{port} {bound}{}, {} failed, {} bytes up, {} down",
        Printable::new(name),
        counted(host.connections, "connection"),
        host.failures,
        host.bytes_up,
        host.bytes_down
    )
}

fn field(out: &mut String, name: &str, value: &str) -> fmt::Result {
    writeln!(out, "{name:12}{}", Printable::new(value))
}

/// Each word is escaped and cut for itself, and quoted where a shell would need it.
fn words(out: &mut String, name: &str, words: &[String]) -> fmt::Result {
    let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
    writeln!(out, "{name:12}{}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Launched;

    fn entries(names: &[&str]) -> Vec<Entry> {
        names
            .iter()
            .map(|name| {
                let session = Session {
                    run_id: Some((*name).into()),
                    ..Session::default()
                };
                Entry {
                    line: serde_json::to_string(&session).unwrap(),
                    session,
                }
            })
            .collect()
    }

    fn found(run: &str) -> Result<String, String> {
        let entries = entries(&["abc1", "abd2", "abc1"]).into_iter();
        find(entries, run)
            .map(|entry| entry.session.run_id.unwrap())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_beginning_of_a_name_is_enough_if_it_is_one_run_s() {
        assert_eq!(found("abc").unwrap(), "abc1");
        assert_eq!(found("last").unwrap(), "abc1");
        assert!(found("ab").unwrap_err().contains("2 runs"));
        assert!(found("x\u{1b}").unwrap_err().contains("no run `x\\u{1b}`"));
    }

    #[test]
    fn an_empty_log_has_no_last_run() {
        assert!(find(Vec::new().into_iter(), "last").is_err());
    }

    #[test]
    fn a_run_is_described_with_what_is_not_covered() {
        let line = r#"{"time":"2026-01-10T12:00:00.000Z","run_id":"ab","image":"img","command":["sh","-c","a\nb 'c'"],
            "exit_code":3,"duration_ms":2500,"network":"allowlist","egress_enforcement":"name","egress_allow":["a.example"],
            "egress_channel":{"state":"interrupted","reason":"no bye"},"egress_denied_at_least":2,
            "egress_denied_hosts":[{"host":"e.example","port":443,"proto":"tcp","reason":"not_allowed","count":2,"first_ms":1,"last_ms":9}],
            "egress_hosts":[{"host":"a.example","port":443,"connections":1,"failures":0,"bytes_up":5,"bytes_down":6}]}"#;
        let session: Session = serde_json::from_str(line).unwrap();
        let mut text = String::new();
        describe(
            &session,
            "2026-01-10T12:05:00Z".parse().unwrap(),
            &TimeZone::UTC,
            &mut text,
        )
        .unwrap();
        for part in [
            "launched    2026-01-10 12:00:00 UTC (5 min ago)\n",
            "ended       with code 3, after 2.5 s\n",
            "command     sh -c 'a\\u{a}b '\\''c'\\'''\n",
            "network     allowlist, enforced by name\n",
            "refused     at least 2 attempts\n            e.example:443 not_allowed, 2 times, from 1 to 9 ms\n",
            "            a.example:443 1 connection, 0 failed, 5 bytes up, 6 down\n",
            "not covered\n  network: the account broke off (no bye): its numbers are lower bounds\n",
            "  processes: nobody observed them\n",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn nothing_of_the_log_acts_on_the_terminal() {
        let nasty = "x\u{1b}[2J\n".repeat(100);
        let launch = Launched {
            image: nasty.clone(),
            workspace: Some(nasty.clone()),
            command: vec![nasty.clone()],
            egress_allow: Some(vec![nasty; 9]),
            ..Launched::default()
        };
        let mut text = String::new();
        describe(
            &Session {
                launch,
                ..Session::default()
            },
            Timestamp::UNIX_EPOCH,
            &TimeZone::UTC,
            &mut text,
        )
        .unwrap();
        assert!(!text.contains('\u{1b}'), "{text}");
        assert!(text.lines().all(|line| !line.starts_with('x')), "{text}");
    }

    #[test]
    fn a_refusal_reads_as_a_person_would_say_it() {
        let host = |count, last_ms, at_least| DeniedHost {
            host: Some("e.example".into()),
            address: None,
            port: Some(443),
            proto: report::Transport::Tcp,
            reason: "quic".into(),
            count,
            first_ms: 5,
            last_ms,
            at_least,
        };
        for (host, expected) in [
            (host(1, 5, false), "e.example:443 quic, once, at 5 ms"),
            (
                host(2, 9, true),
                "e.example:443 quic, at least 2 times, from 5 to 9 ms",
            ),
        ] {
            assert_eq!(denied(&host), expected);
        }
    }

    fn change(state: PolicyState) -> PolicyChange {
        PolicyChange {
            generation: 2,
            digest: String::new(),
            state,
            time: String::new(),
            at_ms: (state == PolicyState::InForce).then_some(7),
            added: vec!["b.example".into()],
            removed: vec!["!b.example".into()],
            entries_truncated: false,
            detail: None,
        }
    }

    #[test]
    fn a_change_says_what_it_was_and_what_came_of_it() {
        for (state, words) in [
            (PolicyState::InForce, "in force from 7 ms"),
            (PolicyState::Refused, "refused by the container"),
            (PolicyState::Unconfirmed, "not confirmed by the container"),
        ] {
            let line = changed(&change(state));
            assert_eq!(
                line,
                format!("generation 2: +b.example -!b.example, {words}")
            );
        }
        let cut = PolicyChange {
            entries_truncated: true,
            detail: Some("a\u{1b}b".into()),
            ..change(PolicyState::Refused)
        };
        let line = changed(&cut);
        assert!(
            line.contains(" …,") && line.ends_with(": a\\u{1b}b"),
            "{line}"
        );
    }

    #[test]
    fn lists_that_the_container_was_never_given_are_told_of() {
        let policy = PolicyIdentity {
            changes: Some(vec![change(PolicyState::InForce)]),
            changes_truncated: true,
            unasked: 3,
            ..PolicyIdentity::default()
        };
        let mut text = String::new();
        policy_and_changes(&policy, &mut text).unwrap();
        assert!(
            text.contains("spoke of 3 that it was never given"),
            "{text}"
        );
        assert!(text.contains("not all changes are shown"), "{text}");
    }
}
