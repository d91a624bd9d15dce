//! Signals to this process that are meant for the guest.

use std::io;

use rustix::{
    process::{Pid, Signal as Number, getpgrp, kill_process},
    termios::tcgetpgrp,
};
use tokio::{
    process::Child,
    signal::unix::{Signal, SignalKind, signal},
};

use crate::{engine::Container, steer::Control};

/// A signal, and its name for the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Forwarded {
    name: &'static str,
    number: Number,
}

/// Signals that would end this process, and must not: it has a record to write.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
    hangup: Signal,
    handed_on: bool,
}

impl Signals {
    /// Takes them over.
    pub(crate) fn watch() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            handed_on: false,
        })
    }

    /// Whether there was one that the guest would not have got otherwise.
    pub(crate) const fn were_handed_on(&self) -> bool {
        self.handed_on
    }

    /// The next one that the guest would not get otherwise.
    pub(crate) async fn next(&mut self) -> Forwarded {
        loop {
            let (forwarded, typed) = tokio::select! {
                _ = self.interrupt.recv() => (Forwarded { name: "INT", number: Number::INT }, true),
                _ = self.quit.recv() => (Forwarded { name: "QUIT", number: Number::QUIT }, true),
                _ = self.terminate.recv() => (Forwarded { name: "TERM", number: Number::TERM }, false),
                _ = self.hangup.recv() => (Forwarded { name: "HUP", number: Number::HUP }, false),
            };
            // What is typed reaches the whole foreground process group, the engine's client
            // included, which hands it on: twice would be once too often.
            if !(typed && is_foreground()) {
                self.handed_on = true;
                return forwarded;
            }
        }
    }
}

impl Forwarded {
    /// Sends it to the container, or, while there is none, to the client that is to start it.
    ///
    /// Not to the client in any case: with a terminal it hands nothing on, and dies. Where the engine
    /// is gone, process 1 is told over the channel to end its guest.
    pub(crate) async fn send(
        self,
        container: Option<Container<'_>>,
        client: Option<&Child>,
        control: Option<&Control>,
    ) {
        if let Some(container) = container
            && (container.signal(self.name).await.is_ok() || control.is_some_and(Control::stop))
        {
            return;
        }
        let client = client
            .and_then(Child::id)
            .and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(client) = client {
            // It may have ended by itself meanwhile, and that is what was wanted.
            let _ = kill_process(client, self.number);
        }
    }
}

/// Whether this process's terminal is at its hands.
pub(crate) fn is_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal
        .is_ok_and(|terminal| tcgetpgrp(&terminal).is_ok_and(|foreground| foreground == getpgrp()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_signal_to_this_process_is_handed_on() {
        let mut signals = Signals::watch().unwrap();
        kill_process(rustix::process::getpid(), Number::HUP).unwrap();
        assert_eq!(
            signals.next().await,
            Forwarded {
                name: "HUP",
                number: Number::HUP
            }
        );
    }

    #[tokio::test]
    async fn while_there_is_no_container_the_client_gets_it() {
        use std::os::unix::process::ExitStatusExt as _;
        let mut client = tokio::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        Forwarded {
            name: "TERM",
            number: Number::TERM,
        }
        .send(None, Some(&client), None)
        .await;
        assert_eq!(client.wait().await.unwrap().signal(), Some(15));
    }
}
