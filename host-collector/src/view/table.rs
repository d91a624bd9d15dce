//! A table that fits the terminal: every column as wide as it must be, the last cut at the edge.

use super::terminal::{Terminal, Tone};

/// One cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub(super) fn plain(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            tone: Tone::Plain,
        }
    }

    pub(super) fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self {
            text: text.into(),
            tone,
        }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }

    /// The text, no wider than `width`; what was cut is marked.
    fn cut(&self, width: usize) -> String {
        if self.width() <= width {
            return self.text.clone();
        }
        if width == 0 {
            return String::new();
        }
        self.text
            .chars()
            .take(width.saturating_sub(1))
            .chain(['…'])
            .collect()
    }
}

/// Lays rows of equal length out below their headings.
pub(super) fn layout<const N: usize>(
    headings: [&str; N],
    rows: &[[Cell; N]],
    terminal: Terminal,
) -> String {
    let headings = headings.map(Cell::plain);
    let mut widths = headings.each_ref().map(Cell::width);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.width().max(*width).min(WIDEST);
        }
    }
    let mut text = String::new();
    for row in std::iter::once(&headings).chain(rows) {
        push_row(&mut text, row, &widths, terminal);
    }
    text
}

fn push_row(text: &mut String, row: &[Cell], widths: &[usize], terminal: Terminal) {
    let mut left = terminal.width.unwrap_or(usize::MAX);
    let last = row.len().saturating_sub(1);
    for (column, (cell, &width)) in row.iter().zip(widths).enumerate() {
        let shown = cell.cut(if column == last {
            left
        } else {
            width.min(left)
        });
        let taken = shown.chars().count();
        left = left.saturating_sub(taken);
        text.push_str(&terminal.paint(&shown, cell.tone));
        if column < last {
            let blank = (width.saturating_sub(taken) + GAP).min(left);
            left = left.saturating_sub(blank);
            text.extend(std::iter::repeat_n(' ', blank));
        }
    }
    text.truncate(text.trim_end_matches(' ').len());
    text.push('\n');
}

const GAP: usize = 2;
const WIDEST: usize = 40;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows(cells: &[[&str; 3]]) -> Vec<[Cell; 3]> {
        cells.iter().map(|row| row.map(Cell::plain)).collect()
    }

    #[test]
    fn columns_line_up_and_nothing_trails() {
        let text = layout(
            ["A", "B", "C"],
            &rows(&[["1", "long", "x"], ["22", "", "a b c"]]),
            Terminal::default(),
        );
        assert_eq!(text, "A   B     C\n1   long  x\n22        a b c\n");
    }

    #[test]
    fn only_the_last_column_is_cut_where_the_others_fit() {
        let terminal = Terminal {
            width: Some(14),
            color: false,
        };
        let text = layout(
            ["A", "B", "C"],
            &rows(&[["1", "long", "abcdefghij"]]),
            terminal,
        );
        assert_eq!(text, "A  B     C\n1  long  abcd…\n");
    }

    #[test]
    fn colours_take_no_room() {
        let row = [
            Cell::toned("x", Tone::Bad),
            Cell::plain("y"),
            Cell::plain("z"),
        ];
        let text = layout(
            ["AA", "B", "C"],
            &[row],
            Terminal {
                width: None,
                color: true,
            },
        );
        assert_eq!(text, "AA  B  C\n\u{1b}[31mx\u{1b}[0m   y  z\n");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_terminal(cells in proptest::collection::vec(["[a-zü]{0,60}", "[a-z]{0,9}", "[a-z ]{0,90}"], 0..6), width in 1usize..120) {
            let rows: Vec<[Cell; 3]> = cells.into_iter().map(|row| row.map(Cell::plain)).collect();
            let text = layout(["A", "B", "C"], &rows, Terminal { width: Some(width), color: false });
            for line in text.lines() {
                prop_assert!(line.chars().count() <= width, "{:?} in {}", line, width);
            }
        }
    }
}
