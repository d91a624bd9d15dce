//! Measures what a run costs beside its proxy: PID 1, the report channel, the firewall, a collector
//! of many runs.
//!
//! The programs are the real ones, each guest in a namespace of its own. It reports; it asserts
//! nothing about speed. What must not be lost is counted on both sides, and shown next to how fast
//! it went.

pub mod flood;
pub mod guest;
pub mod observe;
pub mod runs;
pub mod setup;
pub mod stage;

use std::fmt::Write as _;

use serde_json::{Value, json};

/// One thing that was measured.
#[derive(Debug, Clone)]
pub struct Figure {
    /// What it is, its unit included.
    pub name: String,
    /// The median where it was measured more than once.
    pub value: f64,
    /// What the design asks for; empty where that is another figure's.
    pub target: &'static str,
}

/// Everything that was measured, in order.
#[derive(Debug, Default)]
pub struct Figures(Vec<Figure>);

impl Figures {
    /// Adds one.
    pub fn add(&mut self, name: impl Into<String>, value: f64, target: &'static str) {
        self.0.push(Figure {
            name: name.into(),
            value,
            target,
        });
    }

    /// Adds what is a number of things.
    pub fn count(&mut self, name: impl Into<String>, value: u64, target: &'static str) {
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
        self.add(name, value as f64, target);
    }

    /// A table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = String::from("| figure | measured | target |\n|---|---|---|\n");
        for Figure {
            name,
            value,
            target,
        } in &self.0
        {
            // Writing to a String cannot fail.
            let _ = writeln!(table, "| {name} | {} | {target} |", spelt(*value));
        }
        table
    }

    /// The same for programs.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let figures = self.0.iter().map(|figure| {
            let value = json!({ "measured": figure.value, "target": figure.target });
            (figure.name.clone(), value)
        });
        Value::Object(figures.collect())
    }
}

/// Four digits that count, as many behind the point as that leaves.
fn spelt(value: f64) -> String {
    let digits = match value.abs() {
        0.0 | 1000.0.. => 0,
        100.0.. => 1,
        10.0.. => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// The sample below which this share of all lies.
#[must_use]
pub fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in a short list"
    )]
    let place = (sorted.len() as f64 * share) as usize;
    let last = sorted.len().saturating_sub(1);
    sorted.get(place.min(last)).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_a_sample_whatever_the_order() {
        let samples: Vec<f64> = (0..100).rev().map(f64::from).collect();
        for (share, sample) in [(0.0, 0.0), (0.5, 50.0), (0.99, 99.0), (1.0, 99.0)] {
            assert_eq!(
                quantile(&samples, share).to_bits(),
                f64::to_bits(sample),
                "{share}"
            );
        }
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn as_many_digits_are_shown_as_count() {
        for (value, text) in [
            (0.0, "0"),
            (0.0123, "0.012"),
            (12.345, "12.35"),
            (123.45, "123.5"),
            (100_000.0, "100000"),
        ] {
            assert_eq!(spelt(value), text);
        }
    }

    #[test]
    fn the_table_and_the_file_have_every_figure_with_its_target() {
        let mut figures = Figures::default();
        figures.add("set-up ms", 1.5, "≤ 50");
        figures.count("lost", 0, "0");
        assert_eq!(
            figures.table().lines().last(),
            Some("| lost | 0 | 0 |"),
            "{}",
            figures.table()
        );
        assert_eq!(figures.to_json()["set-up ms"]["measured"], json!(1.5));
    }
}
