//! What the output goes to.

use rustix::{
    stdio::stdout,
    termios::{isatty, tcgetwinsize},
};

use crate::environment::Environment;

/// A place for text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Terminal {
    /// Columns; none where nothing limits a line.
    pub(super) width: Option<usize>,
    /// Whether colour helps.
    pub(super) color: bool,
}

/// What a word means, for those who see colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    /// Nothing to see.
    Plain,
    /// Something was refused, or is in doubt.
    Notable,
    /// Something failed.
    Bad,
}

impl Terminal {
    /// That of standard output. `NO_COLOR` (no-color.org) is respected.
    pub(super) fn of_stdout(environment: &Environment) -> Self {
        if !isatty(stdout()) {
            return Self::default();
        }
        let size = tcgetwinsize(stdout())
            .ok()
            .map(|size| usize::from(size.ws_col))
            .filter(|&width| width > 0);
        Self {
            width: Some(size.unwrap_or(80)),
            color: environment.get("NO_COLOR").is_none(),
        }
    }

    /// The word in its colour, if there are colours.
    pub(super) fn paint(self, word: &str, tone: Tone) -> String {
        match (self.color, tone) {
            (true, Tone::Notable) => format!("\u{1b}[33m{word}\u{1b}[0m"),
            (true, Tone::Bad) => format!("\u{1b}[31m{word}\u{1b}[0m"),
            (false, _) | (true, Tone::Plain) => word.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_colour_nothing_is_added() {
        for tone in [Tone::Plain, Tone::Notable, Tone::Bad] {
            assert_eq!(Terminal::default().paint("x", tone), "x");
        }
        let colour = Terminal {
            color: true,
            ..Terminal::default()
        };
        assert_eq!(colour.paint("x", Tone::Plain), "x");
        assert_eq!(colour.paint("x", Tone::Bad), "\u{1b}[31mx\u{1b}[0m");
    }
}
