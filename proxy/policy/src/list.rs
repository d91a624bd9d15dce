//! Splits a list into its entries.

/// The entries of a list: separated by commas and line ends of either kind, without blanks around
/// them and without comments, which run from `#` to the end of the line. Blank ones are left out;
/// they come from configuration layers that were merged.
pub(crate) fn entries(list: &str) -> impl Iterator<Item = &str> {
    list.strip_prefix(BYTE_ORDER_MARK)
        .unwrap_or(list)
        .lines()
        .map(|line| line.split_once('#').map_or(line, |(before, _)| before))
        .flat_map(|line| line.split(','))
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
}

/// Some editors start a file with it.
const BYTE_ORDER_MARK: char = '\u{feff}';

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_line_ends_blanks_and_comments_separate_entries() {
        for (list, expected) in [
            ("a,b", vec!["a", "b"]),
            ("a\nb\r\nc", vec!["a", "b", "c"]),
            ("  a ,\t, b,, ", vec!["a", "b"]),
            ("# all\na # one, two\n#b", vec!["a"]),
            ("\u{feff}a", vec!["a"]),
            ("", vec![]),
            (" \r\n#\n,", vec![]),
        ] {
            assert_eq!(entries(list).collect::<Vec<_>>(), expected, "{list:?}");
        }
    }

    #[test]
    fn a_carriage_return_within_a_line_hides_nothing() {
        assert_eq!(entries("#a\rb").count(), 0);
        assert_eq!(entries("a\rb").collect::<Vec<_>>(), ["a\rb"]);
    }
}
