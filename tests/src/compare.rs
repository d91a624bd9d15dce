//! Measures our proxy against peers, against the least that a proxy can do, and against none.
//!
//! Rounds alternate: each round starts every contestant anew and measures it, so that what changes
//! on the machine meanwhile changes for all. It reports; it asserts nothing about speed. One
//! processor is for the contestant and one for both its ends.

pub mod contestant;
pub mod cores;
pub mod ends;
pub mod hello;
pub mod load;
pub mod machine;
pub mod ours;
pub mod peers;
pub mod relay;
pub mod results;
pub mod usage;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;

use contestant::{Contestant, Rules, Running};
use cores::Cores;
use ends::{Ends, NAME};
use load::Client;
use results::{Measure, Results};

/// What is compared, and how often.
#[derive(Debug)]
pub struct Comparison {
    /// Who takes part.
    pub contestants: Vec<Contestant>,
    /// The program of ours.
    pub program: PathBuf,
    /// How often each is measured.
    pub rounds: usize,
    cores: Cores,
    ends: Ends,
    hello: Arc<Vec<u8>>,
    runtime: tokio::runtime::Runtime,
    results: Results,
}

impl Comparison {
    /// One with its ends running.
    pub fn new(
        contestants: Vec<Contestant>,
        program: PathBuf,
        rounds: usize,
    ) -> anyhow::Result<Self> {
        let cores = Cores::two()?;
        let ends = Ends::start(cores)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("start an event loop")?;
        Ok(Self {
            contestants,
            program,
            rounds,
            cores,
            ends,
            hello: Arc::new(hello::hello(NAME)?),
            runtime,
            results: Results::default(),
        })
    }

    /// Measures everything.
    pub fn run(mut self, tell: &mut impl FnMut(&str)) -> anyhow::Result<Results> {
        for round in 1..=self.rounds {
            for contestant in self.contestants.clone() {
                tell(&format!("round {round}: {}", contestant.name()));
                // A peer that does not work on this machine keeps nobody else from being measured.
                if let Err(error) = self.round(&contestant) {
                    tell(&format!("{}: {error:#}", contestant.name()));
                }
            }
            tell(&format!("round {round}: start-up and questions"));
            self.start_up()?;
            self.questions()?;
        }
        for contestant in self.contestants.clone() {
            tell(&format!("idle tunnels: {}", contestant.name()));
            // Not every peer can hold as many: then there is no figure.
            if let Err(error) = self.idle(&contestant) {
                tell(&format!("{}: {error:#}", contestant.name()));
            }
        }
        Ok(self.results)
    }

    fn rules(&self) -> Rules {
        Rules {
            ports: [self.ends.echo.port(), self.ends.source.port()],
            entries: FEW,
            connections: CONNECTIONS,
        }
    }

    fn client(&self, contestant: &Contestant, running: &Running) -> Client {
        Client {
            to: running.address,
            asks: contestant.is_asked(),
            hello: Arc::clone(&self.hello),
        }
    }

    fn round(&mut self, contestant: &Contestant) -> anyhow::Result<()> {
        let running = contestant.start(self.cores, self.rules())?;
        let client = self.client(contestant, &running);
        let name = contestant.name();
        if let Some(usage) = running.usage() {
            let memory = usage.memory()?;
            self.results.add(name, IDLE_PSS, mib(memory.share));
            self.results.add(name, IDLE_RSS, mib(memory.resident));
        }
        self.tunnels(name, &client, &running)?;
        self.bulk(name, &client, &running)?;
        if contestant.denies() {
            self.denied(name, &client, &running, FEW)?;
        }
        drop(running);
        let lists: &[usize] = if contestant.lists_names() {
            &[MANY, VERY_MANY]
        } else {
            &[]
        };
        for &entries in lists {
            let rules = Rules {
                entries,
                ..self.rules()
            };
            let running = contestant.start(self.cores, rules)?;
            let client = self.client(contestant, &running);
            self.denied(name, &client, &running, entries)?;
        }
        Ok(())
    }

    fn tunnels(&mut self, name: &str, client: &Client, running: &Running) -> anyhow::Result<()> {
        let echo = self.ends.echo;
        self.runtime
            .block_on(client.tunnels(echo, WARM_UP, AT_ONCE))?;
        let before = cpu(running)?;
        let done = self
            .runtime
            .block_on(client.tunnels(echo, TUNNELS, AT_ONCE))?;
        let used = cpu(running)?.saturating_sub(before);
        let per_second = count(TUNNELS) / done.took.as_secs_f64();
        self.results.add(name, TUNNELS_PER_S, per_second);
        let p99 = done.set_ups.get(TUNNELS * 99 / 100).copied();
        let p99 = p99.unwrap_or_default().as_secs_f64() * 1e3;
        self.results.add(name, P99_MS, p99);
        if running.usage().is_some() {
            let cost = used.as_secs_f64() * 10_000.0 / count(TUNNELS);
            self.results.add(name, CPU_PER_10_000, cost);
        }
        Ok(())
    }

    fn bulk(&mut self, name: &str, client: &Client, running: &Running) -> anyhow::Result<()> {
        for (tunnels, speed, cost) in [(1, BULK_1, CPU_PER_GB_1), (8, BULK_8, CPU_PER_GB_8)] {
            let before = cpu(running)?;
            let moving = client.bulk(self.ends.source, tunnels, BULK);
            let (bytes, took) = self.runtime.block_on(moving)?;
            let used = cpu(running)?.saturating_sub(before);
            #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
            let gigabytes = bytes as f64 / 1e9;
            self.results
                .add(name, speed, gigabytes / took.as_secs_f64());
            if running.usage().is_some() {
                self.results.add(name, cost, used.as_secs_f64() / gigabytes);
            }
        }
        Ok(())
    }

    fn denied(
        &mut self,
        name: &str,
        client: &Client,
        running: &Running,
        entries: usize,
    ) -> anyhow::Result<()> {
        let port = self.ends.echo.port();
        self.runtime
            .block_on(client.denied(port, WARM_UP, AT_ONCE))?;
        let before = cpu(running)?;
        let (requests, took) = self
            .runtime
            .block_on(client.denied(port, DENIED, AT_ONCE))?;
        let used = cpu(running)?.saturating_sub(before);
        let cost = used.as_secs_f64() * 1e6 / count(requests);
        let measure = match entries {
            FEW => {
                let per_second = count(requests) / took.as_secs_f64();
                self.results.add(name, DENIED_PER_S, per_second);
                DENIED_AT_FEW
            }
            MANY => DENIED_AT_MANY,
            _ => DENIED_AT_VERY_MANY,
        };
        self.results.add(name, measure, cost);
        Ok(())
    }

    fn start_up(&mut self) -> anyhow::Result<()> {
        for _ in 0..STARTS {
            let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
            let rules = self.rules();
            let started = self
                .cores
                .with_contestant(|| ours::start(&self.program, &listener, rules))?;
            let ours = Contestant::Ours(self.program.clone());
            let milliseconds = started.took.as_secs_f64() * 1e3;
            self.results.add(ours.name(), START_MS, milliseconds);
            ours::end(started)?;
        }
        Ok(())
    }

    fn questions(&mut self) -> anyhow::Result<()> {
        let ours = Contestant::Ours(self.program.clone());
        let running = ours.start(self.cores, self.rules())?;
        let server = running.questions.context("a socket for questions")?;
        for (asked, measure) in [(NAME, CACHED_PER_S), ("denied.example", REFUSED_PER_S)] {
            let query = load::query(asked);
            let asking = |count| load::questions(server, &query, count);
            self.runtime.block_on(asking(WARM_UP))?;
            let took = self.runtime.block_on(asking(QUESTIONS))?;
            let per_second = count(QUESTIONS) / took.as_secs_f64();
            self.results.add(ours.name(), measure, per_second);
        }
        Ok(())
    }

    /// What a silent tunnel costs.
    fn idle(&mut self, contestant: &Contestant) -> anyhow::Result<()> {
        if !contestant.is_asked() {
            return Ok(());
        }
        let running = contestant.start(self.cores, self.rules())?;
        let client = self.client(contestant, &running);
        let usage = running.usage().context("a process")?;
        // What is needed once for all of them is no tunnel's.
        let first = self.runtime.block_on(client.idle(self.ends.echo, FIRST))?;
        let (memory, descriptors) = (usage.memory()?, usage.descriptors()?);
        let rest = self
            .runtime
            .block_on(client.idle(self.ends.echo, IDLE_TUNNELS - FIRST))?;
        let more = usage.memory()?.anonymous.saturating_sub(memory.anonymous);
        let opened = usage.descriptors()?.saturating_sub(descriptors);
        let tunnels = count(rest.len());
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
        let kib = more as f64 / tunnels;
        self.results.add(contestant.name(), KIB_PER_IDLE, kib);
        let each = count(opened) / tunnels;
        self.results
            .add(contestant.name(), DESCRIPTORS_PER_IDLE, each);
        drop((first, rest));
        Ok(())
    }
}

fn cpu(running: &Running) -> anyhow::Result<Duration> {
    running
        .usage()
        .map_or(Ok(Duration::ZERO), usage::Usage::cpu)
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
fn count(things: usize) -> f64 {
    things as f64
}

const fn measure(name: &'static str, digits: usize) -> Measure {
    Measure { name, digits }
}

const TUNNELS_PER_S: Measure = measure("tunnels/s, 32 at once", 0);
const P99_MS: Measure = measure("p99 set-up ms", 2);
const CPU_PER_10_000: Measure = measure("CPU s per 10 000 tunnels", 3);
const BULK_1: Measure = measure("one bulk tunnel GB/s", 2);
const CPU_PER_GB_1: Measure = measure("CPU s per GB, one tunnel", 3);
const BULK_8: Measure = measure("8 tunnels GB/s", 2);
const CPU_PER_GB_8: Measure = measure("CPU s per GB, 8 tunnels", 3);
const DENIED_PER_S: Measure = measure("denied/s", 0);
const DENIED_AT_FEW: Measure = measure("CPU µs per denial, 10 entries", 1);
const DENIED_AT_MANY: Measure = measure("CPU µs per denial, 1 000 entries", 1);
const DENIED_AT_VERY_MANY: Measure = measure("CPU µs per denial, 100 000 entries", 1);
const IDLE_PSS: Measure = measure("idle PSS MiB", 2);
const IDLE_RSS: Measure = measure("idle RSS MiB", 2);
const KIB_PER_IDLE: Measure = measure("KiB per idle tunnel", 2);
const DESCRIPTORS_PER_IDLE: Measure = measure("descriptors per idle tunnel", 2);
const START_MS: Measure = measure("exec to serving ms", 2);
const CACHED_PER_S: Measure = measure("questions/s, cached", 0);
const REFUSED_PER_S: Measure = measure("questions/s, denied", 0);

const AT_ONCE: usize = 32;
const WARM_UP: usize = 500;
const TUNNELS: usize = 10_000;
const BULK: Duration = Duration::from_millis(1500);
const DENIED: usize = 10_000;
const QUESTIONS: usize = 20_000;
const STARTS: usize = 5;
const FEW: usize = 10;
const MANY: usize = 1_000;
const VERY_MANY: usize = 100_000;
const CONNECTIONS: u32 = 8_000;
const IDLE_TUNNELS: usize = 5_000;
const FIRST: usize = 100;
