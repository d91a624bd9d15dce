//! Very many runs that one process attends to: what each of them takes of it.
//!
//! Their containers are played by another process, over the same socket, nonce and messages as real
//! ones.

use std::{
    fs,
    io::{BufRead, BufReader, Write, stdout},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, ensure};
use host_collector::channel::{Channel, Terms};
use report::{
    Body, Bye, ChannelState, Denied, EndReason, Enforcement, Enforcing, Exit, Hello, HostMessage,
    Ipv6, MAX_FRAME, Message, PROTOCOL, Printable, Target, Totals, Transport, encode,
};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader as AsyncReader},
    net::UnixStream,
    sync::Barrier,
    task::JoinSet,
    time::{MissedTickBehavior, interval_at},
};

use super::{Figures, guest::now};
use crate::{compare::usage::Usage, programs::public_directory};

/// What a collector says of the runs that it attended to.
#[derive(Debug, Serialize, Deserialize)]
struct Attended {
    /// KiB that each took once it was under way.
    kib_each: f64,
    /// Share of a processor while each made one decision a second.
    share: f64,
    /// How many were complete.
    complete: usize,
    /// How many refusals were in them.
    refused: u64,
}

/// What is there at one moment.
#[derive(Debug, Clone, Copy)]
struct Mark {
    at: Duration,
    cpu: Duration,
    anonymous: u64,
}

/// Counts what all runs have said.
#[derive(Debug, Default)]
struct Counted {
    enforcing: usize,
    refused: usize,
    begun: Option<Mark>,
    ended: Option<Mark>,
}

/// Runs both processes.
pub fn many(figures: &mut Figures) -> anyhow::Result<()> {
    let directory = public_directory()?;
    let mut collector = again("collector", directory.path())?;
    let said = collector.stdout.take().context("hear the collector")?;
    let mut said = BufReader::new(said);
    ensure!(line(&mut said)? == "open\n", "the collector is not open");
    let mut containers = again("containers", directory.path())?;
    let played = containers.wait().context("wait for the containers")?;
    ensure!(played.success(), "the containers ended with {played}");
    let attended: Attended = serde_json::from_str(&line(&mut said)?)?;
    collector.wait().context("wait for the collector")?;
    figures.add(
        format!("collector of {RUNS} runs, KiB each"),
        attended.kib_each,
        "≤ 64",
    );
    let name = format!("collector of {RUNS} runs, % of a core at a decision a second each");
    figures.add(name, attended.share * 100.0, "≤ 5");
    let short = RUNS.saturating_sub(attended.complete);
    figures.count(format!("of {RUNS} runs not complete"), short as u64, "0");
    let due = (RUNS * SECONDS) as u64;
    figures.count(
        "their refusals without a report",
        due.abs_diff(attended.refused),
        "0",
    );
    Ok(())
}

fn again(part: &str, directory: &Path) -> anyhow::Result<Child> {
    let this = std::env::current_exe().context("find this program")?;
    let mut command = Command::new(this);
    command.arg(part).arg(directory).stdin(Stdio::null());
    command.stdout(Stdio::piped());
    command.spawn().with_context(|| format!("start the {part}"))
}

fn line(from: &mut impl BufRead) -> anyhow::Result<String> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    Ok(line)
}

/// The process that attends to all.
pub fn collector(directory: &Path) -> anyhow::Result<()> {
    let before = Mark::now()?;
    let mut channels = Vec::new();
    for n in 0..RUNS {
        let run_dir = run_dir(directory, n);
        fs::create_dir(&run_dir)?;
        let channel = Channel::open(&run_dir, Terms::random(None)?)?;
        fs::write(run_dir.join("nonce"), channel.nonce().expose())?;
        channels.push(channel);
    }
    let counted = Arc::new(Mutex::new(Counted::default()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (mut complete, mut refused) = (0, 0);
    runtime.block_on(async {
        let mut attending = JoinSet::new();
        for channel in channels {
            let counted = Arc::clone(&counted);
            attending.spawn(channel.attend(std::future::pending(), move |message| {
                let mut counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
                counted.count(&message.body);
            }));
        }
        writeln!(stdout(), "open")?;
        while let Some(attended) = attending.join_next().await {
            let attendance = attended?;
            complete += usize::from(attendance.verdict().state == ChannelState::Complete);
            let reports = attendance.reports.context("reports")?;
            refused += reports.account.totals().denied.values().sum::<u64>();
        }
        anyhow::Ok(())
    })?;
    let counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
    let (begun, ended) = counted.begun.zip(counted.ended).context("all decisions")?;
    let cpu = ended.cpu.saturating_sub(begun.cpu).as_secs_f64();
    let grown = ended.anonymous.saturating_sub(before.anonymous);
    let attended = Attended {
        kib_each: Duration::from_secs(grown).as_secs_f64()
            / Duration::from_secs(RUNS as u64).as_secs_f64(),
        share: cpu / ended.at.saturating_sub(begun.at).as_secs_f64(),
        complete,
        refused,
    };
    writeln!(stdout(), "{}", serde_json::to_string(&attended)?)?;
    Ok(())
}

impl Counted {
    fn count<R>(&mut self, body: &Body<R>) {
        match body {
            Body::Enforcing(_) => {
                self.enforcing += 1;
                if self.enforcing == RUNS {
                    self.begun = Mark::now().ok();
                }
            }
            Body::Denied(_) => {
                self.refused += 1;
                if self.refused == RUNS * SECONDS {
                    self.ended = Mark::now().ok();
                }
            }
            Body::Hello(_)
            | Body::Allowed(_)
            | Body::Gap(_)
            | Body::Totals(_)
            | Body::Policy(_)
            | Body::Exit(_)
            | Body::Bye(_)
            | Body::Unknown => {}
        }
    }
}

impl Mark {
    fn now() -> anyhow::Result<Self> {
        Ok(Self {
            at: now(),
            cpu: Duration::try_from(clock_gettime(ClockId::ProcessCPUTime))?,
            anonymous: Usage::alone(std::process::id())?.anonymous,
        })
    }
}

/// The process that plays all containers.
pub fn containers(directory: &Path) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let all_there = Arc::new(Barrier::new(RUNS));
        let mut playing = JoinSet::new();
        for n in 0..RUNS {
            let run_dir = run_dir(directory, n);
            let all_there = Arc::clone(&all_there);
            playing.spawn(async move { Container::play(&run_dir, n, &all_there).await });
        }
        while let Some(played) = playing.join_next().await {
            played??;
        }
        Ok(())
    })
}

/// One container's end of its channel.
struct Container {
    stream: AsyncReader<UnixStream>,
    seq: u64,
}

impl Container {
    async fn play(run_dir: &Path, n: usize, all_there: &Barrier) -> anyhow::Result<()> {
        let socket = run_dir.join("channel/report.sock");
        let stream = UnixStream::connect(&socket).await.context("connect")?;
        let nonce = fs::read_to_string(run_dir.join("nonce"))?;
        let stream = AsyncReader::new(stream);
        let mut container = Self { stream, seq: 0 };
        container.say(hello(nonce)).await?;
        container.say(enforcing()).await?;
        container.settle().await?;
        all_there.wait().await;
        // The decisions of all runs are spread over the second, as they would be.
        let offset = Duration::from_micros((n * 1_000_000 / RUNS) as u64);
        let mut second = interval_at(tokio::time::Instant::now() + offset, SECOND);
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for number in 0..SECONDS {
            second.tick().await;
            container.say(denied(&format!("d{number}.example"))).await?;
            container.settle().await?;
        }
        container.say(exit()).await?;
        let last_seq = container.seq + 1;
        container.say(bye(last_seq)).await?;
        container.settle().await
    }

    async fn say(&mut self, body: Body) -> anyhow::Result<()> {
        self.seq += 1;
        let (seq, t) = (self.seq, self.seq);
        let line = encode(&Message { body, seq, t }, MAX_FRAME)?;
        self.stream.write_all(&line).await.context("report")
    }

    /// Waits until everything that was said is acknowledged.
    async fn settle(&mut self) -> anyhow::Result<()> {
        let mut line = String::new();
        loop {
            line.clear();
            ensure!(self.stream.read_line(&mut line).await? > 0, "it hung up");
            if serde_json::from_str::<HostMessage>(&line)? == (HostMessage::Ack { seq: self.seq }) {
                return Ok(());
            }
        }
    }
}

fn run_dir(directory: &Path, n: usize) -> std::path::PathBuf {
    directory.join(n.to_string())
}

fn hello(nonce: String) -> Body {
    Body::Hello(Hello {
        protocol: PROTOCOL,
        nonce,
        version: Printable::new("0"),
        policy_digest: None,
        guest_uid: 1000,
        named: None,
    })
}

fn enforcing() -> Body {
    Body::Enforcing(Enforcing {
        enforcement: Enforcement::Name,
        backend: Printable::new("nftables"),
        ruleset_digest: Printable::new("0"),
        self_test: Vec::new(),
        ipv6: Ipv6::Absent,
        degradations: Vec::new(),
    })
}

fn denied(host: &str) -> Body {
    Body::Denied(Denied {
        target: Target {
            host: Some(Printable::new(host)),
            address: None,
            port: Some(443),
        },
        proto: Transport::Tcp,
        reason: policy::DenyReason::NotAllowed,
        count: 1,
        first: 1,
        last: 1,
        uid: None,
    })
}

fn exit() -> Body {
    Body::Exit(Exit {
        code: Some(0),
        signal: None,
        end_reason: EndReason::Exited,
        cpu_ms: 1,
        peak_rss_kb: None,
        outlived_root: 0,
        detail: None,
    })
}

fn bye(last_seq: u64) -> Body {
    let denied = [(policy::DenyReason::NotAllowed, SECONDS as u64)];
    let totals = Totals {
        denied: denied.into(),
        ..Totals::default()
    };
    Body::Bye(Bye { last_seq, totals })
}

const RUNS: usize = 1_000;
const SECONDS: usize = 10;
const SECOND: Duration = Duration::from_secs(1);
