//! Words as a shell reads them back.

use report::Printable;

/// A word that was made harmless, quoted where a shell would need it.
pub(super) fn quoted(word: &str) -> String {
    let word = Printable::new(word).to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_shell_would_take_apart_is_quoted() {
        for (word, expected) in [
            ("a.example:22", "a.example:22"),
            ("*.a.example", "'*.a.example'"),
            ("", "''"),
            ("a'b", "'a'\\''b'"),
            ("a\nb", "'a\\u{a}b'"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }
}
