//! How far long work has come, for whoever waits at a terminal.

use std::{
    io::{self, IsTerminal as _, Write},
    time::{Duration, Instant},
};

/// One line on standard error that is written over. Where that is no terminal, and where the work is
/// short, nothing.
#[derive(Debug)]
pub(super) struct Progress {
    what: &'static str,
    next: Option<Instant>,
    is_shown: bool,
}

impl Progress {
    pub(super) fn on_stderr(what: &'static str) -> Self {
        let begins = Instant::now() + PATIENCE;
        Self {
            what,
            next: io::stderr().is_terminal().then_some(begins),
            is_shown: false,
        }
    }

    /// `done` of `total`.
    pub(super) fn at(&mut self, done: u64, total: u64) {
        self.print(done, total, Instant::now(), &mut io::stderr());
    }

    /// Takes the line away.
    pub(super) fn end(&mut self) {
        if self.is_shown {
            // There is nobody left to tell if this cannot be told.
            let _ = write!(io::stderr(), "\r\u{1b}[K");
        }
    }

    fn print(&mut self, done: u64, total: u64, now: Instant, out: &mut impl Write) {
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        self.next = Some(now + STEP);
        self.is_shown = true;
        let percent = done.saturating_mul(100).checked_div(total).unwrap_or(0);
        let _ = write!(out, "\r{} … {percent} %", self.what).and_then(|()| out.flush());
    }
}

/// What is done sooner needs no progress.
const PATIENCE: Duration = Duration::from_millis(500);
const STEP: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_work_shows_nothing_and_long_work_a_line_that_is_written_over() {
        let start = Instant::now();
        let mut progress = Progress {
            what: "checking",
            next: Some(start + PATIENCE),
            is_shown: false,
        };
        let mut out = Vec::new();
        progress.print(1, 4, start, &mut out);
        assert!(out.is_empty());
        for (after, done) in [(500, 2), (510, 2), (700, 3)] {
            progress.print(done, 4, start + Duration::from_millis(after), &mut out);
        }
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "\rchecking … 50 %\rchecking … 75 %"
        );
    }

    #[test]
    fn without_a_terminal_nothing_is_shown_however_long_it_takes() {
        let mut progress = Progress {
            what: "checking",
            next: None,
            is_shown: false,
        };
        let mut out = Vec::new();
        progress.print(0, 0, Instant::now() + Duration::from_secs(60), &mut out);
        assert!(out.is_empty());
    }
}
