//! `explain`: what an allowlist says of one destination, decided by the code that enforces it.

use std::{
    fmt,
    io::{self, Write as _},
};

use policy::{Decision, Denial, DenyReason, Destination, Permit, Policy};
use report::Printable;
use serde::Serialize;
use tokio::runtime::Builder;

use crate::{
    allow::{AllowError, allowlist},
    cli::ExplainArgs,
    environment::Environment,
    run::say,
};

/// Why nothing can be explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// The list is none.
    #[error(transparent)]
    Allow(#[from] AllowError),
    /// Nobody takes the output.
    #[error("write to standard output: {0}")]
    Output(io::Error),
    /// The system refused something to this process.
    #[error("cannot read the list: {0}")]
    Runtime(io::Error),
}

/// Prints the decision, and on standard error what is odd about the list.
///
/// # Errors
/// When there is no list. A destination is always decided, one that is malformed as well.
pub fn explain(args: &ExplainArgs, environment: &Environment) -> Result<(), ExplainError> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ExplainError::Runtime)?;
    let policy = runtime.block_on(allowlist(&args.allow, environment))?;
    for warning in policy.warnings() {
        say(&format!("warning: {warning}"));
    }
    let answer = Answer::of(&policy, &args.destination);
    let mut text = if args.json {
        serde_json::to_string(&answer).unwrap_or_default()
    } else {
        answer.to_string()
    };
    text.push('\n');
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A reader that has seen enough is not an error.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(ExplainError::Output(error)),
        _ => Ok(()),
    }
}

/// A decision. As JSON it is for programs, with `Display` for people.
#[derive(Debug, Serialize)]
struct Answer {
    verdict: Verdict,
    reason: Option<DenyReason>,
    /// The entry that decided, or the nearest to one that would have allowed.
    rule: Option<String>,
    hint: Option<String>,
    #[serde(skip)]
    destination: Printable,
    /// What the client has to keep to, where it is allowed.
    #[serde(skip)]
    terms: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Allow,
    Deny,
}

impl Answer {
    fn of(policy: &Policy, destination: &str) -> Self {
        match read(destination) {
            Ok(to) => match policy.decide(&to) {
                Decision::Allow(permit) => Self::allowed(&permit),
                Decision::Deny(denial) => Self::denied(&to.to_string(), denial),
            },
            Err(denial) => Self::denied(destination, denial),
        }
    }

    fn allowed(permit: &Permit) -> Self {
        let to = permit.destination();
        Self {
            verdict: Verdict::Allow,
            reason: None,
            rule: Some(permit.rule().to_owned()),
            hint: None,
            destination: Printable::new(&to.to_string()),
            terms: permit.terms(),
        }
    }

    fn denied(destination: &str, denial: Denial) -> Self {
        Self {
            verdict: Verdict::Deny,
            reason: Some(denial.reason),
            rule: denial.nearest,
            hint: denial.hint,
            destination: Printable::new(destination),
            terms: "",
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = self.rule.as_deref().unwrap_or_default();
        match self.reason {
            None => write!(
                f,
                "allowed: {} by `{rule}`\n{}",
                self.destination, self.terms
            )?,
            Some(reason) => write!(f, "refused: {} is {reason}", self.destination)?,
        }
        match &self.hint {
            Some(hint) => write!(f, "\n{hint}"),
            None => Ok(()),
        }
    }
}

/// Reads a destination as clients write it. What follows the last colon is a port, unless it belongs
/// to an IPv6 address; what is no port then is left to be refused with the host.
fn read(text: &str) -> Result<Destination, Denial> {
    let port_of = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u16>().ok().filter(|_| is_number)
    };
    let (host, port) = text
        .rsplit_once(':')
        .filter(|(host, _)| !host.contains(':') || host.ends_with(']'))
        .and_then(|(host, port)| Some((host, port_of(port)?)))
        .unwrap_or((text, HTTPS));
    Ok(Destination::parse(host, port)?)
}

const HTTPS: u16 = 443;

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(list: &str, destination: &str) -> Answer {
        Answer::of(&Policy::parse(list).unwrap(), destination)
    }

    #[test]
    fn a_destination_is_read_as_clients_write_it() {
        for (text, read_as) in [
            ("github.com", "github.com:443"),
            ("GitHub.com.:22", "github.com:22"),
            ("github.com:0", "github.com:0"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("::1", "[::1]:443"),
            ("[::1]", "[::1]:443"),
            ("[2001:db8::1]:22", "[2001:db8::1]:22"),
            ("2001:db8::1:22", "[2001:db8::1:22]:443"),
        ] {
            assert_eq!(read(text).unwrap().to_string(), read_as, "{text}");
        }
    }

    #[test]
    fn what_is_no_destination_is_malformed_and_explained() {
        for text in [
            "",
            ":443",
            "github.com:",
            "github.com:https",
            "github.com:65536",
            "github.com:+443",
            "https://github.com/",
            "user@github.com",
            "0x7f.1",
            "a b",
            "[::1",
            "[fe80::1%eth0]:443",
            "a\u{1b}[2J",
        ] {
            let answer = answer("github.com", text);
            assert_eq!(answer.reason, Some(DenyReason::Malformed), "{text:?}");
            let shown = answer.to_string();
            assert!(!shown.contains('\u{1b}'), "{shown:?}");
        }
    }

    #[test]
    fn an_answer_for_programs_has_four_fields() {
        for (list, destination, expected) in [
            (
                "github.com",
                "github.com",
                r#"{"verdict":"allow","reason":null,"rule":"github.com","hint":null}"#,
            ),
            (
                "github.com",
                "github.com:22",
                r#"{"verdict":"deny","reason":"port_not_allowed","rule":"github.com","hint":"`github.com` is allowed on 80 and 443; add `github.com:22`"}"#,
            ),
            (
                "github.com",
                "other.example",
                r#"{"verdict":"deny","reason":"not_allowed","rule":null,"hint":null}"#,
            ),
        ] {
            let json = serde_json::to_string(&answer(list, destination)).unwrap();
            assert_eq!(json, expected);
        }
    }

    #[test]
    fn an_answer_for_people_is_one_or_two_lines() {
        for (list, destination, first, second) in [
            (
                "*.a.example",
                "b.a.example",
                "allowed: b.a.example:443 by `*.a.example`",
                Some("for TLS to this name"),
            ),
            (
                "a.example",
                "a.example:80",
                "allowed: a.example:80 by `a.example`",
                Some("for HTTP to this name"),
            ),
            (
                "a.example:22",
                "a.example:22",
                "allowed: a.example:22 by `a.example:22`",
                Some("whatever is sent"),
            ),
            (
                "192.0.2.0/24",
                "192.0.2.1",
                "allowed: 192.0.2.1:443 by `192.0.2.0/24`",
                Some("no name is checked"),
            ),
            (
                "*.a.example",
                "a.example",
                "refused: a.example:443 is not_allowed",
                Some("`*.a.example` does not cover `a.example`; add `a.example`"),
            ),
            (
                "a.example",
                "evil.test",
                "refused: evil.test:443 is not_allowed",
                None,
            ),
        ] {
            let text = answer(list, destination).to_string();
            let mut lines = text.lines();
            assert_eq!(lines.next(), Some(first));
            let rest = lines.next();
            assert_eq!(rest.is_some(), second.is_some(), "{text}");
            assert!(
                rest.unwrap_or_default()
                    .starts_with(second.unwrap_or_default()),
                "{text}"
            );
            assert_eq!(lines.next(), None, "{text}");
        }
    }
}
