//! `tests/bench/channel`: measures runs beside their proxy, prints a table and writes a file.

use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use anyhow::Context;
use sandbox_egress_tests::{
    asked::{Asked, ended},
    compare::machine,
    figures::{Figures, flood, guest, runs, setup, stage::Stage},
};
use serde_json::json;

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
    ended("channel", run())
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
    let (asked, _) = Asked::parse(arguments, 20, None)?;
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
    asked.keep(&json!({ "machine": machine::machine(), "figures": figures.to_json() }))
}
