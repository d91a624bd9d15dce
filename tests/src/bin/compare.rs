//! `tests/bench/compare`: measures, prints a table and writes `results.json`.

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context;
use sandbox_egress_tests::{
    asked::{Asked, ended},
    compare::{Comparison, contestant::Contestant, machine, peers, relay},
    programs::public_directory,
};
use serde_json::json;

fn main() -> ExitCode {
    ended("compare", run())
}

fn run() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if_eq("relay").is_some() {
        let listener = io::stdin().lock();
        let listener = std::os::fd::AsFd::as_fd(&listener).try_clone_to_owned()?;
        writeln!(io::stdout(), "serving")?;
        return relay::serve(listener.into());
    }
    let (asked, program) = Asked::parse(arguments, 5, Some("--proxy"))?;
    let program = match program {
        Some(program) => PathBuf::from(program),
        None => std::env::current_exe()
            .context("find this program")?
            .with_file_name("sandbox-egress-proxy"),
    };
    let directory = public_directory()?;
    let peers = peers::installed(directory.path())?;
    let versions: Vec<_> = peers
        .iter()
        .map(|peer| Ok((peer.name, peer.version()?)))
        .collect::<anyhow::Result<_>>()?;
    let mut contestants = vec![
        Contestant::None,
        Contestant::Relay,
        Contestant::Ours(program.clone()),
    ];
    contestants.extend(peers.into_iter().map(Contestant::Peer));
    contestants.retain(|contestant| asked.wants(contestant.name()));
    let size = machine::size(&program)?;
    let comparison = Comparison::new(contestants, program, asked.rounds)?;
    let results = comparison.run(&mut |line| {
        // Progress is for whoever looks.
        let _ = writeln!(io::stderr(), "{line}");
    })?;
    writeln!(io::stdout(), "{}", results.table("bare splice relay"))?;
    asked.keep(&json!({
        "machine": machine::machine(),
        "rounds": asked.rounds,
        "peers": versions.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        "binary_bytes": size,
        "contestants": results.to_json(),
    }))
}
