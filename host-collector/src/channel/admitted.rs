//! Who was let in, written down before the welcome: only that process may come back.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use procwatch::Identity;
use serde::{Deserialize, Serialize};

use super::{peer::Peer, way::Transport};

/// A process of this boot of this machine, as another collector can find it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Admitted {
    /// Nothing where the engine brings the channel: there the token alone decides.
    #[serde(flatten)]
    process: Option<Incarnation>,
    /// How often it has come back.
    pub(crate) resumed: u64,
}

/// One process and no other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Incarnation {
    pid: i32,
    start_time: u64,
    boot: String,
}

impl Admitted {
    /// A peer that was just admitted, unless it cannot be told apart from a later process of the
    /// same number: then it cannot come back.
    pub(crate) fn of(peer: &Peer) -> Option<Self> {
        let process = match peer {
            Peer::Contained(_) => None,
            Peer::Pinned { identity, .. } => {
                let Identity { pid, start_time } = (*identity)?;
                let boot = boot()?;
                Some(Incarnation {
                    pid,
                    start_time,
                    boot,
                })
            }
        };
        Some(Self {
            process,
            resumed: 0,
        })
    }

    /// Reads who was admitted in this run, if anybody was.
    pub(crate) fn read(run_dir: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(file(run_dir)).ok()?).ok()
    }

    /// Writes it down whole or not at all.
    pub(crate) fn store(&self, run_dir: &Path) -> io::Result<()> {
        let (whole, part) = (file(run_dir), run_dir.join("admitted.part"));
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(&part)?.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(part, whole)
    }

    /// Which process it is.
    pub(crate) fn identity(&self) -> Option<Identity> {
        let Incarnation {
            pid, start_time, ..
        } = *self.process.as_ref()?;
        Some(Identity { pid, start_time })
    }

    /// The way that its reports take.
    pub(crate) const fn transport(&self) -> Transport {
        match self.process {
            Some(_) => Transport::Socket,
            None => Transport::Exec,
        }
    }

    /// Takes hold of it; `None` if it has ended, or the machine was started anew.
    ///
    /// Must be called within the runtime.
    pub(crate) fn find(&self) -> Option<Peer> {
        let Some(process) = &self.process else {
            return Some(Peer::Contained(None));
        };
        if boot()? == process.boot {
            Peer::find(self.identity()?)
        } else {
            None
        }
    }
}

fn file(run_dir: &Path) -> PathBuf {
    run_dir.join("admitted.json")
}

/// What is different after every start of the machine (random(4)).
pub(crate) fn boot() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;

    fn here() -> Admitted {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        Admitted::of(&Peer::pin(&ours).unwrap()).unwrap()
    }

    #[tokio::test]
    async fn who_was_admitted_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Admitted::read(dir.path()), None);
        let admitted = here();
        admitted.store(dir.path()).unwrap();
        let read = Admitted::read(dir.path()).unwrap();
        assert_eq!(read, admitted);
        assert_eq!(read.find().unwrap().identity(), admitted.identity());
    }

    #[tokio::test]
    async fn a_later_process_of_the_same_number_is_another() {
        let process = here().process.unwrap();
        for other in [
            Incarnation {
                start_time: process.start_time + 1,
                ..process.clone()
            },
            Incarnation {
                boot: "another".into(),
                ..process.clone()
            },
            Incarnation { pid: -1, ..process },
        ] {
            let other = Admitted {
                process: Some(other),
                resumed: 0,
            };
            assert!(other.find().is_none(), "{other:?}");
        }
    }

    #[test]
    fn whose_channel_the_engine_brings_is_there_until_the_engine_says_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let admitted = Admitted::of(&Peer::Contained(None)).unwrap();
        admitted.store(dir.path()).unwrap();
        let read = Admitted::read(dir.path()).unwrap();
        assert_eq!((read.transport(), read.identity()), (Transport::Exec, None));
        assert!(read.find().unwrap().is_contained());
    }

    #[tokio::test]
    async fn half_a_record_is_none() {
        let dir = tempfile::tempdir().unwrap();
        here().store(dir.path()).unwrap();
        let whole = fs::read(file(dir.path())).unwrap();
        for cut in 0..whole.len() {
            fs::write(file(dir.path()), &whole[..cut]).unwrap();
            assert_eq!(Admitted::read(dir.path()), None, "{cut}");
        }
    }
}
