//! How reports get out of the container.

use std::{path::PathBuf, str::FromStr};

/// The ways to the collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Transport {
    /// Over its socket, which is mounted into the container.
    #[default]
    Socket,
    /// Over a process that the engine's `exec` starts in the container.
    Exec,
    /// Over the socket if it can be connected to, and else as `Exec`.
    Auto,
}

/// Both ends that there may be.
#[derive(Debug, Clone)]
pub(crate) struct Ends {
    /// The collector's socket.
    pub(crate) socket: PathBuf,
    /// The directory for ours, which the guest must not be able to enter.
    pub(crate) hatch: PathBuf,
}

impl FromStr for Transport {
    type Err = Unknown;

    fn from_str(word: &str) -> Result<Self, Unknown> {
        match word {
            "" | "socket" => Ok(Self::Socket),
            "exec" => Ok(Self::Exec),
            "auto" => Ok(Self::Auto),
            _ => Err(Unknown),
        }
    }
}

/// It is none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unknown;

/// Where PID 1 listens for a process that brings the channel. Root's, and closed to all others: a
/// file system of its own where the collector expects to come in so, since the image's may be
/// read-only.
pub(crate) const HATCH: &str = "/run/sandbox-egress/attach";
/// The socket in it.
pub(crate) const HATCH_SOCKET: &str = "pid1.sock";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_one_way_and_any_other_is_none() {
        for (word, transport) in [
            ("", Ok(Transport::Socket)),
            ("socket", Ok(Transport::Socket)),
            ("exec", Ok(Transport::Exec)),
            ("auto", Ok(Transport::Auto)),
            ("Exec", Err(Unknown)),
            ("exec ", Err(Unknown)),
        ] {
            assert_eq!(word.parse(), transport, "{word:?}");
        }
    }
}
