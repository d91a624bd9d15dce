//! What a guest does while it is measured: this program again, started by the entrypoint.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write, stdout},
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    os::unix::process::CommandExt,
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use rustix::time::{ClockId, clock_gettime};

use crate::compare::load::query;

/// The file through which the host says when to go on.
pub const GO: &str = "go";
/// What the name begins with at which the host looks at the processes.
pub const LOOK: &str = "look";
/// The variable that carries when the entrypoint was executed.
const BEGAN: &str = "FIGURES_BEGAN";
/// Where the proxy listens.
const PROXY: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 3128);
/// How often the name is asked for at which the host looks for the last time.
pub const LAST_LOOKS: u64 = 20;
const ASKERS: usize = 8;
const SENDERS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(20);

/// The monotonic clock, which all processes of a machine share.
#[must_use]
pub fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// Executes `program` and leaves it the moment at which that was.
pub fn begin(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let program = arguments.next().context("a program to begin with")?;
    let mut command = Command::new(&program);
    command.args(arguments);
    let error = command.env(BEGAN, now().as_nanos().to_string()).exec();
    Err(error).with_context(|| format!("execute {program}"))
}

/// Does what a guest was started for.
pub fn act(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let reached = now();
    let role = arguments.next().context("what a guest is to do")?;
    let mut number = || -> anyhow::Result<usize> {
        let number = arguments.next().context("how often")?;
        number.parse().context("a number")
    };
    match role.as_str() {
        "first" => tell(reached.saturating_sub(began()?).as_nanos()),
        "denials" => denials(number()?),
        "questions" => {
            let (count, to) = (number()?, arguments.next().context("a name server")?);
            let kinds: usize = arguments.next().context("how many names")?.parse()?;
            let name = |n: usize| format!("q{}.flood.example", n % kinds);
            between_looks(|| ask_all(to.parse()?, count, ASKERS, &name))
        }
        "openings" => {
            let (count, to) = (number()?, arguments.next().context("a name server")?);
            let name = arguments.next().context("a name")?;
            between_looks(|| ask_all(to.parse()?, count, 1, &|_| name.clone()))
        }
        "packets" => {
            let (count, to) = (number()?, arguments.next().context("an address")?);
            between_looks(|| send_all(to.parse()?, count))
        }
        other => bail!("no guest does {other}"),
    }
}

fn began() -> anyhow::Result<Duration> {
    let began = std::env::vars().find(|(name, _)| name == BEGAN);
    let (_, began) = began.context("when the entrypoint was executed")?;
    Ok(Duration::from_nanos(began.parse()?))
}

fn tell(line: impl std::fmt::Display) -> anyhow::Result<()> {
    writeln!(stdout(), "{line}").context("tell the host")
}

/// Asks for one name after the other, each once the host has heard of the one before, and tells when
/// each was asked for.
fn denials(count: usize) -> anyhow::Result<()> {
    let mut go = Go::open()?;
    go.look("begin")?;
    for n in 0..count {
        let at = now();
        deny(&format!("d{n}.example"))?;
        tell(at.as_nanos())?;
        go.wait()?;
    }
    Ok(())
}

/// Has the host look at the processes, does `work`, has it look again, and tells what was done in
/// how many nanoseconds.
fn between_looks(work: impl FnOnce() -> anyhow::Result<usize>) -> anyhow::Result<()> {
    let mut go = Go::open()?;
    go.look("begin")?;
    let from = now();
    let done = work()?;
    let took = now().saturating_sub(from);
    tell(format_args!("{done} {}", took.as_nanos()))?;
    // After a flood of names one more need not be told by its name; what comes again and again is.
    for _ in 1..LAST_LOOKS {
        deny(&format!("{LOOK}-end.example"))?;
    }
    go.look("end")
}

/// The host's word that it has heard.
struct Go(BufReader<File>);

impl Go {
    fn open() -> anyhow::Result<Self> {
        let file = File::open(GO).context("open the way on which the host says go")?;
        Ok(Self(BufReader::new(file)))
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let mut line = String::new();
        ensure!(self.0.read_line(&mut line)? > 0, "the host is gone");
        Ok(())
    }

    fn look(&mut self, when: &str) -> anyhow::Result<()> {
        deny(&format!("{LOOK}-{when}.example"))?;
        self.wait()
    }
}

/// Is refused a tunnel.
fn deny(name: &str) -> anyhow::Result<()> {
    let mut proxy = TcpStream::connect(PROXY).context("connect to the proxy")?;
    write!(
        proxy,
        "CONNECT {name}:443 HTTP/1.1\r\nHost: {name}:443\r\n\r\n"
    )?;
    let mut answer = String::new();
    proxy.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 403 "), "{name}: {answer}");
    Ok(())
}

/// Asks `count` questions, each asker one after the other, and says how many were answered.
fn ask_all(
    to: SocketAddr,
    count: usize,
    askers: usize,
    name: &(impl Fn(usize) -> String + Sync),
) -> anyhow::Result<usize> {
    at_once(askers, |asker| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let (mut answer, mut answered) = ([0; 1500], 0);
        for n in (asker..count).step_by(askers) {
            socket.send(&query(&name(n)))?;
            answered += usize::from(socket.recv(&mut answer)? > 0);
        }
        Ok(answered)
    })
}

/// Sends `count` datagrams that the firewall refuses, which the kernel may tell the sender.
fn send_all(to: SocketAddr, count: usize) -> anyhow::Result<usize> {
    at_once(SENDERS, |sender| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let mut sent = 0;
        for _ in (sender..count).step_by(SENDERS) {
            // Refused or not, it was tried, and whoever counts must have counted it.
            let _ = socket.send_to(b"x", to);
            sent += 1;
        }
        Ok(sent)
    })
}

/// The sum of what so many threads did.
fn at_once(
    threads: usize,
    work: impl Fn(usize) -> anyhow::Result<usize> + Sync,
) -> anyhow::Result<usize> {
    thread::scope(|scope| {
        let work = &work;
        let working: Vec<_> = (0..threads)
            .map(|number| scope.spawn(move || work(number)))
            .collect();
        let mut done = 0;
        for thread in working {
            done += thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        Ok(done)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_question_is_asked_once_whoever_asks_it() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = server.local_addr().unwrap();
        let answering = thread::spawn(move || {
            let mut asked: Vec<Vec<u8>> = Vec::new();
            let mut question = [0; 512];
            while asked.len() < 20 {
                let (length, from) = server.recv_from(&mut question).unwrap();
                asked.push(question[..length].to_vec());
                server.send_to(b"answer", from).unwrap();
            }
            asked
        });
        let name = |n| format!("q{n}.example");
        assert_eq!(ask_all(to, 20, 3, &name).unwrap(), 20);
        let mut asked = answering.join().unwrap();
        asked.sort();
        let mut due: Vec<_> = (0..20).map(|n| query(&name(n))).collect();
        due.sort();
        assert_eq!(asked, due);
    }

    #[test]
    fn what_one_thread_could_not_do_is_told() {
        assert_eq!(at_once(4, Ok).unwrap(), 6);
        assert!(at_once(4, |n| if n == 2 { bail!("no") } else { Ok(n) }).is_err());
    }

    #[test]
    fn a_guest_that_is_to_do_what_none_does_is_refused() {
        for arguments in [&[][..], &["dance"], &["denials"], &["questions", "many"]] {
            let arguments = arguments.iter().map(ToString::to_string);
            assert!(act(arguments).is_err());
        }
    }
}
