//! The listening socket of one run: open for the first peer that proves itself, then gone.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::fd::AsRawFd as _,
    os::unix::{
        fs::{DirBuilderExt as _, PermissionsExt as _},
        net::UnixListener as StdListener,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::{net::UnixListener, task::JoinSet};

use super::{
    attendance::Refusals,
    greeting::{Expected, Greeted, Refusal, greet},
};

/// A socket that one peer will get through. Closed and unlinked when dropped.
#[derive(Debug)]
pub(crate) struct Door {
    listener: StdListener,
    socket: PathBuf,
}

impl Door {
    /// Makes the listening socket in `directory`, which is made if it is not there. A socket that a
    /// collector left behind when it was killed is replaced.
    ///
    /// The container's root has no `DAC_OVERRIDE`, so both are open to others; what keeps the guest
    /// out is the directory above the mount inside the container, and everybody else the one above
    /// it on the host.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o711)
            .create(directory)?;
        fs::set_permissions(directory, Permissions::from_mode(0o711))?;
        let socket = directory.join(SOCKET);
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        // By way of a descriptor, for the name of a socket is at most 107 bytes long (unix(7)).
        let opened = File::open(directory)?;
        let name = format!("/proc/self/fd/{}/{SOCKET}", opened.as_raw_fd());
        let listener = StdListener::bind(name)?;
        fs::set_permissions(&socket, Permissions::from_mode(0o666))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, socket })
    }

    /// Waits for the peer that says the right hello. Everybody else is dropped and counted, and
    /// nobody can hold the door by being slow: a few are heard at once.
    ///
    /// Cancelled, it has let nobody in.
    pub(crate) async fn admit(
        self,
        expected: Arc<Expected>,
        refusals: &mut Refusals,
    ) -> io::Result<Greeted> {
        let listener = UnixListener::from_std(self.listener.try_clone()?)?;
        let mut candidates: JoinSet<Result<Greeted, Refusal>> = JoinSet::new();
        loop {
            tokio::select! {
                heard = candidates.join_next(), if !candidates.is_empty() => match heard {
                    Some(Ok(Ok(greeted))) => return Ok(greeted),
                    Some(Ok(Err(refusal))) => refusals.note(refusal),
                    // Nothing cancels them while this waits, and they have no reason to panic.
                    Some(Err(_)) | None => {}
                },
                accepted = listener.accept(), if candidates.len() < HEARD_AT_ONCE => {
                    let (stream, _) = accepted?;
                    let expected = Arc::clone(&expected);
                    candidates.spawn(async move { greet(stream, &expected).await });
                }
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // It may have been removed with the run's directory.
        let _ = fs::remove_file(&self.socket);
    }
}

const SOCKET: &str = "report.sock";
const HEARD_AT_ONCE: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_open_to_the_container_and_gone_when_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let channel = dir.path().join("channel");
        let door = Door::open(&channel).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&channel), 0o711);
        assert_eq!(mode(&channel.join(SOCKET)), 0o666);
        drop(door);
        assert!(!channel.join(SOCKET).exists());
    }

    #[test]
    fn what_a_killed_collector_left_behind_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let channel = dir.path().join("channel");
        std::mem::forget(Door::open(&channel).unwrap());
        let door = Door::open(&channel).unwrap();
        std::os::unix::net::UnixStream::connect(channel.join(SOCKET)).unwrap();
        drop(door);
        assert!(!channel.join(SOCKET).exists());
    }

    #[test]
    fn what_cannot_be_replaced_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(SOCKET)).unwrap();
        assert!(Door::open(dir.path()).is_err());
    }

    #[test]
    fn a_directory_with_a_long_name_has_a_socket_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("x".repeat(200));
        let door = Door::open(&long).unwrap();
        assert!(door.socket.exists());
    }
}
