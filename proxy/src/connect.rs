//! `connect HOST PORT`: one connection through the proxy, on standard input and output.
//!
//! It is what a guest runs, by hand or as ssh's `ProxyCommand`, so it has nothing of the daemon's: no
//! link, no confinement, no runtime. What is refused is told on standard error in one line.

mod arguments;
mod response;

use std::{
    ffi::OsString,
    fs::File,
    io::{self, IsTerminal as _, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    os::fd::BorrowedFd,
    thread,
    time::Duration,
};

use policy::Destination;
use report::Printable;
use rustix::stdio::{dup2_stdout, stdin, stdout};

use self::{
    arguments::{Asked, Wanted},
    response::NotEstablished,
};

/// Why there is no connection, or how it broke.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("{0}; see `sandbox-egress-proxy connect --help`")]
    Usage(String),
    #[error("{destination}: {cause}")]
    NotEstablished {
        destination: Destination,
        cause: NotEstablished,
    },
    #[error("no proxy answers at {proxy}: {source}; it runs only under an allowlist")]
    NoProxy {
        proxy: SocketAddr,
        source: io::Error,
    },
    #[error("{destination}: the connection broke: {source}")]
    Broken {
        destination: Destination,
        source: io::Error,
    },
}

/// Does what `arguments` ask for, with the variables of the guest.
pub(crate) fn run(
    arguments: &[String],
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<(), ConnectError> {
    match arguments::read(arguments, variables).map_err(ConnectError::Usage)? {
        // Whether it can be read is the reader's affair.
        Wanted::Help => drop(io::stdout().write_all(HELP.as_bytes())),
        Wanted::Connection(asked) => connect(&asked)?,
    }
    Ok(())
}

fn connect(asked: &Asked) -> Result<(), ConnectError> {
    let destination = &asked.destination;
    let mut stream = dial(asked.proxy).map_err(|source| ConnectError::NoProxy {
        proxy: asked.proxy,
        source,
    })?;
    let opened = response::ask(&mut stream, destination);
    let early = opened.map_err(|cause| ConnectError::NotEstablished {
        destination: destination.clone(),
        cause,
    })?;
    relay(&stream, &early).map_err(|source| ConnectError::Broken {
        destination: destination.clone(),
        source,
    })
}

fn dial(proxy: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&proxy, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Carries bytes both ways, and each end separately: whoever has said everything may still listen.
fn relay(mut stream: &TcpStream, early: &[u8]) -> io::Result<()> {
    stream.set_read_timeout(None)?;
    let (input, mut output) = (unbuffered(stdin())?, unbuffered(stdout())?);
    let upward = stream.try_clone()?;
    let sending = thread::spawn(move || send(input, &upward));
    output.write_all(early)?;
    carry(&mut stream, &mut output)?;
    drop(output);
    close_output();
    // At a terminal nobody would know that it waits for an end of what is typed.
    if io::stdin().is_terminal() {
        return Ok(());
    }
    sending
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("sending failed")))
}

fn send(input: File, stream: &TcpStream) -> io::Result<()> {
    let sent = carry(input, stream);
    // Where it fails, the far end is gone already.
    let _ = stream.shutdown(Shutdown::Write);
    sent
}

/// Not `io::copy`, which splices: while that waits for the far end it keeps a pipe locked, and with
/// it whoever wants to read from there what was written before.
fn carry(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => to.write_all(buffer.get(..length).unwrap_or_default())?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The standard streams of the library hold bytes back; an ssh waits for every one of them.
fn unbuffered(descriptor: BorrowedFd<'_>) -> io::Result<File> {
    Ok(File::from(descriptor.try_clone_to_owned()?))
}

/// Whoever reads our output learns of its end although we go on.
fn close_output() {
    if let Ok(nothing) = File::options().write(true).open("/dev/null") {
        // Where it fails, its reader has to wait for our own end.
        let _ = dup2_stdout(&nothing);
    }
}

impl ConnectError {
    /// What the program exits with.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::NotEstablished {
                cause: NotEstablished::Denied { .. },
                ..
            } => 1,
            Self::Usage(_) => 2,
            Self::NotEstablished { .. } | Self::NoProxy { .. } | Self::Broken { .. } => 3,
        }
    }

    /// One line for a terminal, whoever chose the words in it.
    pub(crate) fn line(&self) -> String {
        format!(
            "sandbox-egress-proxy: {}\n",
            Printable::new(&self.to_string())
        )
    }
}

/// Longer than the proxy takes to reach a host or to give it up.
const PATIENCE: Duration = Duration::from_secs(30);
const BUFFER: usize = 64 * 1024;
const HELP: &str = "\
usage: sandbox-egress-proxy connect [--proxy ADDRESS:PORT] HOST PORT

Opens a connection to PORT of HOST through the sandbox's proxy, and joins it to standard input and
output; for ssh:

    ssh -o ProxyCommand='sandbox-egress-proxy connect %h %p' HOST

Without --proxy, the proxy is the one on loopback that https_proxy or HTTPS_PROXY names, or else
127.0.0.1:3128.

Exits with 0 once both directions have ended, 1 if the allowlist does not let HOST and PORT through,
2 if these arguments cannot be used, and 3 if the connection failed.
";

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use socket2::{Domain, Socket, Type};

    use super::*;

    fn destination() -> Destination {
        Destination::parse("a.example", 22).unwrap()
    }

    #[test]
    fn a_denial_is_told_from_a_failure_and_a_mistake_by_the_code() {
        let denied = NotEstablished::Denied {
            reason: "not_allowed".to_owned(),
            hint: None,
        };
        let not = |cause| ConnectError::NotEstablished {
            destination: destination(),
            cause,
        };
        let broken = ConnectError::Broken {
            destination: destination(),
            source: io::ErrorKind::ConnectionReset.into(),
        };
        for (error, code) in [
            (not(denied), 1),
            (ConnectError::Usage(String::new()), 2),
            (not(NotEstablished::NoAnswer), 3),
            (broken, 3),
        ] {
            assert_eq!(error.code(), code, "{error}");
        }
    }

    #[test]
    fn what_is_told_is_one_line_whatever_is_in_it() {
        let error = ConnectError::Usage("a\u{1b}[2J\r\nb".to_owned());
        let line = error.line();
        assert_eq!(line.matches(char::is_control).collect::<Vec<_>>(), ["\n"]);
        assert!(line.ends_with('\n'), "{line:?}");
    }

    #[test]
    fn whoever_listens_where_nobody_does_is_told_of_the_allowlist() {
        // Held, and not listening: no other program gets its port.
        let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        held.bind(&any.into()).unwrap();
        let proxy = held.local_addr().unwrap().as_socket().unwrap();
        let error = connect(&Asked {
            destination: destination(),
            proxy,
        })
        .unwrap_err();
        let line = error.line();
        assert!(line.contains("only under an allowlist"), "{line}");
        assert_eq!(error.code(), 3);
    }
}
