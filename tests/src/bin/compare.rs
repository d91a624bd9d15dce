//! `tests/bench/compare`: measures, prints a table and writes `results.json`.

use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, bail};
use sandbox_egress_tests::{
    compare::{Comparison, contestant::Contestant, machine, peers, relay},
    programs::public_directory,
};
use serde_json::json;

/// What was asked for on the command line.
struct Asked {
    program: PathBuf,
    rounds: usize,
    /// Parts of names; none: everybody takes part.
    only: Vec<String>,
    results: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There is nobody else to tell.
            let _ = writeln!(io::stderr(), "compare: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if_eq("relay").is_some() {
        let listener = io::stdin().lock();
        let listener = std::os::fd::AsFd::as_fd(&listener).try_clone_to_owned()?;
        writeln!(io::stdout(), "serving")?;
        return relay::serve(listener.into());
    }
    let asked = Asked::parse(arguments)?;
    let directory = public_directory()?;
    let peers = peers::installed(directory.path())?;
    let versions: Vec<_> = peers
        .iter()
        .map(|peer| Ok((peer.name, peer.version()?)))
        .collect::<anyhow::Result<_>>()?;
    let mut contestants = vec![
        Contestant::None,
        Contestant::Relay,
        Contestant::Ours(asked.program.clone()),
    ];
    contestants.extend(peers.into_iter().map(Contestant::Peer));
    contestants.retain(|contestant| asked.wants(contestant.name()));
    let size = machine::size(&asked.program)?;
    let comparison = Comparison::new(contestants, asked.program, asked.rounds)?;
    let results = comparison.run(&mut |line| {
        // Progress is for whoever looks.
        let _ = writeln!(io::stderr(), "{line}");
    })?;
    writeln!(io::stdout(), "{}", results.table("bare splice relay"))?;
    if let Some(path) = asked.results {
        let all = json!({
            "machine": machine::machine(),
            "rounds": asked.rounds,
            "peers": versions.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            "binary_bytes": size,
            "contestants": results.to_json(),
        });
        let text = serde_json::to_string_pretty(&all)? + "\n";
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

impl Asked {
    fn parse(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("find this program")?;
        let mut asked = Self {
            program: own.with_file_name("sandbox-egress-proxy"),
            rounds: 5,
            only: Vec::new(),
            results: None,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || {
                arguments
                    .next()
                    .with_context(|| format!("{argument} needs a value"))
            };
            match argument.as_str() {
                "--proxy" => asked.program = value()?.into(),
                "--rounds" => asked.rounds = value()?.parse().context("--rounds is a number")?,
                "--only" => asked.only.push(value()?),
                "--results" => asked.results = Some(value()?.into()),
                _ => bail!(
                    "unknown argument {argument}: there are --proxy PROGRAM, --rounds N, --only NAME and --results FILE"
                ),
            }
        }
        Ok(asked)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part))
    }
}
