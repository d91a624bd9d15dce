//! Programs on a real pseudoterminal: its size, its line discipline, its Ctrl-C.

use std::{
    fs::File,
    io::{Read, Write},
    process::{Child, Command},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::Pid,
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use crate::process::{PATIENCE, id_of, wait_for_end};

/// The byte that Ctrl-C sends.
pub const CTRL_C: u8 = 3;
/// The byte that Ctrl-Z sends.
pub const CTRL_Z: u8 = 26;

/// A program that has a terminal of its own as its controlling terminal.
#[derive(Debug)]
pub struct OnTerminal {
    child: Child,
    controller: File,
    shown: String,
}

impl OnTerminal {
    /// Starts `program` on a terminal of this size.
    pub fn start(program: &Command, rows: u16, columns: u16) -> anyhow::Result<Self> {
        let controller =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).context("open a terminal")?;
        grantpt(&controller)?;
        unlockpt(&controller)?;
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&controller, size).context("set a terminal's size")?;
        let user = ioctl_tiocgptpeer(&controller, OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        // A session of its own is what makes a terminal the controlling one.
        let mut command = Command::new("setsid");
        command
            .arg("--ctty")
            .arg(program.get_program())
            .args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(directory) = program.get_current_dir() {
            command.current_dir(directory);
        }
        let child = command
            .stdin(user.try_clone()?)
            .stdout(user.try_clone()?)
            .stderr(user)
            .spawn()
            .context("start a program on a terminal")?;
        Ok(Self {
            child,
            controller: File::from(controller),
            shown: String::new(),
        })
    }

    /// Its process id.
    pub fn id(&self) -> anyhow::Result<Pid> {
        id_of(&self.child)
    }

    /// Types.
    pub fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.controller
            .write_all(bytes)
            .context("type on a terminal")
    }

    /// Changes the terminal's size, as dragging a window's corner does.
    pub fn resize(&self, rows: u16, columns: u16) -> anyhow::Result<()> {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.controller, size).context("set a terminal's size")
    }

    /// Waits until the terminal has shown `text`.
    pub fn wait_for(&mut self, text: &str) -> anyhow::Result<()> {
        if !self.shows_within(PATIENCE, text)? {
            bail!("{text:?} was never shown, only {:?}", self.shown);
        }
        Ok(())
    }

    /// Whether the terminal has shown `text`, or does before that much time has passed.
    pub fn shows_within(&mut self, patience: Duration, text: &str) -> anyhow::Result<bool> {
        let deadline = Instant::now() + patience;
        while !self.shown.contains(text) {
            if !self.read_more(deadline)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits for the program's end; its exit code and all that the terminal showed.
    pub fn finish(mut self) -> anyhow::Result<(i32, String)> {
        let deadline = Instant::now() + PATIENCE;
        while self.read_more(deadline)? {}
        if !wait_for_end(&self.child, left_until(deadline))? {
            self.child.kill().context("kill a hanging process")?;
            bail!("hung, having shown {:?}", self.shown);
        }
        let status = self.child.wait().context("wait for a process")?;
        Ok((status.code().unwrap_or(-1), self.shown))
    }

    /// Whether there was more to show before everyone had closed the terminal, or the deadline came.
    fn read_more(&mut self, deadline: Instant) -> anyhow::Result<bool> {
        let left = Timespec::try_from(left_until(deadline))?;
        if poll(
            &mut [PollFd::new(&self.controller, PollFlags::IN)],
            Some(&left),
        )? == 0
        {
            return Ok(false);
        }
        let mut bytes = [0; 4096];
        match self.controller.read(&mut bytes) {
            Ok(0) => Ok(false),
            Ok(length) => {
                let text = String::from_utf8_lossy(bytes.get(..length).unwrap_or_default());
                self.shown.push_str(&text);
                Ok(true)
            }
            // How Linux says that nobody has the other end open any more.
            Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => Ok(false),
            Err(error) => Err(error).context("read a terminal"),
        }
    }
}

fn left_until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_sees_the_size_and_its_change_and_gets_the_interrupt() {
        // It waits for the signal, so that one that comes early is not lost on it.
        let script = "
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print('size', *reversed(os.get_terminal_size(0)), flush=True)
signal.sigwait({signal.SIGINT})
print('size', *reversed(os.get_terminal_size(0)), flush=True)
os._exit(4)";
        let mut python = Command::new("python3");
        python.args(["-c", script]);
        let mut program = OnTerminal::start(&python, 33, 97).unwrap();
        program.wait_for("size 33 97").unwrap();
        program.resize(12, 34).unwrap();
        program.send(&[CTRL_C]).unwrap();
        let (code, shown) = program.finish().unwrap();
        assert!(shown.contains("size 12 34"), "{shown}");
        assert_eq!(code, 4, "{shown}");
    }
}
