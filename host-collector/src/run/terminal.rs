//! The terminal that an engine's client is given: one that is killed gives it back as it is, without
//! an echo and without a Ctrl-C.

use rustix::{
    stdio::stdin,
    termios::{OptionalActions, Termios, tcgetattr, tcsetattr},
};

use crate::attend::is_foreground;

/// The settings of standard input before a client has had it, if it is a terminal.
#[derive(Debug)]
pub(super) struct Terminal(Option<Termios>);

impl Terminal {
    /// Notes them.
    pub(super) fn taken() -> Self {
        Self(tcgetattr(stdin()).ok())
    }

    /// Sets them again. Not from the background, where whoever is in front has settings of its own.
    pub(super) fn give_back(self) {
        if let Some(settings) = self.0
            && is_foreground()
        {
            // Without it the terminal stays as the client has left it.
            let _ = tcsetattr(stdin(), OptionalActions::Now, &settings);
        }
    }
}
