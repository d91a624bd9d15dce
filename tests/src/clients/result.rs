//! What a client made of its run, in words that are the same from run to run.

use std::{collections::BTreeMap, sync::Mutex};

use super::Cell;
use crate::process::Finished;

/// The answer of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The exit code.
    pub exit: i32,
    /// The line with the words that were asked for, if there is one.
    pub line: Option<String>,
    /// Whether the client shows the reason of a refusal, as the proxy words it.
    pub explains: bool,
}

/// The answers of all runs so far, by client.
#[derive(Debug, Default)]
pub struct Results(Mutex<BTreeMap<(String, Cell), Answer>>);

impl Answer {
    /// What `finished` says, with the line that has `words` in it.
    pub(super) fn of(finished: &Finished, words: &str) -> Self {
        let lines = || {
            let lines = finished.stderr.lines().chain(finished.stdout.lines());
            // The summary after the run is for whoever launched it, not for the client.
            lines.filter(|line| !line.starts_with("host-collector: "))
        };
        let line = lines().find(|line| line.contains(words));
        Self {
            exit: finished.code,
            line: line.map(|line| settled(line.trim())),
            explains: lines().any(|line| REASONS.iter().any(|reason| line.contains(reason))),
        }
    }
}

impl Results {
    /// Keeps an answer.
    pub fn add(&self, client: &str, cell: Cell, answer: Answer) {
        if let Ok(mut answers) = self.0.lock() {
            answers.insert((client.to_owned(), cell), answer);
        }
    }

    /// The answer of a run, if there was one.
    #[must_use]
    pub fn of(&self, client: &str, cell: Cell) -> Option<Answer> {
        let answers = self.0.lock().ok()?;
        answers.get(&(client.to_owned(), cell)).cloned()
    }
}

/// `line` without what is another in the next run: the lab's addresses, objects' and threads'.
fn settled(line: &str) -> String {
    // OpenSSL begins an error with the number of its thread.
    let line = match line.split_once(":error:") {
        Some((thread, rest)) => {
            let before = thread.trim_end_matches(|c: char| c.is_ascii_hexdigit());
            format!("{before}error:{rest}")
        }
        None => line.to_owned(),
    };
    let line = line
        .split_at_checked(TIME.len())
        .map_or(
            line.as_str(),
            |(time, rest)| {
                if is_time(time) { rest } else { &line }
            },
        );
    // With their ports: those of the guest's side are another each time.
    let v4 = |c: char| c.is_ascii_digit() || matches!(c, '.' | ':');
    let v6 = |c: char| c.is_ascii_hexdigit() || matches!(c, ':' | ']');
    let line = replaced(line, "198.18.", v4, "ADDRESS");
    let line = replaced(&line, "[fd5e:198:18:", v6, "ADDRESS");
    let line = replaced(&line, "fd5e:198:18:", v6, "ADDRESS");
    replaced(&line, "0x7", |c| c.is_ascii_hexdigit(), "0x…")
}

/// Whether `text` is written as [`TIME`] is.
fn is_time(text: &str) -> bool {
    let alike = |(c, pattern): (char, char)| match pattern {
        '0' => c.is_ascii_digit(),
        other => c == other,
    };
    text.chars().zip(TIME.chars()).all(alike)
}

/// `text` with `stand_in` for whatever begins with `prefix` and goes on with characters that
/// `belong`; a point or colon at its end is the sentence's.
fn replaced(text: &str, prefix: &str, belong: fn(char) -> bool, stand_in: &str) -> String {
    let mut replaced = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(prefix) {
        let end = after.find(|c| !belong(c)).unwrap_or(after.len());
        let (word, _) = after.split_at(end);
        let word = word.trim_end_matches(['.', ':']);
        replaced.push_str(before);
        replaced.push_str(stand_in);
        rest = after.get(word.len()..).unwrap_or_default();
    }
    replaced + rest
}

/// How wget begins a line.
const TIME: &str = "0000-00-00 00:00:00 ";
/// How refusals are worded, on whatever way they take.
const REASONS: [&str; 3] = ["egress denied", "not_allowed", "access denied"];

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(stdout: &str, stderr: &str) -> Finished {
        Finished {
            code: 7,
            stdout: stdout.to_owned(),
            stderr: stderr.to_owned(),
        }
    }

    #[test]
    fn the_line_with_the_words_is_kept() {
        let answer = Answer::of(&finished("one\n two words \n", "three\n"), "two");
        assert_eq!(
            (answer.exit, answer.line.as_deref()),
            (7, Some("two words"))
        );
        assert!(!answer.explains);
    }

    #[test]
    fn a_client_explains_wherever_it_shows_the_reason() {
        for (stdout, stderr, explains) in [
            ("HTTP/1.1 403 egress denied: not_allowed", "", true),
            ("", "tlsv1 alert access denied", true),
            ("403", "Forbidden", false),
        ] {
            let answer = Answer::of(&finished(stdout, stderr), "x");
            assert_eq!(answer.explains, explains, "{stdout}{stderr}");
        }
    }

    #[test]
    fn what_the_launcher_is_told_is_not_the_client_s() {
        let summary = "host-collector: run 1 exited 1; refused 1 attempt (x:443 not_allowed)";
        let answer = Answer::of(&finished("", summary), "refused");
        assert_eq!((answer.line, answer.explains), (None, false));
    }

    #[test]
    fn what_differs_from_run_to_run_is_left_out() {
        for (line, expected) in [
            (
                "connect to 198.18.7.20 port 443",
                "connect to ADDRESS port 443",
            ),
            (
                "dial [fd5e:198:18:7::20]:443: refused",
                "dial ADDRESS: refused",
            ),
            (
                "read tcp 198.18.1.200:43210->198.18.1.20:443: read: reset",
                "read tcp ADDRESS->ADDRESS: read: reset",
            ),
            ("fd5e:198:18:7::20: gone", "ADDRESS: gone"),
            (
                "<Connection object at 0x7f2b4c1d>: x",
                "<Connection object at 0x…>: x",
            ),
            (
                "[cause: 00C81D4D487F0000:error:0A000438:SSL",
                "[cause: error:0A000438:SSL",
            ),
            ("2026-11-29 20:13:38 ERROR 403", "ERROR 403"),
            ("2026-11-29: a day, no time", "2026-11-29: a day, no time"),
            ("error 56: failed 1.2.3", "error 56: failed 1.2.3"),
            (
                "ipv6:%5Bfd5e:198:18:7::20%5D:443: x",
                "ipv6:%5BADDRESS%5D:443: x",
            ),
            ("„ü“ 198.18.1.2.", "„ü“ ADDRESS."),
        ] {
            assert_eq!(settled(line), expected, "{line}");
        }
    }
}
