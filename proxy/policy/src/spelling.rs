//! How an entry is shown in an error: on one line, short, and without a password.

use std::fmt::Write as _;

/// The entry as an error may print it: cut to [`SHOWN`] characters, with everything escaped that
/// could break the line or fool the eye.
pub(crate) fn shown(entry: &str) -> String {
    let entry = conceal(entry);
    let mut chars = entry.chars();
    let mut out = String::new();
    for c in chars.by_ref().take(SHOWN) {
        // A backslash of one's own would do no harm, but could not be told from an escape.
        let harmless = !c.is_ascii_control() && (c.is_ascii() || c.is_alphanumeric());
        if harmless && c != '\\' {
            out.push(c);
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "{}", c.escape_default());
        }
    }
    if chars.next().is_some() {
        out.push('…');
    }
    out
}

/// Replaces the password of `user:password@host`: errors end up in logs that outlive the mistake.
fn conceal(entry: &str) -> String {
    let start = entry.find("://").map_or(0, |scheme| scheme + 3);
    let (scheme, rest) = entry.split_at_checked(start).unwrap_or(("", entry));
    match rest.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((name, _)) => format!("{scheme}{name}:***@{host}"),
            None => entry.to_owned(),
        },
        None => entry.to_owned(),
    }
}

/// How much of an entry an error shows, in characters: enough to find it by.
const SHOWN: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_entry_is_shown_as_it_is() {
        for entry in [
            "*.example.com:443/tls",
            "bücher.example",
            "[2001:db8::]/32",
            "git@10.0.0.0/8",
        ] {
            assert_eq!(shown(entry), entry);
        }
    }

    #[test]
    fn what_acts_on_a_terminal_is_escaped() {
        for (entry, expected) in [
            ("a\nb", "a\\nb"),
            ("a\0b", "a\\u{0}b"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("a\u{202e}b", "a\\u{202e}b"),
            ("a\u{200b}b", "a\\u{200b}b"),
            ("a\u{2028}b", "a\\u{2028}b"),
            ("a\\b", "a\\\\b"),
        ] {
            assert_eq!(shown(entry), expected);
        }
    }

    #[test]
    fn a_long_entry_is_cut_and_says_so() {
        let long = shown(&"a".repeat(10_000));
        assert_eq!(long.chars().count(), SHOWN + 1);
        assert!(long.ends_with('…'));
    }

    #[test]
    fn a_password_is_not_shown() {
        for (entry, expected) in [
            ("user:pw@github.com", "user:***@github.com"),
            (
                "https://user:p@ss@github.com/x",
                "https://user:***@github.com/x",
            ),
            ("git@github.com", "git@github.com"),
        ] {
            assert_eq!(shown(entry), expected);
        }
    }

    #[test]
    fn a_cut_falls_between_characters() {
        let long = shown(&"ü".repeat(500));
        assert_eq!(long, format!("{}…", "ü".repeat(SHOWN)));
    }
}
