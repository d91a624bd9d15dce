//! What was measured: medians of rounds, and how contestants stand to each other.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

use serde_json::{Value, json};

/// Something that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Measure {
    /// What it is called in `results.json`, its unit included.
    pub name: &'static str,
    /// Digits behind the point in tables.
    pub digits: usize,
}

/// Samples by contestant and measure.
#[derive(Debug, Default)]
pub struct Results {
    /// In the order in which they came.
    contestants: Vec<String>,
    measures: Vec<Measure>,
    samples: BTreeMap<(String, Measure), Vec<f64>>,
}

impl Results {
    /// Adds a sample.
    pub fn add(&mut self, contestant: &str, measure: Measure, sample: f64) {
        if !self.contestants.iter().any(|known| known == contestant) {
            self.contestants.push(contestant.to_owned());
        }
        if !self.measures.contains(&measure) {
            self.measures.push(measure);
        }
        let samples = self.samples.entry((contestant.to_owned(), measure));
        samples.or_default().push(sample);
    }

    /// The median of what was measured, if it was.
    #[must_use]
    pub fn median(&self, contestant: &str, measure: Measure) -> Option<f64> {
        let samples = self.samples.get(&(contestant.to_owned(), measure))?;
        median(samples)
    }

    /// Everything, with the samples of each round.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let of = |contestant: &String| {
            let measured = self.measures.iter().filter_map(|measure| {
                let samples = self.samples.get(&(contestant.clone(), *measure))?;
                let value = json!({ "median": median(samples), "samples": samples });
                Some((measure.name.to_owned(), value))
            });
            Value::Object(measured.collect())
        };
        let all = self.contestants.iter();
        Value::Object(all.map(|name| (name.clone(), of(name))).collect())
    }

    /// A table of medians, and behind each what it is of the same of `reference`.
    #[must_use]
    pub fn table(&self, reference: &str) -> String {
        let mut table = String::from("| |");
        for measure in &self.measures {
            // Writing to a String cannot fail.
            let _ = write!(table, " {} |", measure.name);
        }
        table.push_str("\n|---|");
        table.push_str(&"---|".repeat(self.measures.len()));
        for contestant in &self.contestants {
            let _ = write!(table, "\n| {contestant} |");
            for measure in &self.measures {
                let cell = self.cell(contestant, *measure, reference);
                let _ = write!(table, " {} |", cell.unwrap_or_else(|| "–".to_owned()));
            }
        }
        table.push('\n');
        table
    }

    fn cell(&self, contestant: &str, measure: Measure, reference: &str) -> Option<String> {
        let value = self.median(contestant, measure)?;
        let mut cell = format!("{value:.*}", measure.digits);
        let other = self.median(reference, measure).filter(|other| *other > 0.0);
        if let Some(other) = other.filter(|_| contestant != reference) {
            // Writing to a String cannot fail.
            let _ = write!(cell, " ({:.2})", value / other);
        }
        Some(cell)
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.name)
    }
}

/// The middle one, or the mean of the two in the middle.
#[must_use]
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let (low, high) = (
        sorted.get(sorted.len().checked_sub(1)? / 2)?,
        sorted.get(sorted.len() / 2)?,
    );
    Some(f64::midpoint(*low, *high))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEED: Measure = Measure {
        name: "speed",
        digits: 1,
    };

    #[test]
    fn a_median_is_the_middle_whatever_the_order() {
        for (samples, middle) in [
            (&[][..], None),
            (&[3.0], Some(3.0)),
            (&[9.0, 1.0, 2.0], Some(2.0)),
            (&[4.0, 1.0, 2.0, 9.0], Some(3.0)),
        ] {
            assert_eq!(median(samples), middle, "{samples:?}");
        }
    }

    #[test]
    fn a_table_shows_what_each_is_of_the_reference() {
        let mut results = Results::default();
        for (who, sample) in [("a", 10.0), ("b", 4.0), ("b", 6.0), ("b", 5.0)] {
            results.add(who, SPEED, sample);
        }
        let table = results.table("a");
        assert!(
            table.contains("| a | 10.0 |") && table.contains("| b | 5.0 (0.50) |"),
            "{table}"
        );
        assert_eq!(
            results.to_json()["b"]["speed"]["samples"],
            json!([4.0, 6.0, 5.0])
        );
    }

    #[test]
    fn what_was_not_measured_is_left_open() {
        let mut results = Results::default();
        results.add("a", SPEED, 1.0);
        results.add(
            "b",
            Measure {
                name: "other",
                digits: 0,
            },
            2.0,
        );
        assert!(results.table("a").contains("| b | – | 2 |"));
        assert_eq!(results.median("b", SPEED), None);
    }
}
