//! What the measuring programs of `bench/` are asked for on their command lines.

use std::{
    fs,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, bail};
use serde_json::Value;

/// What all of them can be asked for.
#[derive(Debug)]
pub struct Asked {
    /// How often each figure is measured.
    pub rounds: usize,
    /// Parts of names; none: everything is measured.
    only: Vec<String>,
    results: Option<PathBuf>,
}

impl Asked {
    /// Reads `--rounds N`, `--only NAME`, `--results FILE`, and `own`, an option with a value that
    /// one of them has besides, and of which the last is returned.
    pub fn parse(
        mut arguments: impl Iterator<Item = String>,
        rounds: usize,
        own: Option<&str>,
    ) -> anyhow::Result<(Self, Option<String>)> {
        let (mut only, mut results, mut given) = (Vec::new(), None, None);
        let mut asked_rounds = rounds;
        while let Some(argument) = arguments.next() {
            let mut value = || {
                let value = arguments.next();
                value.with_context(|| format!("{argument} needs a value"))
            };
            match argument.as_str() {
                "--rounds" => asked_rounds = value()?.parse().context("--rounds is a number")?,
                "--only" => only.push(value()?),
                "--results" => results = Some(value()?.into()),
                option if Some(option) == own => given = Some(value()?),
                _ => {
                    let own = own.map_or(String::new(), |own| format!(", {own} VALUE"));
                    bail!(
                        "unknown argument {argument}: there are --rounds N, --only NAME, --results FILE{own}"
                    )
                }
            }
        }
        let asked = Self {
            rounds: asked_rounds,
            only,
            results,
        };
        Ok((asked, given))
    }

    /// Whether something of this name is to be measured.
    #[must_use]
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part))
    }

    /// Keeps all that was measured, where that is asked.
    pub fn keep(&self, all: &Value) -> anyhow::Result<()> {
        let Some(path) = &self.results else {
            return Ok(());
        };
        let text = serde_json::to_string_pretty(all)? + "\n";
        fs::write(path, text).with_context(|| format!("write {}", path.display()))
    }
}

/// The exit code of a program of this name, whose errors are said.
#[must_use]
pub fn ended(name: &str, done: anyhow::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There is nobody else to tell.
            let _ = writeln!(io::stderr(), "{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str, own: Option<&str>) -> anyhow::Result<(Asked, Option<String>)> {
        Asked::parse(line.split_whitespace().map(ToOwned::to_owned), 5, own)
    }

    #[test]
    fn what_is_not_said_is_as_usual() {
        let (asked, own) = parse("", Some("--proxy")).unwrap();
        assert_eq!((asked.rounds, own), (5, None));
        assert!(asked.wants("anything"));
        asked.keep(&Value::Null).unwrap();
    }

    #[test]
    fn what_is_said_counts() {
        let line = "--rounds 2 --only a --only bc --proxy p";
        let (asked, own) = parse(line, Some("--proxy")).unwrap();
        assert_eq!((asked.rounds, own.as_deref()), (2, Some("p")));
        for (name, wanted) in [("xay", true), ("abcd", true), ("b", false)] {
            assert_eq!(asked.wants(name), wanted, "{name}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (line, part) in [
            ("--rounds", "--rounds needs a value"),
            ("--rounds x", "--rounds is a number"),
            ("--proxy p", "unknown argument --proxy"),
            ("x", "unknown argument x"),
        ] {
            let error = format!("{:#}", parse(line, None).unwrap_err());
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
