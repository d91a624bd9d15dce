//! What a session line must say.

mod gaps;

use std::collections::BTreeMap;

use anyhow::ensure;
use serde::Deserialize;
use serde_json::Value;

use crate::internet::Subnet;

/// The facts of a session line that a case fixes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// `egress_channel.state`.
    #[serde(default = "complete")]
    state: String,
    /// `egress_enforcement`; the empty string where nobody may have reported any.
    #[serde(default = "name")]
    enforcement: String,
    /// Every refused attempt, none left out: `host:port/proto reason count`. A count may be `*`
    /// where how often a client tries is its own affair: any but zero. Or `48+`: that many or more.
    #[serde(default)]
    denied: Vec<String>,
    /// How many there were by reason, all of them. With it `denied` need not be everything: a line
    /// shows a sample where there was more than it holds.
    by_reason: Option<BTreeMap<String, u64>>,
    /// Whether what is refused, and so all of the above, depends on the kernel at hand.
    #[serde(default)]
    denied_varies: bool,
    /// Every gap in the account, where that is asked: `outage 50 killed by SIGKILL`, see `gaps`.
    gaps: Option<Vec<String>>,
    /// What was done without, each by a part of its sentence, where that is asked.
    #[serde(default)]
    degradations: Vec<String>,
    /// How many refusals there were at least, where nobody knows how many there were.
    at_least: Option<u64>,
    /// How many refused hosts there were, and whether that is an estimate: `1025 exactly`, or
    /// `100000 about`.
    distinct: Option<String>,
    /// How many processes outlived the guest's first one, where that is asked.
    outlived: Option<u64>,
    /// Every destination that was let through: `host:port connections failures`.
    #[serde(default)]
    allowed: Vec<String>,
    /// `end_reason`.
    #[serde(default = "exited")]
    end_reason: String,
    /// `signal`, where one ended the guest.
    signal: Option<i64>,
}

impl Expected {
    /// A complete line of a guest that ended by itself, with these refused and let through.
    #[must_use]
    pub fn complete(denied: Vec<String>, allowed: Vec<String>) -> Self {
        Self {
            state: complete(),
            enforcement: name(),
            denied,
            by_reason: None,
            denied_varies: false,
            gaps: None,
            degradations: Vec::new(),
            at_least: None,
            distinct: None,
            outlived: None,
            allowed,
            end_reason: exited(),
            signal: None,
        }
    }

    /// What `line` says otherwise.
    #[must_use]
    pub fn differences(&self, subnet: Subnet, line: &Value) -> Vec<String> {
        let mut wrong = Vec::new();
        for (pointer, wanted) in [
            ("/egress_channel/state", &self.state),
            ("/egress_enforcement", &self.enforcement),
            ("/end_reason", &self.end_reason),
        ] {
            let found = line
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default();
            if found != wanted {
                wrong.push(format!("{pointer} is {found:?}, not {wanted:?}"));
            }
        }
        let signal = line.get("signal").and_then(Value::as_i64);
        if signal != self.signal {
            wrong.push(format!("signal is {signal:?}, not {:?}", self.signal));
        }
        for (field, mut found, wanted) in [
            ("egress_denied_hosts", denied(line), &self.denied),
            ("egress_hosts", allowed(line), &self.allowed),
        ] {
            let mut wanted: Vec<_> = wanted.iter().map(|entry| subnet.fill(entry)).collect();
            wanted.sort_unstable();
            if self.is_partial() && field == "egress_denied_hosts" {
                found.retain(|entry| wanted.iter().any(|wanted| is_as_wanted(entry, wanted)));
            }
            if !are_as_wanted(&found, &wanted) {
                wrong.push(format!("{field} is {found:#?}, not {wanted:#?}"));
            }
        }
        let told: Vec<_> = members(line, "egress_degradations").collect();
        let has = |part: &String| {
            told.iter().any(|told| {
                told.as_str()
                    .is_some_and(|told| told.contains(&subnet.fill(part)))
            })
        };
        let missing = self.degradations.iter().filter(|part| !has(part));
        wrong.extend(missing.map(|part| format!("{part:?} is in none of {told:?}")));
        wrong.extend(gaps::difference(line, self.gaps.as_deref()));
        wrong.extend(self.sums(line));
        wrong.extend(self.boundaries(line));
        wrong.extend(self.contradictions(line));
        wrong
    }

    /// Whether there may be hosts that the case does not name.
    fn is_partial(&self) -> bool {
        self.by_reason.is_some() || self.denied_varies
    }

    /// What is wrong about sums that a case fixes.
    fn sums(&self, line: &Value) -> Vec<String> {
        let mut wrong = Vec::new();
        let by_reason = by_reason(line);
        if self
            .by_reason
            .as_ref()
            .is_some_and(|sums| *sums != by_reason)
        {
            wrong.push(format!("by reason {by_reason:?}, not {:?}", self.by_reason));
        }
        let processes = line.get("processes").unwrap_or(&Value::Null);
        let outlived = number(processes, "outlived_root");
        if self.outlived.is_some_and(|count| count != outlived) {
            wrong.push(format!("outlived by {outlived}, not {:?}", self.outlived));
        }
        let distinct = number(line, "egress_denied_hosts_distinct");
        let estimated = line.get("egress_denied_hosts_distinct_estimated").is_some();
        if self
            .distinct
            .as_ref()
            .is_some_and(|wanted| !is_so_many(distinct, estimated, wanted))
        {
            let about = if estimated { "about" } else { "exactly" };
            wrong.push(format!("{distinct} {about}, not {:?}", self.distinct));
        }
        wrong
    }

    /// Whether a number is called a lower bound where it is one, and nowhere else.
    fn boundaries(&self, line: &Value) -> Vec<String> {
        let (is_final, is_bound) = match self.state.as_str() {
            "complete" | "gap" => (true, false),
            "interrupted" => (false, true),
            // Nobody counted.
            _ => (false, false),
        };
        // What is let through by address passes nobody who counts.
        let is_counted = self.enforcement != "address";
        let fields = [("egress_denied", true), ("egress_allowed", is_counted)];
        let pairs = fields.into_iter().flat_map(|(field, is_counted)| {
            [
                (field.to_owned(), is_counted && is_final),
                (format!("{field}_at_least"), is_counted && is_bound),
            ]
        });
        let mut wrong: Vec<_> = pairs
            .filter(|(field, due)| line.get(field).is_some() != *due)
            .map(|(field, due)| {
                format!("{field} {}", if due { "is missing" } else { "is not due" })
            })
            .collect();
        if let Some(wanted) = self.at_least {
            let found = line.get("egress_denied_at_least").and_then(Value::as_u64);
            if found != Some(wanted) {
                wrong.push(format!("denied at least {found:?}, not {wanted}"));
            }
        }
        wrong
    }

    /// The line's own sums must agree, whatever a case expects.
    fn contradictions(&self, line: &Value) -> Option<String> {
        if self.state != "complete" || self.enforcement.is_empty() {
            return None;
        }
        let total = line.get("egress_denied").and_then(Value::as_u64);
        let by_reason: u64 = by_reason(line).values().sum();
        let by_host: u64 = members(line, "egress_denied_hosts")
            .map(|host| number(host, "count"))
            .sum();
        // The hosts of a sample are fewer.
        let all_shown = !self.is_partial();
        (total != Some(by_reason) || all_shown && by_reason != by_host)
            .then(|| format!("denied in all {total:?}, by reason {by_reason}, by host {by_host}"))
    }
}

fn are_as_wanted(found: &[String], wanted: &[String]) -> bool {
    found.len() == wanted.len()
        && found
            .iter()
            .zip(wanted)
            .all(|(found, wanted)| is_as_wanted(found, wanted))
}

fn is_as_wanted(found: &str, wanted: &str) -> bool {
    let mut pairs = found.split(' ').zip(wanted.split(' '));
    pairs.all(|(found, wanted)| {
        found == wanted || (wanted == "*" && found != "0") || is_at_least(found, wanted)
    })
}

fn is_at_least(found: &str, wanted: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().ok();
    let least = wanted.strip_suffix('+').and_then(number);
    least.is_some_and(|least| number(found).is_some_and(|found| found >= least))
}

/// Compares what a session line says in these places, one word each and `-` where it says nothing.
pub fn says(line: &Value, places: &[&str], wanted: &str) -> anyhow::Result<()> {
    let word = |place: &&str| match line.pointer(place) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => "-".to_owned(),
    };
    let words: Vec<_> = places.iter().map(word).collect();
    let found = words.join(" ");
    ensure!(
        found == wanted,
        "the line says {found}, not {wanted}: {line}"
    );
    Ok(())
}

/// Whether a number of hosts, or an estimate of it, is that of a case.
fn is_so_many(count: u64, estimated: bool, wanted: &str) -> bool {
    let (number, kind) = wanted.split_once(' ').unwrap_or((wanted, ""));
    let Ok(number) = number.parse::<u64>() else {
        return false;
    };
    match kind {
        "exactly" => !estimated && count == number,
        // The error of one in thirty is exceeded five times over once in a million runs.
        "about" => estimated && count.abs_diff(number) <= number / 6,
        _ => false,
    }
}

fn by_reason(line: &Value) -> BTreeMap<String, u64> {
    let map = line
        .get("egress_denied_by_reason")
        .and_then(Value::as_object);
    map.into_iter()
        .flatten()
        .map(|(reason, count)| (reason.clone(), count.as_u64().unwrap_or_default()))
        .collect()
}

fn denied(line: &Value) -> Vec<String> {
    let entry = |host: &Value| {
        let (proto, reason) = (text(host, "proto"), text(host, "reason"));
        format!("{}/{proto} {reason} {}", place(host), number(host, "count"))
    };
    let mut entries: Vec<_> = members(line, "egress_denied_hosts").map(entry).collect();
    entries.sort_unstable();
    entries
}

fn allowed(line: &Value) -> Vec<String> {
    let entry = |host: &Value| {
        format!(
            "{} {} {}",
            place(host),
            number(host, "connections"),
            number(host, "failures")
        )
    };
    let mut entries: Vec<_> = members(line, "egress_hosts").map(entry).collect();
    entries.sort_unstable();
    entries
}

/// `host:port`, with brackets around what has colons itself.
fn place(member: &Value) -> String {
    let text_of = |field| member.get(field).and_then(Value::as_str);
    let host = text_of("host")
        .or_else(|| text_of("address"))
        .unwrap_or_default();
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    match member.get("port").and_then(Value::as_u64) {
        Some(port) => format!("{host}:{port}"),
        None => host,
    }
}

fn members<'a>(line: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    line.get(field)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn text<'a>(member: &'a Value, field: &str) -> &'a str {
    member
        .get(field)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn number(member: &Value, field: &str) -> u64 {
    member
        .get(field)
        .and_then(Value::as_u64)
        .unwrap_or_default()
}

fn complete() -> String {
    "complete".to_owned()
}

fn name() -> String {
    "name".to_owned()
}

fn exited() -> String {
    "exited".to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line() -> Value {
        json!({
            "egress_channel": {"state": "complete"},
            "egress_enforcement": "name",
            "end_reason": "exited",
            "egress_denied": 3,
            "egress_allowed": 2,
            "egress_denied_by_reason": {"not_allowed": 2, "packet": 1},
            "egress_denied_hosts": [
                {"host": "b.test", "port": 443, "proto": "tcp", "reason": "not_allowed", "count": 2},
                {"host": null, "address": "fd5e:198:18:1::66", "port": 9, "proto": "udp", "reason": "packet", "count": 1},
            ],
            "egress_hosts": [{"host": "a.test", "port": 443, "connections": 2, "failures": 1}],
        })
    }

    fn expected() -> Expected {
        toml::from_str(
            "denied = ['[{v6}::66]:9/udp packet 1', 'b.test:443/tcp not_allowed 2']
             allowed = ['a.test:443 2 1']",
        )
        .unwrap()
    }

    #[test]
    fn a_line_that_says_it_all_has_no_differences() {
        assert_eq!(expected().differences(Subnet::new(1), &line()), [""; 0]);
    }

    #[test]
    fn a_count_that_is_a_client_s_own_affair_is_any_but_zero() {
        let of = |denied: &str, allowed: &str| {
            let denied = vec!["[{v6}::66]:9/udp packet 1".to_owned(), denied.to_owned()];
            let expected = Expected::complete(denied, vec![allowed.to_owned()]);
            expected.differences(Subnet::new(1), &line()).len()
        };
        assert_eq!(of("b.test:443/tcp not_allowed *", "a.test:443 * *"), 0);
        assert_eq!(of("b.test:443/tcp * 2", "a.test:443 2 1"), 0);
        assert_eq!(of("b.test:443/tcp not_allowed 2+", "a.test:443 1+ 1"), 0);
        assert_eq!(of("b.test:443/tcp not_allowed 3+", "a.test:443 2+x 1"), 2);
        assert_eq!(of("c.test:443/tcp not_allowed *", "a.test:443 * 0"), 2);
        let mut none = line();
        none["egress_hosts"][0]["failures"] = json!(0);
        let down = Expected::complete(expected().denied, vec!["a.test:443 * *".to_owned()]);
        assert_ne!(down.differences(Subnet::new(1), &none), [""; 0]);
    }

    #[test]
    fn a_lower_bound_is_called_one_and_no_other_number_is() {
        let of = |text: &str, line: &Value| {
            let expected: Expected = toml::from_str(text).unwrap();
            expected.boundaries(line).len()
        };
        let whole = json!({"egress_denied": 3, "egress_allowed": 1});
        let bound = json!({"egress_denied_at_least": 3, "egress_allowed_at_least": 1});
        for (state, line, wrong) in [
            ("complete", &whole, 0),
            ("gap", &whole, 0),
            ("interrupted", &whole, 4),
            ("never_connected", &whole, 2),
            ("complete", &bound, 4),
            ("interrupted", &bound, 0),
            ("not_applicable", &bound, 2),
            ("never_connected", &json!({}), 0),
        ] {
            assert_eq!(
                of(&format!("state = '{state}'"), line),
                wrong,
                "{state} {line}"
            );
        }
        assert_eq!(of("state = 'interrupted'\nat_least = 3", &bound), 0);
        assert_eq!(of("state = 'interrupted'\nat_least = 2", &bound), 1);
    }

    #[test]
    fn a_number_is_an_estimate_where_it_is_said_to_be_one() {
        for (count, estimated, wanted, is) in [
            (1024, false, "1024 exactly", true),
            (1024, true, "1024 exactly", false),
            (1023, false, "1024 exactly", false),
            (95_000, true, "100000 about", true),
            (80_000, true, "100000 about", false),
            (100_000, false, "100000 about", false),
            (7, false, "7", false),
        ] {
            assert_eq!(is_so_many(count, estimated, wanted), is, "{count} {wanted}");
        }
    }

    #[test]
    fn every_place_of_a_line_is_a_word() {
        let places = ["/egress_channel/state", "/egress_denied", "/exit_code"];
        assert!(says(&line(), &places, "complete 3 -").is_ok());
        assert!(says(&line(), &places, "complete 3 0").is_err());
    }

    #[test]
    fn every_fact_that_differs_is_told() {
        for (field, value) in [
            ("egress_channel", json!({"state": "gap"})),
            ("egress_enforcement", json!("address")),
            ("end_reason", json!("signaled")),
            ("signal", json!(9)),
            ("egress_denied", json!(2)),
            (
                "egress_denied_by_reason",
                json!({"not_allowed": 3, "packet": 1}),
            ),
            ("egress_denied_hosts", json!([])),
            ("egress_hosts", json!([])),
        ] {
            let mut line = line();
            line[field] = value;
            assert_ne!(
                expected().differences(Subnet::new(1), &line),
                [""; 0],
                "{field}"
            );
        }
    }
}
