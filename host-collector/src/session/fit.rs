//! Makes a line small enough for the log, and says what was cut.

use super::Session;

/// The greatest size of a line with its end, in bytes.
pub const MAX_LINE: usize = 64 * 1024;

/// The line of a session with its end. Whatever list takes the most room is cut first.
///
/// # Errors
/// Only if JSON could not hold the line at all.
pub fn fit(session: &Session, limit: usize) -> serde_json::Result<Vec<u8>> {
    let mut line = Vec::new();
    fit_into(&mut line, session, limit)?;
    Ok(line)
}

/// Appends the same to `lines`.
pub(crate) fn fit_into(
    lines: &mut Vec<u8>,
    session: &Session,
    limit: usize,
) -> serde_json::Result<()> {
    let start = lines.len();
    let mut encode = |session: &Session| {
        lines.truncate(start);
        serde_json::to_writer(&mut *lines, session)?;
        lines.push(b'\n');
        Ok(lines.len() - start)
    };
    if encode(session)? <= limit {
        return Ok(());
    }
    let mut session = session.clone();
    while cut_the_longest(&mut session)? && encode(&session)? > limit {}
    Ok(())
}

/// Halves the list that takes the most room; false when there is nothing left to cut.
fn cut_the_longest(session: &mut Session) -> serde_json::Result<bool> {
    let launch = &mut session.launch;
    let network = &mut session.network;
    let (mut none, mut uncut) = (None, false);
    let changes = match &mut launch.egress_policy {
        Some(policy) => (&mut policy.changes, &mut policy.changes_truncated),
        None => (&mut none, &mut uncut),
    };
    let mut lists: [(usize, &mut dyn Shorten, &mut bool); 6] = [
        (0, &mut launch.command, &mut launch.command_truncated),
        (
            0,
            &mut launch.egress_allow,
            &mut launch.egress_allow_truncated,
        ),
        (0, changes.0, changes.1),
        (0, &mut launch.env_names, &mut launch.env_names_truncated),
        (
            0,
            &mut network.egress_denied_hosts,
            &mut network.egress_denied_hosts_truncated,
        ),
        (
            0,
            &mut network.egress_hosts,
            &mut network.egress_hosts_truncated,
        ),
    ];
    for (size, list, _) in &mut lists {
        *size = list.size()?;
    }
    let longest = lists.iter_mut().max_by_key(|(size, ..)| *size);
    let Some((_, list, truncated)) = longest else {
        return Ok(false);
    };
    let cut = list.shorten();
    **truncated |= cut;
    Ok(cut)
}

/// A list that can be made shorter.
trait Shorten {
    /// Bytes in JSON.
    fn size(&self) -> serde_json::Result<usize>;
    /// Drops the latter half; false if nothing can be dropped.
    fn shorten(&mut self) -> bool;
}

impl Shorten for Vec<String> {
    fn size(&self) -> serde_json::Result<usize> {
        Ok(serde_json::to_vec(self)?.len())
    }

    fn shorten(&mut self) -> bool {
        if self.len() > 1 {
            self.truncate(self.len().div_ceil(2));
            return true;
        }
        let Some(only) = self.first_mut().filter(|only| only.len() > 1) else {
            return false;
        };
        let half = (0..=only.len() / 2)
            .rev()
            .find(|&at| only.is_char_boundary(at))
            .unwrap_or(0);
        only.truncate(half);
        true
    }
}

impl<T: serde::Serialize> Shorten for Option<Vec<T>> {
    fn size(&self) -> serde_json::Result<usize> {
        Ok(serde_json::to_vec(self)?.len())
    }

    fn shorten(&mut self) -> bool {
        let Some(list) = self.as_mut().filter(|list| !list.is_empty()) else {
            return false;
        };
        list.truncate(list.len() / 2);
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::session::Launched;

    fn session(command: Vec<String>, allow: Vec<String>) -> Session {
        let launch = Launched {
            command,
            egress_allow: Some(allow),
            ..Launched::default()
        };
        Session {
            launch,
            ..Session::default()
        }
    }

    fn fitted(session: &Session) -> Session {
        let line = fit(session, MAX_LINE).unwrap();
        assert!(
            line.len() <= MAX_LINE && line.ends_with(b"}\n"),
            "{}",
            line.len()
        );
        serde_json::from_slice(&line).unwrap()
    }

    #[test]
    fn what_fits_is_left_alone() {
        let session = session(vec!["a".into()], vec!["b.example".into()]);
        assert_eq!(fitted(&session), session);
    }

    #[test]
    fn only_what_is_long_is_cut_and_said_to_be() {
        let allow: Vec<String> = (0..100_000).map(|n| format!("h{n}.example")).collect();
        let cut = fitted(&session(
            vec!["pip".into(), "install".into()],
            allow.clone(),
        ))
        .launch;
        assert_eq!(
            (
                cut.command.len(),
                cut.command_truncated,
                cut.egress_allow_truncated
            ),
            (2, false, true)
        );
        let kept = cut.egress_allow.unwrap();
        assert!(
            kept.len() > 500 && allow.starts_with(&kept),
            "{}",
            kept.len()
        );
    }

    #[test]
    fn a_single_argument_of_megabytes_is_cut_within() {
        let cut = fitted(&session(vec!["ü".repeat(1_000_000)], Vec::new())).launch;
        assert!(cut.command_truncated);
        assert!(cut.command.first().unwrap().chars().all(|c| c == 'ü'));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn any_line_fits(argument in "[\u{0}-\u{ff}]{0,200}", arguments in 0usize..3000, hosts in 0usize..3000) {
            let allow = (0..hosts).map(|n| format!("a-rather-long-name-{n}.example")).collect();
            fitted(&session(vec![argument; arguments], allow));
        }
    }

    #[test]
    fn changes_of_the_list_are_cut_as_well_and_said_to_be() {
        let change = |generation| crate::session::PolicyChange {
            generation,
            digest: "d".repeat(64),
            state: crate::session::PolicyState::InForce,
            time: "t".into(),
            at_ms: Some(1),
            added: vec!["x".repeat(250); 32],
            removed: Vec::new(),
            entries_truncated: false,
            detail: None,
        };
        let mut session = session(vec!["a".into()], vec!["b.example".into()]);
        session.launch.egress_policy = Some(crate::session::PolicyIdentity {
            changes: Some((2..66).map(change).collect()),
            ..crate::session::PolicyIdentity::default()
        });
        let policy = fitted(&session).launch.egress_policy.unwrap();
        assert!(policy.changes_truncated);
        assert_eq!(policy.changes.unwrap().first().unwrap().generation, 2);
    }
}
