//! A proxy that is measured: started anew for each round, gone when it is dropped.

use std::{
    io::{BufRead, BufReader},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rustix::process::{Signal, WaitOptions, kill_process_group, waitpgid};

use super::{
    cores::Cores,
    ours,
    peers::{Denies, Peer},
    usage::Usage,
};
use crate::process::{id_of, wait_for_end};

/// Who takes part.
#[derive(Debug, Clone)]
pub enum Contestant {
    /// Nobody in between: the ends alone.
    None,
    /// The bare relay, in a process of this program's own.
    Relay,
    /// Ours, from this file.
    Ours(PathBuf),
    /// A peer that is installed.
    Peer(Peer),
}

/// A contestant that serves.
#[derive(Debug)]
pub struct Running {
    child: Option<Child>,
    /// Where it serves clients that were told of it.
    pub address: SocketAddr,
    /// Where it answers questions over UDP, if it does.
    pub questions: Option<SocketAddr>,
    _link: Option<ours::Link>,
}

/// What a contestant is to allow.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Tunnels to [`super::ends::NAME`] at these ports.
    pub ports: [u16; 2],
    /// How many names there are on the list.
    pub entries: usize,
    /// How many connections at once.
    pub connections: u32,
}

impl Contestant {
    /// What it is called in tables.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::None => "no proxy",
            Self::Relay => "bare splice relay",
            Self::Ours(_) => "sandbox-egress-proxy",
            Self::Peer(peer) => peer.name,
        }
    }

    /// Whether clients tell it where to go.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Whether it decides by name.
    #[must_use]
    pub fn denies(&self) -> bool {
        match self {
            Self::None => false,
            Self::Relay | Self::Ours(_) => true,
            Self::Peer(peer) => peer.denies != Denies::Nothing,
        }
    }

    /// Whether it decides by a list of names, so that it may matter how long that is.
    #[must_use]
    pub fn lists_names(&self) -> bool {
        match self {
            Self::None | Self::Relay => false,
            Self::Ours(_) => true,
            Self::Peer(peer) => peer.denies == Denies::ByList,
        }
    }

    /// Starts it on its processor and waits until it serves.
    pub fn start(&self, cores: Cores, rules: Rules) -> anyhow::Result<Running> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let running = match self {
            Self::None => Running {
                child: None,
                address,
                questions: None,
                _link: None,
            },
            Self::Relay => Running {
                child: Some(cores.with_contestant(|| relay(listener))?),
                address,
                questions: None,
                _link: None,
            },
            Self::Ours(program) => {
                let mut started =
                    cores.with_contestant(|| ours::start(program, &listener, rules))?;
                started.link.read();
                Running {
                    child: Some(started.child),
                    address,
                    questions: Some(started.questions),
                    _link: Some(started.link),
                }
            }
            Self::Peer(peer) => {
                // It binds the port itself, which was free a moment ago and is nobody else's here.
                drop(listener);
                let mut child = cores.with_contestant(|| peer.start(address, rules))?;
                wait_for(address, &mut child).with_context(|| format!("start {}", peer.name))?;
                Running {
                    child: Some(child),
                    address,
                    questions: None,
                    _link: None,
                }
            }
        };
        Ok(running)
    }
}

impl Running {
    /// What it uses; `None` for nobody.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.child.as_ref().map(|child| Usage::of(child.id()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // One that has ended is waited for all the same.
            let _ = child.kill();
            // Some have workers, which notice in their own time and meanwhile would be measured with
            // whoever is next. They are in the group of the first; this program is the init to
            // which they come.
            if let Ok(group) = id_of(child) {
                let _ = kill_process_group(group, Signal::KILL);
                let _ = child.wait();
                while waitpgid(group, WaitOptions::empty()).is_ok() {}
            }
        }
    }
}

/// This program again, as the relay, with its listener as its standard input.
fn relay(listener: TcpListener) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("find this program")?;
    let mut child = Command::new(program)
        .arg("relay")
        .env_clear()
        .process_group(0)
        .stdin(OwnedFd::from(listener))
        .stdout(Stdio::piped())
        .spawn()
        .context("start the bare relay")?;
    let said = child.stdout.take().context("hear the bare relay")?;
    BufReader::new(said).read_line(&mut String::new())?;
    Ok(child)
}

/// Foreign programs do not say when they serve: the first connection that works tells. Between two
/// attempts their end is waited for, which would leave none to make.
fn wait_for(address: SocketAddr, child: &mut Child) -> anyhow::Result<()> {
    let began = Instant::now();
    while began.elapsed() < START {
        if wait_for_end(child, BETWEEN_ATTEMPTS)? {
            bail!("it ended with {}", child.wait()?);
        }
        if TcpStream::connect(address).is_ok() {
            return Ok(());
        }
    }
    child.kill()?;
    bail!("it does not serve after {START:?}")
}

const START: Duration = Duration::from_secs(30);
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_ends_is_not_waited_for() {
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let mut child = Command::new("false").spawn().unwrap();
        let error = wait_for(address, &mut child).unwrap_err().to_string();
        assert!(error.starts_with("it ended with"), "{error}");
    }

    #[test]
    fn whoever_a_contestant_started_ends_with_it() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $!; wait"]);
        let mut child = command
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut worker = String::new();
        said.read_line(&mut worker).unwrap();
        drop(Running {
            child: Some(child),
            address: ([127, 0, 0, 1], 0).into(),
            questions: None,
            _link: None,
        });
        // The worker holds the pipe for as long as it lives.
        assert_eq!(said.read_line(&mut worker).unwrap(), 0, "{worker} lives on");
    }

    #[test]
    fn nobody_is_asked_and_uses_nothing() {
        let rules = Rules {
            ports: [1, 2],
            entries: 1,
            connections: 1,
        };
        let nobody = Contestant::None
            .start(Cores::two().unwrap(), rules)
            .unwrap();
        assert!(nobody.usage().is_none() && !Contestant::None.is_asked());
    }
}
