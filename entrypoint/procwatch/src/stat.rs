//! What `/proc/PID/stat` says of one process.

use std::{fs, io, path::Path};

/// Which process: its pid, and when it started, in clock ticks since the machine did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The process id, in the namespace whose /proc was read.
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`.
    pub start_time: u64,
}

/// What a process was doing when it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It can still do something.
    Alive,
    /// It has ended, and only waits for its parent to ask how.
    Ended,
}

/// One process at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Which process.
    pub identity: Identity,
    /// Its parent's pid; 0 where the parent is outside of the namespace.
    pub ppid: i32,
    /// Whether it can still do something.
    pub state: State,
    /// Its name, at most 15 bytes, chosen by the process itself.
    pub name: String,
}

/// Why a process could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It is gone.
    #[error("process {0} is gone")]
    Gone(i32),
    /// /proc could not be read.
    #[error("read /proc/{pid}/stat: {source}")]
    Read {
        /// Of which process.
        pid: i32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The line does not have the fields of proc(5).
    #[error("/proc/{0}/stat has an unknown form")]
    Form(i32),
}

impl Process {
    /// Looks at process `pid`.
    ///
    /// # Errors
    /// [`ProcessError::Gone`] when there is no such process.
    pub fn observe(pid: i32) -> Result<Self, ProcessError> {
        let path = Path::new("/proc").join(pid.to_string()).join("stat");
        let line = fs::read(path).map_err(|source| match source.raw_os_error() {
            // ESRCH: it ended between being opened and being read.
            Some(code) if code == rustix::io::Errno::SRCH.raw_os_error() => ProcessError::Gone(pid),
            _ if source.kind() == io::ErrorKind::NotFound => ProcessError::Gone(pid),
            _ => ProcessError::Read { pid, source },
        })?;
        Self::parse(&line).ok_or(ProcessError::Form(pid))
    }

    /// Reads the line. The name stands in parentheses and may itself hold any byte but NUL, also
    /// `) R 1`: only the last `)` ends it.
    fn parse(line: &[u8]) -> Option<Self> {
        let open = line.iter().position(|&b| b == b'(')?;
        let close = line.iter().rposition(|&b| b == b')')?;
        let pid = std::str::from_utf8(line.get(..open)?)
            .ok()?
            .trim()
            .parse()
            .ok()?;
        let name = String::from_utf8_lossy(line.get(open + 1..close)?).into_owned();
        let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let state = match fields.next()? {
            "Z" | "X" | "x" => State::Ended,
            _ => State::Alive,
        };
        let parent = fields.next()?.parse().ok()?;
        let start_time = fields.nth(START_TIME_AFTER_PPID)?.parse().ok()?;
        Some(Self {
            identity: Identity { pid, start_time },
            ppid: parent,
            state,
            name,
        })
    }
}

/// Field 22 is the 18th after field 4.
const START_TIME_AFTER_PPID: usize = 17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_sees_itself() {
        let me = Process::observe(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert_eq!(me.state, State::Alive);
        assert!(me.identity.start_time > 0);
    }

    #[test]
    fn a_process_cannot_forge_its_parent_by_its_name() {
        let line = b"42 (x) R 1 (y) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99887 1 1";
        let process = Process::parse(line).unwrap();
        assert_eq!((process.ppid, process.identity.start_time), (7, 99887));
        assert_eq!(process.name, "x) R 1 (y");
    }

    #[test]
    fn a_half_line_is_no_process() {
        let line: &[u8] = b"42 (x) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99887";
        for end in 0..line.len() - 5 {
            assert_eq!(Process::parse(&line[..end]), None, "{end}");
        }
    }

    #[test]
    fn a_pid_that_no_process_has_is_gone() {
        assert!(matches!(
            Process::observe(i32::MAX),
            Err(ProcessError::Gone(_))
        ));
    }

    #[test]
    fn a_process_that_only_waits_to_be_asked_has_ended() {
        for (letter, state) in [
            ("Z", State::Ended),
            ("X", State::Ended),
            ("T", State::Alive),
            ("D", State::Alive),
        ] {
            let line =
                format!("42 (x) {letter} 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99 1");
            assert_eq!(
                Process::parse(line.as_bytes()).unwrap().state,
                state,
                "{letter}"
            );
        }
    }

    #[test]
    fn a_name_need_not_be_text() {
        let mut line = b"42 (".to_vec();
        line.extend([0xff, 0xfe]);
        line.extend(b") S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99 1");
        assert_eq!(Process::parse(&line).unwrap().name, "\u{fffd}\u{fffd}");
    }

    #[test]
    fn what_is_no_line_of_proc_is_no_process() {
        for line in ["", "42", "42 (x", "x) S 1", "(x) S 1", ") (", "42 (x) S"] {
            assert_eq!(Process::parse(line.as_bytes()), None, "{line:?}");
        }
    }
}
