//! What the window shows: each page is a value, written as text by `Display` and as JSON by serde.

use std::fmt;

use policy::WINDOW;
use serde::Serialize;

use super::{denials::Denials, listing::Listing, why::Why};

/// A page.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Page<'p> {
    Index(Index),
    Policy(Listing<'p>),
    Denials(Denials),
    Why(Why),
    Problem(Problem),
}

/// The page that names the others.
#[derive(Debug, Serialize)]
pub(super) struct Index {
    window: &'static str,
    paths: [&'static str; 4],
    note: &'static str,
}

/// A request that has no page, and what would have one.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    #[serde(skip)]
    status: &'static str,
    error: &'static str,
    message: String,
    paths: [&'static str; 4],
}

impl Page<'_> {
    /// Code and phrase.
    pub(super) fn status_line(&self) -> &'static str {
        match self {
            Self::Index(_) | Self::Policy(_) | Self::Denials(_) | Self::Why(_) => "200 OK",
            Self::Problem(problem) => problem.status,
        }
    }

    /// Whether it says which methods there are.
    pub(super) fn is_about_the_method(&self) -> bool {
        matches!(self, Self::Problem(problem) if problem.status == METHOD)
    }
}

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => index.fmt(f),
            Self::Policy(listing) => listing.fmt(f),
            Self::Denials(denials) => denials.fmt(f),
            Self::Why(why) => why.fmt(f),
            Self::Problem(problem) => problem.fmt(f),
        }
    }
}

impl Index {
    pub(super) const fn new() -> Self {
        Self {
            window: WINDOW,
            paths: PATHS,
            note: NOTE,
        }
    }
}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "The window of this sandbox: {NOTE}.\n")?;
        for (path, what) in PATHS.iter().zip(WHAT) {
            writeln!(f, "http://{WINDOW}{path:<16}  {what}")?;
        }
        writeln!(
            f,
            "\nFor JSON send `Accept: application/json`, or add `?format=json`."
        )
    }
}

impl Problem {
    /// A path that has no page.
    pub(super) fn path() -> Self {
        Self::new("404 Not Found", "no_such_page", "there is no such page")
    }

    /// A method that would do something.
    pub(super) fn method() -> Self {
        let words = "the window is read-only, and knows GET and HEAD";
        Self::new(METHOD, "method_not_allowed", words)
    }

    /// A form that there is not.
    pub(super) fn format() -> Self {
        Self::bad("the forms are `format=text` and `format=json`")
    }

    /// No number of entries.
    pub(super) fn from() -> Self {
        Self::bad("`from=` takes the number of entries to leave out")
    }

    /// What names no host.
    pub(super) fn host(cause: &str) -> Self {
        Self::bad(&format!("ask for /why/HOST or /why/HOST:PORT: {cause}"))
    }

    fn bad(message: &str) -> Self {
        Self::new("400 Bad Request", "bad_request", message)
    }

    fn new(status: &'static str, error: &'static str, message: &str) -> Self {
        Self {
            status,
            error,
            message: message.to_owned(),
            paths: PATHS,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\nThe pages are:", self.message)?;
        for path in PATHS {
            writeln!(f, "http://{WINDOW}{path}")?;
        }
        Ok(())
    }
}

/// On every page, so that nobody takes one for what it is not.
pub(super) const NOTE: &str = "what the proxy lets out and what it refused, to read and not to \
    change; not the record, which is kept outside";
const METHOD: &str = "405 Method Not Allowed";
const PATHS: [&str; 4] = ["/policy", "/denials", "/why/HOST", "/why/HOST:PORT"];
const WHAT: [&str; 4] = [
    "the entries that decide",
    "what was refused lately, and what would change it",
    "what is decided on a host, on ports 443 and 80",
    "the same on one port",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_leads_to_every_page() {
        let text = Index::new().to_string();
        for path in ["/policy", "/denials", "/why/HOST", "/why/HOST:PORT"] {
            assert!(
                text.contains(&format!("http://egress.sandbox{path} ")),
                "{text}"
            );
        }
        let json = serde_json::to_value(Page::Index(Index::new())).unwrap();
        assert_eq!(json["window"], "egress.sandbox");
        assert_eq!(json["paths"].as_array().unwrap().len(), 4);
    }

    #[test]
    fn a_problem_is_no_success_and_says_what_there_is() {
        for (problem, status) in [
            (Problem::path(), "404 Not Found"),
            (Problem::method(), "405 Method Not Allowed"),
            (Problem::format(), "400 Bad Request"),
            (Problem::host("a cause"), "400 Bad Request"),
        ] {
            let page = Page::Problem(problem);
            assert_eq!(page.status_line(), status);
            assert_eq!(page.is_about_the_method(), status.starts_with("405"));
            let text = page.to_string();
            assert!(text.contains("/why/HOST:PORT\n"), "{text}");
            let json = serde_json::to_value(&page).unwrap();
            assert!(json["message"].is_string() && json["status"].is_null());
        }
    }
}
