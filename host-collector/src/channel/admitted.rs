//! Who was let in, written down before the welcome: only that process may come back.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use procwatch::Identity;
use serde::{Deserialize, Serialize};

use super::peer::Peer;

/// A process of this boot of this machine, as another collector can find it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Admitted {
    pid: i32,
    start_time: u64,
    boot: String,
    /// How often it has come back.
    pub(crate) resumed: u64,
}

impl Admitted {
    /// A peer that was just admitted, unless it cannot be told apart from a later process of the
    /// same number: then it cannot come back.
    pub(crate) fn of(peer: &Peer) -> Option<Self> {
        let Identity { pid, start_time } = peer.identity()?;
        Some(Self {
            pid,
            start_time,
            boot: boot()?,
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
    pub(crate) const fn identity(&self) -> Identity {
        Identity {
            pid: self.pid,
            start_time: self.start_time,
        }
    }

    /// Takes hold of it; `None` if it has ended, or the machine was started anew.
    ///
    /// Must be called within the runtime.
    pub(crate) fn find(&self) -> Option<Peer> {
        (boot()? == self.boot)
            .then(|| Peer::find(self.identity()))
            .flatten()
    }
}

fn file(run_dir: &Path) -> PathBuf {
    run_dir.join("admitted.json")
}

/// What is different after every start of the machine (random(4)).
fn boot() -> Option<String> {
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
        assert_eq!(read.find().unwrap().identity(), Some(admitted.identity()));
    }

    #[tokio::test]
    async fn a_later_process_of_the_same_number_is_another() {
        let admitted = here();
        for other in [
            Admitted {
                start_time: admitted.start_time + 1,
                ..admitted.clone()
            },
            Admitted {
                boot: "another".into(),
                ..admitted.clone()
            },
            Admitted {
                pid: -1,
                ..admitted
            },
        ] {
            assert!(other.find().is_none(), "{other:?}");
        }
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
