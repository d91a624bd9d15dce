//! Meets the collector: hello and welcome, blocking, before any other process exists.

use std::{
    ffi::OsStr,
    fs,
    io::{self, Read as _, Write as _},
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        net::UnixStream,
    },
    path::Path,
    time::{Duration, Instant},
};

use report::{FrameReader, HostMessage, MAX_FRAME, PROTOCOL};

use super::link::Link;
use crate::{
    outbox::Outbox,
    transport::{HATCH, HATCH_SOCKET},
};

/// Connects to the collector's socket.
pub(super) fn connect(socket: &Path) -> io::Result<UnixStream> {
    let channel = socket.parent();
    let Some((channel, parent)) = channel.and_then(|channel| Some((channel, channel.parent()?)))
    else {
        return Err(io::Error::other("the socket has no directory of its own"));
    };
    close_to_guest(parent, channel.file_name())?;
    UnixStream::connect(socket)
}

/// Exchanges hello and welcome, with the secret to come back with. Nothing else may happen meanwhile.
pub(super) fn greet(mut stream: UnixStream, outbox: &mut Outbox) -> io::Result<(Link, String)> {
    let deadline = Instant::now() + PATIENCE;
    stream.set_write_timeout(Some(PATIENCE))?;
    while let Some(bytes) = outbox.next_bytes() {
        stream.write_all(bytes)?;
        let count = bytes.len();
        outbox.advance(count);
    }
    let mut reader = FrameReader::new(MAX_FRAME);
    let mut buffer = [0; 4096];
    let welcome = loop {
        if let Some(line) = reader.next_line().map_err(io::Error::other)? {
            match serde_json::from_slice(line)? {
                HostMessage::Welcome(welcome) if welcome.protocol == PROTOCOL => {
                    break welcome;
                }
                HostMessage::Welcome(welcome) => {
                    let other = welcome.protocol;
                    return Err(io::Error::other(format!(
                        "the collector speaks protocol {other}"
                    )));
                }
                HostMessage::Ack { .. }
                | HostMessage::Policy(_)
                | HostMessage::Stop { .. }
                | HostMessage::Unknown => continue,
            }
        }
        let left = deadline
            .saturating_duration_since(Instant::now())
            .max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer) {
            Ok(0) => return Err(io::Error::other("the collector did not welcome this run")),
            Ok(count) => reader.push(buffer.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::Error::other("no welcome within 5 s"));
            }
            Err(error) => return Err(error),
        }
    };
    outbox.welcomed(welcome.seed);
    Ok((Link::new(stream, reader)?, welcome.resume_token))
}

/// A directory that keeps the guest from the sockets below it: root's, 0700, and made so if it is not.
/// That must not befall one that is there for others too, such as `/run`: it has nothing in it but
/// `channel` and what is ours.
pub(super) fn close_to_guest(directory: &Path, channel: Option<&OsStr>) -> io::Result<()> {
    let metadata = fs::symlink_metadata(directory)?;
    if !metadata.is_dir() || metadata.uid() != 0 {
        return Err(io::Error::other(format!(
            "{} is not a directory of root's",
            directory.display()
        )));
    }
    if metadata.mode() & 0o077 != 0 {
        let ours = [
            Path::new(HATCH).file_name(),
            Some(OsStr::new(HATCH_SOCKET)),
            channel,
        ];
        for entry in fs::read_dir(directory)? {
            let name = entry?.file_name();
            if !ours.contains(&Some(&name)) {
                return Err(io::Error::other(format!(
                    "{} is open to the guest and has more in it than the channel; \
                     put that into a directory of its own",
                    directory.display()
                )));
            }
        }
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

pub(super) const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, path::PathBuf};

    use report::{RunClock, Seed, Welcome, encode};

    use super::*;

    fn directory() -> PathBuf {
        let name = format!(
            "channel-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        );
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(path.join("host")).unwrap();
        path
    }

    /// A collector that answers the first message with `answer`.
    fn greet_with(answer: Vec<u8>) -> io::Result<Seed> {
        let parent = directory();
        let socket = parent.join("host/report.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let collector = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut byte = [0];
            while byte != *b"\n" {
                stream.read_exact(&mut byte).unwrap();
            }
            stream.write_all(&answer).unwrap();
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let mut outbox = Outbox::new(RunClock::start(), OWN);
        outbox.push_bye();
        let result = runtime.block_on(async { greet(connect(&socket)?, &mut outbox).map(drop) });
        collector.join().unwrap();
        assert_eq!(fs::metadata(&parent).unwrap().mode() & 0o777, 0o700);
        fs::remove_dir_all(parent).unwrap();
        result.map(|()| outbox.seed())
    }

    const OWN: Seed = Seed([1; 16]);

    fn welcome(protocol: u32) -> Vec<u8> {
        welcome_in(protocol, None)
    }

    fn welcome_in(protocol: u32, seed: Option<Seed>) -> Vec<u8> {
        let welcome = Welcome {
            protocol,
            resume_token: String::new(),
            stored: 0,
            seed,
        };
        encode(&HostMessage::Welcome(welcome), MAX_FRAME).unwrap()
    }

    #[test]
    fn only_a_welcome_of_our_protocol_opens_the_channel() {
        assert!(greet_with(welcome(PROTOCOL)).is_ok());
        assert!(greet_with(welcome(PROTOCOL + 1)).is_err());
        assert!(greet_with(Vec::new()).is_err());
        assert!(greet_with(b"rubbish\n".to_vec()).is_err());
    }

    #[test]
    fn targets_are_chosen_in_the_order_of_the_collector_or_where_it_has_none_in_ours() {
        let theirs = Seed([2; 16]);
        assert_eq!(
            greet_with(welcome_in(PROTOCOL, Some(theirs))).unwrap(),
            theirs
        );
        assert_eq!(greet_with(welcome(PROTOCOL)).unwrap(), OWN);
        let no_seed =
            b"{\"type\":\"welcome\",\"protocol\":1,\"resume_token\":\"\",\"seed\":\"7\"}\n";
        assert!(greet_with(no_seed.to_vec()).is_err());
    }

    #[test]
    fn an_unknown_message_before_the_welcome_is_passed_over() {
        let mut answer = b"{\"type\":\"news\"}\n".to_vec();
        answer.extend(welcome(PROTOCOL));
        assert!(greet_with(answer).is_ok());
    }

    #[test]
    fn a_directory_of_somebody_else_is_refused() {
        let parent = directory();
        std::os::unix::fs::chown(&parent, Some(4242), None).unwrap();
        let refused = connect(&parent.join("host/report.sock")).map(drop);
        assert!(
            refused
                .unwrap_err()
                .to_string()
                .contains("not a directory of root's")
        );
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn a_directory_that_others_use_as_well_is_left_as_it_is() {
        let parent = directory();
        let mode = || fs::metadata(&parent).unwrap().mode() & 0o777;
        let connected = || connect(&parent.join("host/report.sock")).map(drop);
        fs::set_permissions(&parent, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(parent.join("other"), "").unwrap();
        let refused = connected().unwrap_err().to_string();
        assert!(
            refused.contains("is open to the guest") && refused.contains("directory of its own"),
            "{refused}"
        );
        assert_eq!(mode(), 0o755);
        // Closed already, it may have anything in it.
        fs::set_permissions(&parent, fs::Permissions::from_mode(0o700)).unwrap();
        let absent = connected().unwrap_err().kind();
        assert_eq!(absent, io::ErrorKind::NotFound);
        fs::remove_file(parent.join("other")).unwrap();
        fs::create_dir(parent.join("attach")).unwrap();
        fs::set_permissions(&parent, fs::Permissions::from_mode(0o755)).unwrap();
        let absent = connected().unwrap_err().kind();
        assert_eq!((absent, mode()), (io::ErrorKind::NotFound, 0o700));
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn a_link_in_its_place_is_refused() {
        let parent = directory();
        let link = parent.join("link");
        std::os::unix::fs::symlink(parent.join("host"), &link).unwrap();
        let refused = close_to_guest(&link, None).unwrap_err().to_string();
        assert!(refused.contains("not a directory of root's"), "{refused}");
        assert!(close_to_guest(&parent.join("host"), None).is_ok());
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn a_socket_that_is_not_there_is_refused() {
        let parent = directory();
        assert!(connect(&parent.join("host/none.sock")).is_err());
        fs::remove_dir_all(parent).unwrap();
    }
}
