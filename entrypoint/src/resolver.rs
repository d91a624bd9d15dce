//! The resolver as a child of PID 1, where addresses decide: it asks for the list's names, so that
//! root reads no answer of a stranger's.

mod ask;
mod child;
mod confine;
mod schedule;
mod words;

use std::{
    io::{self, Write as _},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt as _},
    },
    process::{Command, Stdio},
};

use report::{FrameReader, encode};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

pub(crate) use self::{
    child::serve,
    words::{FromResolver, MOST_ADDRESSES, Questions, Resolved},
};
use crate::{failure::Failure, identity::Unprivileged, launch::Launch, link::Link};

/// The name by which PID 1 starts itself to resolve.
pub(crate) const VERB: &str = "sandbox-resolver";

/// A resolver that was started.
#[derive(Debug)]
pub(crate) struct Resolver {
    /// Its process.
    pub(crate) pid: i32,
    link: Link,
}

impl Resolver {
    /// Starts it. What it has to say comes as it comes.
    ///
    /// Must be called within the runtime.
    pub(crate) fn start(identity: &Unprivileged, questions: &Questions) -> Result<Self, Failure> {
        let fail = |error: io::Error| Failure::system(STEP)(error);
        let (ours, theirs) = UnixStream::pair().map_err(fail)?;
        let own = std::env::current_exe().map_err(fail)?;
        let child = Launch::confined(identity)?
            .spawn(
                Command::new(own)
                    .arg0(VERB)
                    .env_clear()
                    .stdin(Stdio::from(OwnedFd::from(theirs)))
                    .stdout(Stdio::null())
                    .stderr(Stdio::null()),
            )
            .map_err(fail)?;
        // It reads this before anything else, so that a long list does not wait for anybody.
        let line = encode(questions, report::link::MAX_FRAME);
        (&ours)
            .write_all(&line.map_err(io::Error::other).map_err(fail)?)
            .map_err(fail)?;
        let reader = FrameReader::new(words::MAX_FRAME);
        Ok(Self {
            pid: child.id().cast_signed(),
            link: Link::new(ours, reader).map_err(fail)?,
        })
    }

    /// Ends it, and waits until it has: it is nobody's process when PID 1 looks for who is left.
    pub(crate) fn end(self) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            // Nobody has waited for it yet, so that its id is still its own; if it has ended by
            // itself, that is what was wanted.
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }

    /// Its next message.
    ///
    /// # Errors
    /// When it is gone, or no longer makes sense, which is the same to its parent.
    pub(crate) async fn next(&mut self) -> io::Result<FromResolver> {
        self.link.next().await
    }
}

const STEP: &str = "start the resolver";
