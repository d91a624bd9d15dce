//! `completions` and `man`: what a shell and a manual say of the command line, made from itself.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use crate::cli::{Cli, CompletionsArgs, ManArgs};

/// Why a manual was not made.
#[derive(Debug, thiserror::Error)]
pub enum ManualError {
    /// Nobody takes the output.
    #[error("write to standard output: {0}")]
    Output(#[from] io::Error),
    /// A file cannot be written.
    #[error("write the pages to {dir}: {source}")]
    Directory {
        /// Where they were to go.
        dir: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// Prints the completions of a shell.
///
/// # Errors
/// When nobody takes them.
pub fn completions(args: &CompletionsArgs) -> Result<(), ManualError> {
    print(&script(args.shell))
}

/// Prints the manual page, or writes those of all verbs into a directory.
///
/// # Errors
/// When nobody takes it, or a file cannot be written.
pub fn man(args: &ManArgs) -> Result<(), ManualError> {
    let Some(dir) = &args.dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page)?;
        return print(&page);
    };
    pages(dir).map_err(|source| ManualError::Directory {
        dir: dir.clone(),
        source,
    })
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    let mut command = Cli::command();
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

fn pages(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut command: Command = Cli::command().disable_help_subcommand(true);
    command.build();
    clap_mangen::generate_to(command, dir)
}

fn print(text: &[u8]) -> Result<(), ManualError> {
    let mut out = io::stdout().lock();
    match io::Write::write_all(&mut out, text).and_then(|()| io::Write::flush(&mut out)) {
        // A reader that has seen enough is not an error.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    fn verbs() -> Vec<String> {
        let command = Cli::command();
        let verbs = command.get_subcommands();
        verbs.map(|verb| verb.get_name().to_owned()).collect()
    }

    #[test]
    fn every_shell_completes_every_verb() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell)).unwrap();
            for verb in verbs() {
                assert!(script.contains(&verb), "{shell} does not know {verb}");
            }
        }
    }

    #[test]
    fn every_verb_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        let pages = dir.path().join("man1");
        man(&ManArgs {
            dir: Some(pages.clone()),
        })
        .unwrap();
        for verb in verbs() {
            let page = fs::read_to_string(pages.join(format!("host-collector-{verb}.1"))).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{verb}");
        }
        assert!(pages.join("host-collector.1").is_file());
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let error = man(&ManArgs {
            dir: Some("/dev/null/man1".into()),
        });
        assert!(error.unwrap_err().to_string().contains("/dev/null/man1"));
    }
}
