//! The way in for the host, where the container has no way out to it: a socket of root's, at which a
//! process that the engine's `exec` has started (`stream`) brings the channel.
//!
//! It is there before the guest is, until the collector has come in; later only while nobody is in.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    net::{UnixListener, unix::UCred},
    time::{Instant, timeout_at},
};

use super::{
    greeting::{PATIENCE, close_to_guest},
    link::Link,
};
use crate::{outbox::Outbox, transport::HATCH_SOCKET};

/// A listening socket; closed and unlinked when dropped.
#[derive(Debug)]
pub(super) struct Hatch {
    listener: UnixListener,
    socket: PathBuf,
}

impl Hatch {
    /// Listens in `directory`, which is made if it is not there, and closed to everybody but root.
    ///
    /// Must be called within the runtime, like all of this.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(directory)?;
        close_to_guest(directory, None)?;
        let socket = directory.join(HATCH_SOCKET);
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&socket)?;
        Ok(Self { listener, socket })
    }

    /// Waits for a process of root's, of this container: who else gets as far as this socket is
    /// sent away unheard.
    ///
    /// Cancelled, it has let nobody in.
    pub(super) async fn knock(&self) -> io::Result<Link> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            if stream.peer_cred().is_ok_and(|peer| is_ours(&peer)) {
                return Ok(Link::accepted(stream));
            }
        }
    }
}

impl Drop for Hatch {
    fn drop(&mut self) {
        // Nobody but root can have removed it.
        let _ = fs::remove_file(&self.socket);
    }
}

/// The kernel translates: a user of another user namespace is never 0 here, and a process that this
/// pid namespace does not have has no number (`unix(7)`).
fn is_ours(peer: &UCred) -> bool {
    peer.uid() == 0 && peer.pid().is_some_and(|pid| pid > 0)
}

/// Waits for the collector to come in, and exchanges hello and welcome with it. Nothing else may
/// happen meanwhile.
///
/// Returns the channel, and the secret with which it can come in again.
pub(super) async fn receive(
    directory: &Path,
    nonce: &str,
    outbox: &mut Outbox,
) -> io::Result<(Link, String)> {
    let hatch = Hatch::open(directory)?;
    let deadline = Instant::now() + ENTRANCE;
    let mut link = loop {
        let absent = |_| io::Error::other(ABSENT);
        let mut link = timeout_at(deadline, hatch.knock())
            .await
            .map_err(absent)??;
        let proof = timeout_at(Instant::now() + PATIENCE, link.proof_of(nonce));
        if matches!(proof.await, Ok(Ok(()))) {
            break link;
        }
    };
    // Nobody else may as much as wait there.
    drop(hatch);
    while let Some(bytes) = outbox.next_bytes() {
        link.say(bytes)?;
        let count = bytes.len();
        outbox.advance(count);
    }
    let unwelcome = |_| io::Error::other("the collector did not welcome this run");
    let welcome = timeout_at(Instant::now() + PATIENCE, link.welcome());
    let welcome = welcome.await.map_err(io::Error::from)?.map_err(unwelcome)?;
    outbox.welcomed(welcome.seed);
    Ok((link, welcome.resume_token))
}

/// An engine's `exec` takes a good part of a second, and on a busy host several.
const ENTRANCE: Duration = Duration::from_secs(10);
const ABSENT: &str = "no collector came in within 10 s";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use report::{Attach, HostMessage, MAX_FRAME, PROTOCOL, RunClock, Welcome, encode};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::UnixStream,
    };

    use super::*;

    fn directory(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("hatch-{}-{name}", std::process::id()))
    }

    fn attach(protocol: u32, secret: &str) -> Vec<u8> {
        let secret = secret.into();
        encode(&Attach { protocol, secret }, MAX_FRAME).unwrap()
    }

    fn welcome() -> Vec<u8> {
        let welcome = Welcome {
            protocol: PROTOCOL,
            resume_token: "again".into(),
            stored: 0,
            seed: None,
        };
        encode(&HostMessage::Welcome(welcome), MAX_FRAME).unwrap()
    }

    fn outbox() -> Outbox {
        let mut outbox = Outbox::new(RunClock::start(), report::Seed([0; 16]));
        outbox.push_bye();
        outbox
    }

    async fn line(stream: &mut UnixStream) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") && stream.read_buf(&mut line).await.unwrap() > 0 {}
        String::from_utf8(line).unwrap()
    }

    #[tokio::test]
    async fn who_knows_the_nonce_is_told_everything_and_then_there_is_no_way_in() {
        let directory = directory("nonce");
        let mut outbox = outbox();
        let host = async {
            let socket = directory.join(HATCH_SOCKET);
            let mut stream = UnixStream::connect(&socket).await.unwrap();
            stream.write_all(&attach(PROTOCOL, "n0nce")).await.unwrap();
            let hello = line(&mut stream).await;
            assert!(!socket.exists());
            stream.write_all(&welcome()).await.unwrap();
            hello
        };
        let (received, hello) = tokio::join!(receive(&directory, "n0nce", &mut outbox), host);
        assert_eq!(received.unwrap().1, "again");
        assert!(hello.contains("\"bye\""), "{hello}");
        let mode = fs::metadata(&directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        fs::remove_dir_all(directory).unwrap();
    }

    #[tokio::test]
    async fn who_does_not_is_told_nothing_and_keeps_nobody_out() {
        let directory = directory("wrong");
        let mut outbox = outbox();
        let host = async {
            let socket = directory.join(HATCH_SOCKET);
            for first in [
                attach(PROTOCOL, "nonce"),
                attach(PROTOCOL, ""),
                attach(PROTOCOL + 1, "n0nce"),
                b"{\"type\":\"ack\",\"seq\":1}\n".to_vec(),
                vec![b'x'; MAX_FRAME + 1],
                Vec::new(),
            ] {
                let mut stream = UnixStream::connect(&socket).await.unwrap();
                // It may have hung up before all of it was written.
                let _ = stream.write_all(&first).await;
                let _ = stream.shutdown().await;
                let mut said = Vec::new();
                // Hung up with something unread is an error, and an end.
                let _ = stream.read_to_end(&mut said).await;
                assert_eq!(said, b"");
            }
            let mut stream = UnixStream::connect(&socket).await.unwrap();
            stream.write_all(&attach(PROTOCOL, "n0nce")).await.unwrap();
            stream.write_all(&welcome()).await.unwrap();
            line(&mut stream).await
        };
        let (received, _) = tokio::join!(receive(&directory, "n0nce", &mut outbox), host);
        assert!(received.is_ok());
        fs::remove_dir_all(directory).unwrap();
    }

    #[tokio::test]
    async fn where_there_is_no_nonce_nobody_knows_it() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&attach(PROTOCOL, "")).await.unwrap();
        assert!(Link::accepted(ours).proof_of("").await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_waited_for_longer_than_ten_seconds() {
        let directory = directory("nobody");
        let start = Instant::now();
        let error = receive(&directory, "n0nce", &mut outbox()).await.err();
        assert_eq!(error.unwrap().to_string(), ABSENT);
        assert_eq!(start.elapsed().as_secs(), ENTRANCE.as_secs());
        fs::remove_dir_all(directory).unwrap();
    }

    #[tokio::test]
    async fn a_collector_that_hangs_up_has_not_welcomed_the_run() {
        let directory = directory("unwelcome");
        let mut outbox = outbox();
        let host = async {
            let socket = directory.join(HATCH_SOCKET);
            let mut stream = UnixStream::connect(&socket).await.unwrap();
            stream.write_all(&attach(PROTOCOL, "n0nce")).await.unwrap();
            line(&mut stream).await
        };
        let (received, _) = tokio::join!(receive(&directory, "n0nce", &mut outbox), host);
        let error = received.err().unwrap().to_string();
        assert_eq!(error, "the collector did not welcome this run");
        fs::remove_dir_all(directory).unwrap();
    }

    #[tokio::test]
    async fn what_lies_in_its_place_is_replaced_and_a_stranger_s_directory_refused() {
        let directory = directory("place");
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join(HATCH_SOCKET), "").unwrap();
        drop(Hatch::open(&directory).unwrap());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        chown(&directory, Some(4242), None).unwrap();
        assert!(Hatch::open(&directory).is_err());
        fs::remove_dir_all(&directory).unwrap();
        std::os::unix::fs::symlink("/", &directory).unwrap();
        assert!(Hatch::open(&directory).is_err());
        fs::remove_file(directory).unwrap();
    }

    #[tokio::test]
    async fn only_root_of_this_container_is_heard() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(is_ours(&ours.peer_cred().unwrap()), "tests run as root");
    }
}
