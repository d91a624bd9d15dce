//! What is wrong with a log, and where.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::log::generations;

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// What kind of thing.
    pub kind: Kind,
    /// What exactly, in words.
    pub why: String,
}

/// A line of a file of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Place {
    /// 0 for the file that is written to, up to 5 for the oldest.
    #[serde(rename = "file", serialize_with = "file_name")]
    pub generation: usize,
    /// From 1; 0 for the file as a whole.
    pub line: u64,
}

/// What can be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The file cannot be read, or not to its end.
    Unreadable,
    /// The last line is not finished. The next append closes it.
    Torn,
    /// The beginning of a line.
    Half,
    /// No JSON.
    Corrupt,
    /// JSON that is no run.
    Foreign,
    /// Longer than any line of ours.
    Gigantic,
    /// It does not follow the line before it.
    Chain,
    /// It follows another line than the one before it.
    Order,
    /// What came before the first line is neither here nor counted as dropped.
    Beginning,
    /// The last line is not the last that was written.
    Truncated,
    /// The count of dropped runs goes backwards.
    Count,
    /// A checkpoint does not hold.
    Checkpoint,
}

/// The first findings, and how many there are in all.
#[derive(Debug, Default)]
pub struct Findings {
    shown: Vec<Finding>,
    count: u64,
}

impl Findings {
    /// As many as anybody reads: a file of somebody else's is a finding a line.
    #[must_use]
    pub fn shown(&self) -> &[Finding] {
        &self.shown
    }

    /// All of them.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn add(&mut self, place: Place, kind: Kind, why: String) {
        self.count += 1;
        if self.shown.len() < SHOWN {
            self.shown.push(Finding { place, kind, why });
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&generations::name(self.generation))?;
        match self.line {
            0 => Ok(()),
            line => write!(f, " line {line}"),
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks for a reference"
)]
fn file_name<S: Serializer>(generation: &usize, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&generations::name(*generation))
}

const SHOWN: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_reads_as_a_file_and_a_line() {
        let place = |generation, line| Place { generation, line }.to_string();
        assert_eq!(place(0, 0), "sessions.jsonl");
        assert_eq!(place(3, 17), "sessions.jsonl.3 line 17");
    }

    #[test]
    fn only_the_first_are_kept_and_all_are_counted() {
        let mut findings = Findings::default();
        for line in 0..1000 {
            let place = Place {
                generation: 0,
                line,
            };
            findings.add(place, Kind::Foreign, String::new());
        }
        assert_eq!((findings.shown().len(), findings.count()), (SHOWN, 1000));
    }

    #[test]
    fn a_finding_in_json_is_flat() {
        let finding = Finding {
            place: Place {
                generation: 1,
                line: 2,
            },
            kind: Kind::Half,
            why: "x".into(),
        };
        let json = r#"{"file":"sessions.jsonl.1","line":2,"kind":"half","why":"x"}"#;
        assert_eq!(serde_json::to_string(&finding).unwrap(), json);
    }
}
