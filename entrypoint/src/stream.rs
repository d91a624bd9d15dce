//! `sandbox-entrypoint stream`: what the host's engine starts in a container whose reports no socket
//! of the host's can take. It hands the channel on between PID 1 and its own standard input and
//! output, understands nothing of it, and ends with either.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read, Write},
    net::Shutdown,
    os::{
        fd::AsFd,
        unix::{
            fs::{MetadataExt as _, PermissionsExt as _},
            net::UnixStream,
        },
    },
    path::Path,
    thread,
};

use rustix::{
    net::sockopt::socket_peercred,
    process::{DumpableBehavior, Pid, getpid, getppid, set_dumpable_behavior},
};

use crate::{
    launch::renounce_capabilities,
    transport::{HATCH, HATCH_SOCKET},
};

/// Why there is nothing to hand on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoStream {
    /// It could not make itself harmless.
    #[error("stream: give up privileges: {0}")]
    Privileges(io::Error),
    /// PID 1 does not listen, or not to this user.
    #[error(
        "stream: reach PID 1: {0}; it listens for a collector only, and only while it has none"
    )]
    Unreachable(io::Error),
    /// What it stands on is gone.
    #[error("stream: hand on: {0}")]
    Broken(io::Error),
    /// Somebody else listens in its place.
    #[error("stream: {HATCH} is not root's alone")]
    Stranger,
}

/// Whether these are the arguments of this verb. Process 1, and what an init of the engine's has
/// started, run a command of the guest's, which may have this name.
pub(crate) fn is_asked_for(arguments: &[OsString]) -> bool {
    let is_first = getpid().is_init() || getppid().is_some_and(Pid::is_init);
    arguments == ["stream"] && !is_first
}

/// Hands on until one end is closed.
pub(crate) fn stream() -> Result<(), NoStream> {
    let powerless = set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(io::Error::from)
        .and_then(|()| renounce_capabilities());
    powerless.map_err(NoStream::Privileges)?;
    let channel = connect(Path::new(HATCH))?;
    let handed = duplicate(io::stdin())
        .and_then(|input| Ok((input, duplicate(io::stdout())?)))
        .and_then(|(input, output)| hand_on(input, output, &channel));
    handed.map_err(NoStream::Broken)
}

fn duplicate(standard: impl AsFd) -> io::Result<File> {
    Ok(standard.as_fd().try_clone_to_owned()?.into())
}

/// The secret of the run is about to pass: whoever listens must be root, in a place of root's.
fn connect(directory: &Path) -> Result<UnixStream, NoStream> {
    let found = fs::symlink_metadata(directory).map_err(NoStream::Unreachable)?;
    if !found.is_dir() || found.uid() != 0 || found.permissions().mode() & 0o077 != 0 {
        return Err(NoStream::Stranger);
    }
    let channel =
        UnixStream::connect(directory.join(HATCH_SOCKET)).map_err(NoStream::Unreachable)?;
    let peer = socket_peercred(&channel).map_err(|errno| NoStream::Unreachable(errno.into()))?;
    if peer.uid.is_root() {
        Ok(channel)
    } else {
        Err(NoStream::Stranger)
    }
}

/// What is under way when the host hangs up is lost with it: PID 1 keeps it until it is
/// acknowledged.
fn hand_on(mut input: File, mut output: File, channel: &UnixStream) -> io::Result<()> {
    let mut inwards = channel.try_clone()?;
    thread::Builder::new().spawn(move || {
        // However that ends, there will be no acknowledgement any more.
        let _ = copy(&mut input, &mut inwards);
        let _ = inwards.shutdown(Shutdown::Both);
    })?;
    // The other half does not outlive this process.
    copy(&mut &*channel, &mut output)
}

/// Not `io::copy`, which would splice: the kernel keeps a pipe locked while it waits for a socket to
/// have something for it, and whoever is to read what is in the pipe already waits as long.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(buffer.get(..count).unwrap_or_default())?;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::{fs::chown, net::UnixListener},
        path::PathBuf,
    };

    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("stream-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path
    }

    fn end_of(stream: UnixStream) -> File {
        File::from(std::os::fd::OwnedFd::from(stream))
    }

    /// Both ends of one that hands on.
    fn handing_on() -> (UnixStream, UnixStream, thread::JoinHandle<io::Result<()>>) {
        let (host, standard) = UnixStream::pair().unwrap();
        let (pid1, channel) = UnixStream::pair().unwrap();
        let input = end_of(standard.try_clone().unwrap());
        let output = end_of(standard);
        let handing = thread::spawn(move || hand_on(input, output, &channel));
        (host, pid1, handing)
    }

    #[test]
    fn what_one_end_says_the_other_hears() {
        let (mut host, mut pid1, handing) = handing_on();
        let mut buffer = [0; 5];
        host.write_all(b"hello").unwrap();
        pid1.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"hello");
        pid1.write_all(b"again").unwrap();
        host.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"again");
        drop(pid1);
        assert!(handing.join().unwrap().is_ok());
    }

    #[test]
    fn what_was_said_into_a_pipe_is_there_while_the_next_word_is_waited_for() {
        let (mut pid1, channel) = UnixStream::pair().unwrap();
        let (_host, standard) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let output = File::from(std::os::fd::OwnedFd::from(writer));
        let handing = thread::spawn(move || hand_on(end_of(standard), output, &channel));
        for word in [b"one", b"two"] {
            pid1.write_all(word).unwrap();
            // The other thread waits for more by then, as likely as not.
            thread::yield_now();
            let mut heard = [0; 3];
            reader.read_exact(&mut heard).unwrap();
            assert_eq!(&heard, word);
        }
        drop(pid1);
        assert!(handing.join().unwrap().is_ok());
    }

    #[test]
    fn whoever_hangs_up_first_ends_it_for_the_other() {
        let (mut host, mut pid1, handing) = handing_on();
        pid1.write_all(b"last").unwrap();
        drop(pid1);
        assert!(handing.join().unwrap().is_ok());
        host.set_nonblocking(true).unwrap();
        let mut buffer = [0; 8];
        assert_eq!(host.read(&mut buffer).unwrap(), 4);

        let (host, mut pid1, handing) = handing_on();
        host.shutdown(Shutdown::Write).unwrap();
        assert_eq!(pid1.read(&mut buffer).unwrap(), 0);
        assert!(handing.join().unwrap().is_ok());
        drop(host);
    }

    #[test]
    fn nobody_is_spoken_to_outside_a_directory_that_is_root_s_alone() {
        let directory = directory("stranger");
        let _listener = UnixListener::bind(directory.join(HATCH_SOCKET)).unwrap();
        assert!(connect(&directory).is_ok());
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o701)).unwrap();
        assert!(matches!(connect(&directory), Err(NoStream::Stranger)));
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
        chown(&directory, Some(4242), None).unwrap();
        assert!(matches!(connect(&directory), Err(NoStream::Stranger)));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn where_nobody_listens_it_says_so() {
        let directory = directory("nobody");
        let error = connect(&directory).unwrap_err().to_string();
        assert!(error.starts_with("stream: reach PID 1: "), "{error}");
        let missing = connect(&directory.join("none"));
        assert!(matches!(missing, Err(NoStream::Unreachable(_))));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn the_verb_is_one_word_alone() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert!(is_asked_for(&words(&["stream"])));
        for other in [&[][..], &["stream", "x"], &["x", "stream"], &["./stream"]] {
            assert!(!is_asked_for(&words(other)), "{other:?}");
        }
    }
}
