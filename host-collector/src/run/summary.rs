//! The one line at the end of a run: how it ended, what was refused, what would have let it pass.

use std::fmt::Write as _;

use policy::Policy;
use report::{ChannelState, Enforcement, Printable};

use crate::{
    session::{DeniedHost, Session},
    suggest::{entry, is_question},
};

/// The line, without its end and without the program's name.
#[must_use]
pub fn summary(session: &Session) -> String {
    let run = session.run_id.as_deref().unwrap_or_default();
    let run = Printable::new(run.get(..SHOWN_ID).unwrap_or(run));
    let mut line = format!("run {run} {}", ending(session));
    let network = &session.network;
    let hosts = network.egress_denied_hosts.as_deref().unwrap_or_default();
    match (network.egress_denied, network.egress_denied_at_least) {
        (Some(0), _) => line.push_str("; refused nothing"),
        (Some(count), _) => push_refused(&mut line, "", count, hosts),
        (None, Some(count)) => push_refused(&mut line, "at least ", count, hosts),
        (None, None) => {}
    }
    if network.egress_enforcement == Some(Enforcement::Address) {
        line.push_str("; enforced by address: whoever shares an allowed one was reachable");
    }
    let allow = suggestions(hosts);
    if !allow.is_empty() {
        let _ = write!(line, "; to allow: --allow {}", allow.join(","));
    }
    if let Some(channel) = &network.egress_channel
        && let Some(word) = doubt(channel.state)
    {
        let reason = channel.reason.as_deref().map(Printable::new);
        let _ = write!(line, "; {word}");
        if let Some(reason) = reason {
            let _ = write!(line, ": {reason}");
        }
    }
    line
}

fn ending(session: &Session) -> String {
    match (session.signal, session.exit_code) {
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, Some(code)) => format!("exited {code}"),
        (None, None) if session.detached && session.finished.is_none() => "was launched".into(),
        (None, None) => "ended".into(),
    }
}

fn push_refused(line: &mut String, bound: &str, count: u64, hosts: &[DeniedHost]) {
    let attempts = if count == 1 { "attempt" } else { "attempts" };
    let _ = write!(line, "; refused {bound}{count} {attempts}");
    let shown: Vec<String> = hosts.iter().take(SHOWN_HOSTS).map(refused_host).collect();
    if shown.is_empty() {
        return;
    }
    let more = if hosts.len() > SHOWN_HOSTS {
        ", …"
    } else {
        ""
    };
    let _ = write!(line, " ({}{more})", shown.join(", "));
}

/// `evil.example:443 not_allowed ×2`
pub(crate) fn refused_host(host: &DeniedHost) -> String {
    let mut text = format!("{} {}", host.target(), Printable::new(&host.reason));
    if host.count != 1 {
        let _ = write!(text, " ×{}", host.count);
    }
    text
}

/// Entries that would have let refused attempts pass, as far as their reason tells.
fn suggestions(hosts: &[DeniedHost]) -> Vec<String> {
    let mut entries: Vec<String> = Vec::new();
    let is_connected = |asked: &DeniedHost| {
        let mut others = hosts.iter().filter(|host| host.host == asked.host);
        others.any(|host| !is_question(host) && entry(host).is_ok())
    };
    let wanted = hosts
        .iter()
        .filter(|host| !is_question(host) || !is_connected(host));
    for entry in wanted.filter_map(|host| entry(host).ok()) {
        // Names come from a guest: only what the grammar takes is put into somebody's shell.
        if !entries.contains(&entry) && Policy::from_entries([&entry]).is_ok() {
            entries.push(entry);
        }
        if entries.len() == SHOWN_HOSTS {
            break;
        }
    }
    entries
}

/// What has to be said of an account that is not complete.
pub(crate) const fn doubt(state: ChannelState) -> Option<&'static str> {
    match state {
        ChannelState::Complete | ChannelState::NotApplicable => None,
        ChannelState::Gap => Some("the account has a gap"),
        ChannelState::Interrupted => Some("the account was interrupted"),
        ChannelState::NeverConnected => Some("nobody reported what was refused"),
    }
}

const SHOWN_HOSTS: usize = 3;
/// Digits that name a run among those of years.
pub(crate) const SHOWN_ID: usize = 12;

#[cfg(test)]
mod tests {
    use report::Transport;

    use super::*;
    use crate::session::{ChannelRecord, Network};

    fn host(name: &str, port: u16, reason: &str, count: u64) -> DeniedHost {
        DeniedHost {
            host: Some(name.into()),
            address: None,
            port: Some(port),
            proto: Transport::Tcp,
            reason: reason.into(),
            count,
            first_ms: 0,
            last_ms: 0,
            at_least: false,
        }
    }

    fn address(address: &str, port: u16, reason: &str) -> DeniedHost {
        DeniedHost {
            host: None,
            address: Some(address.into()),
            ..host("", port, reason, 1)
        }
    }

    fn session(state: ChannelState, denied: u64, hosts: Vec<DeniedHost>) -> Session {
        let is_final = state.is_final();
        let channel = ChannelRecord {
            state,
            transport: None,
            gaps: Vec::new(),
            reason: Some("why".into()),
            resumed: 0,
        };
        let network = Network {
            egress_channel: Some(channel),
            egress_denied: is_final.then_some(denied),
            egress_denied_at_least: (!is_final).then_some(denied),
            egress_denied_hosts: Some(hosts),
            ..Network::default()
        };
        Session {
            run_id: Some("0123456789abcdef".into()),
            exit_code: Some(0),
            network,
            ..Session::default()
        }
    }

    #[test]
    fn a_run_with_refusals_says_which_and_what_to_add() {
        let hosts = vec![
            host("evil.example", 443, "not_allowed", 2),
            address("192.0.2.1", 22, "packet"),
        ];
        assert_eq!(
            summary(&session(ChannelState::Complete, 3, hosts)),
            "run 0123456789ab exited 0; refused 3 attempts (evil.example:443 not_allowed ×2, 192.0.2.1:22 packet); \
             to allow: --allow evil.example,192.0.2.1:22"
        );
    }

    #[test]
    fn nothing_refused_is_said_and_nobody_looking_is_said_otherwise() {
        assert_eq!(
            summary(&session(ChannelState::Complete, 0, Vec::new())),
            "run 0123456789ab exited 0; refused nothing"
        );
        let mut silent = session(ChannelState::NeverConnected, 0, Vec::new());
        silent.network.egress_denied_at_least = None;
        assert_eq!(
            summary(&silent),
            "run 0123456789ab exited 0; nobody reported what was refused: why"
        );
        let plain = Session {
            network: Network::unwatched(),
            ..session(ChannelState::NotApplicable, 0, Vec::new())
        };
        assert_eq!(summary(&plain), "run 0123456789ab exited 0");
    }

    #[test]
    fn a_broken_account_says_at_least() {
        let mut broken = session(
            ChannelState::Interrupted,
            1,
            vec![host("a.example", 443, "not_allowed", 1)],
        );
        (broken.exit_code, broken.signal) = (Some(137), Some(9));
        assert_eq!(
            summary(&broken),
            "run 0123456789ab was ended by signal 9; refused at least 1 attempt (a.example:443 not_allowed); \
             to allow: --allow a.example; the account was interrupted: why"
        );
    }

    #[test]
    fn an_entry_is_suggested_only_where_one_would_help_and_is_sound() {
        for (host, entry) in [
            (host("a.example", 443, "not_allowed", 1), Some("a.example")),
            (
                host("a.example", 8443, "not_allowed", 1),
                Some("a.example:8443"),
            ),
            (
                host("a.example", 22, "port_not_allowed", 1),
                Some("a.example:22"),
            ),
            (host("a.example", 443, "denied_by_rule", 1), None),
            (host("a.example", 443, "quic", 1), None),
            (host("a; rm -rf /", 443, "not_allowed", 1), None),
            (host("*", 443, "not_allowed", 1), None),
            (
                address("2001:db8::1", 22, "address_literal"),
                Some("[2001:db8::1]:22"),
            ),
            (
                DeniedHost {
                    proto: Transport::Udp,
                    ..address("192.0.2.1", 53, "packet")
                },
                None,
            ),
        ] {
            assert_eq!(
                suggestions(std::slice::from_ref(&host)),
                entry.into_iter().collect::<Vec<_>>(),
                "{host:?}"
            );
        }
    }

    #[test]
    fn a_name_that_was_asked_for_is_added_for_the_port_it_was_wanted_on() {
        let question = host("a.example", 53, "dns_not_allowed", 2);
        assert_eq!(suggestions(std::slice::from_ref(&question)), ["a.example"]);
        let connection = host("a.example", 22, "not_allowed", 1);
        for hosts in [
            [question.clone(), connection.clone()],
            [connection.clone(), question.clone()],
        ] {
            assert_eq!(suggestions(&hosts), ["a.example:22"]);
        }
        let elsewhere = host("b.example", 22, "not_allowed", 1);
        let both = ["a.example", "b.example:22"];
        assert_eq!(suggestions(&[question, elsewhere]), both);
    }

    #[test]
    fn enforcement_by_address_says_what_it_is() {
        let mut session = session(ChannelState::Complete, 0, Vec::new());
        session.network.egress_enforcement = Some(Enforcement::Name);
        assert!(!summary(&session).contains("address"));
        session.network.egress_enforcement = Some(Enforcement::Address);
        let line = summary(&session);
        let told = "; enforced by address: whoever shares an allowed one was reachable";
        assert!(line.ends_with(told), "{line}");
    }

    #[test]
    fn the_line_stays_one_line_whatever_the_guest_named() {
        let hosts = (0..9)
            .map(|n| host(&format!("a\n\u{1b}[2J{n}"), 1, "x\ny", 1))
            .collect();
        let line = summary(&session(ChannelState::Complete, 9, hosts));
        assert!(!line.contains(|c: char| c.is_control()), "{line}");
        assert!(line.contains(", …)"), "{line}");
    }
}
