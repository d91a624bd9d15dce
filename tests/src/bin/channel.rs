//! `tests/bench/channel`: measures runs beside their proxy, prints a table and writes a file.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use sandbox_egress_tests::{
    compare::machine,
    figures::{Figures, flood, guest, runs, setup, stage::Stage},
};
use serde_json::json;

/// What was asked for on the command line.
struct Asked {
    rounds: usize,
    /// Parts of names; none: everything is measured.
    only: Vec<String>,
    results: Option<PathBuf>,
}

type Part = fn(&Stage, &Asked, &mut Figures) -> anyhow::Result<()>;

/// All that is measured, in order.
const PARTS: [(&str, Part); 7] = [
    ("set-up", |stage, asked, figures| {
        setup::set_up(stage, asked.rounds, figures)
    }),
    ("load", |stage, asked, figures| {
        setup::load(stage, asked.rounds, figures)
    }),
    ("denials", |stage, _, figures| {
        setup::denials(stage, figures)
    }),
    ("questions", |stage, _, figures| {
        flood::questions(stage, figures)
    }),
    ("packets", |stage, _, figures| {
        flood::packets(stage, figures)
    }),
    ("openings", |stage, _, figures| {
        flood::openings(stage, figures)
    }),
    ("runs", |_, _, figures| runs::many(figures)),
];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There is nobody else to tell.
            let _ = writeln!(io::stderr(), "channel: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    let part = arguments
        .next_if(|first| ["begin", "guest", "collector", "containers"].contains(&first.as_str()));
    match part.as_deref() {
        Some("begin") => return guest::begin(arguments),
        Some("guest") => return guest::act(arguments),
        Some(part) => {
            let directory = arguments.next().context("a directory")?;
            let play = if part == "collector" {
                runs::collector
            } else {
                runs::containers
            };
            return play(Path::new(&directory));
        }
        None => {}
    }
    let asked = Asked::parse(arguments)?;
    let (stage, mut figures) = (Stage::build()?, Figures::default());
    for (name, measure) in PARTS {
        if asked.wants(name) {
            // Progress is for whoever looks.
            let _ = writeln!(io::stderr(), "{name}");
            // What does not work on this machine keeps nothing else from being measured.
            if let Err(error) = measure(&stage, &asked, &mut figures) {
                let _ = writeln!(io::stderr(), "{name}: {error:#}");
            }
        }
    }
    write!(io::stdout(), "{}", figures.table())?;
    if let Some(path) = asked.results {
        let all = json!({ "machine": machine::machine(), "figures": figures.to_json() });
        let text = serde_json::to_string_pretty(&all)? + "\n";
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

impl Asked {
    fn parse(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut asked = Self {
            rounds: 20,
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
                "--rounds" => asked.rounds = value()?.parse().context("--rounds is a number")?,
                "--only" => asked.only.push(value()?),
                "--results" => asked.results = Some(value()?.into()),
                _ => bail!(
                    "unknown argument {argument}: there are --rounds N, --only NAME and --results FILE"
                ),
            }
        }
        Ok(asked)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part))
    }
}
