//! Runs a program as root: by its absolute path, with an environment of our own, and without
//! letting it write to the guest's terminal.

use std::{
    io::{self, Write as _},
    process::{Command, Stdio},
};

/// What a program had to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// It did its work, and printed this.
    Done(String),
    /// It did not, and complained like this.
    Refused(String),
}

/// Runs `program` with `args`, gives it `input`, and hears it out.
pub(super) fn run(program: &str, args: &[&str], input: &str) -> io::Result<Said> {
    let mut child = Command::new(program)
        .args(args)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env(LOCK.0, LOCK.1)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // A program that ends early says why on its standard error; the broken pipe says nothing.
    let written = child
        .stdin
        .take()
        .map_or(Ok(()), |mut pipe| pipe.write_all(input.as_bytes()));
    let output = child.wait_with_output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() && written.is_ok() {
        return Ok(Said::Done(text(&output.stdout)));
    }
    Ok(Said::Refused(text(&output.stderr)))
}

/// The first line of a complaint that says anything.
pub(super) fn first_line(complaint: &str) -> &str {
    let mut lines = complaint.lines().map(str::trim);
    lines.find(|line| !line.is_empty()).unwrap_or("no message")
}

/// Programs of iptables wait for a lock, and fail where the file system takes none. Nobody else
/// changes the rules in here, and on a file that others can open, the guest could hold it for ever.
/// So each locks what only it has: its own standard input.
const LOCK: (&str, &str) = ("XTABLES_LOCKFILE", "/proc/self/fd/0");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_its_input_and_nothing_of_our_environment() {
        let said = run("/bin/sh", &["-c", "cat; env | sort"], "x\n").unwrap();
        let Said::Done(said) = said else {
            panic!("{said:?}")
        };
        assert!(said.starts_with("x\n"), "{said}");
        assert!(
            said.contains("PATH=/usr/sbin:/usr/bin:/sbin:/bin\n"),
            "{said}"
        );
        assert!(!said.contains("CARGO"), "{said}");
    }

    #[test]
    fn a_complaint_is_kept_from_the_terminal_and_told() {
        let said = run("/bin/sh", &["-c", "echo no >&2; exit 3"], "").unwrap();
        assert_eq!(said, Said::Refused("no\n".to_owned()));
    }

    #[test]
    fn input_that_nobody_reads_is_no_success() {
        let input = "x".repeat(1 << 20);
        let said = run("/bin/sh", &["-c", "exit 0"], &input).unwrap();
        assert!(matches!(said, Said::Refused(_)), "{said:?}");
    }

    #[test]
    fn a_complaint_is_its_first_line_that_says_anything() {
        assert_eq!(first_line("\n \n a \nb"), "a");
        assert_eq!(first_line(""), "no message");
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let error = run("/nowhere/nft", &[], "").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
