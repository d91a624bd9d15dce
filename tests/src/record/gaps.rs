//! The gaps of an account, as a case spells them: `outage 50 killed by SIGKILL` is one of this kind,
//! that lasted 50 ms at least, and of which this is said. `open` in place of a time had no end.

use serde_json::Value;

use super::{number, text};

/// How the gaps of a line are not those that are wanted, all of them, in the order they began.
pub(super) fn difference(line: &Value, wanted: Option<&[String]>) -> Option<String> {
    let wanted = wanted?;
    let told = line.pointer("/egress_channel/gaps");
    let told = told
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    let is_as_wanted = told.len() == wanted.len()
        && told
            .iter()
            .zip(wanted)
            .all(|(gap, wanted)| is_gap(gap, wanted));
    (!is_as_wanted).then(|| format!("gaps are {:#}, not {wanted:#?}", Value::from(told)))
}

fn is_gap(gap: &Value, wanted: &str) -> bool {
    let mut words = wanted.splitn(3, ' ');
    let [kind, time, said] = [(); 3].map(|()| words.next().unwrap_or_default());
    let end = gap.get("to_ms").and_then(Value::as_u64);
    let lasted = end.map(|end| end.saturating_sub(number(gap, "from_ms")));
    let is_long = match (time.parse::<u64>(), lasted) {
        (Ok(least), Some(lasted)) => lasted >= least,
        (Err(_), None) => time == "open",
        (Ok(_), None) | (Err(_), Some(_)) => false,
    };
    text(gap, "kind") == kind && is_long && text(gap, "detail").contains(said)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn is_told(wanted: &[&str]) -> bool {
        let line = json!({"egress_channel": {"gaps": [
            {"kind": "outage", "from_ms": 20, "to_ms": 70, "detail": "the proxy was killed"},
            {"kind": "tamper", "from_ms": 90, "to_ms": null, "detail": "a rule"},
        ]}});
        let wanted: Vec<_> = wanted.iter().map(|&gap| gap.to_owned()).collect();
        difference(&line, Some(&wanted)).is_none()
    }

    #[test]
    fn each_gap_is_told_and_none_besides() {
        let second = "tamper open a rule";
        assert!(is_told(&["outage 50 was killed", second]));
        for first in [
            "outage 51 was killed",
            "outage open was killed",
            "outage 50 exited",
            "tamper 50 was killed",
            "outage x was killed",
        ] {
            assert!(!is_told(&[first, second]), "{first}");
        }
        assert!(!is_told(&["outage 50 was killed"]));
        assert!(!is_told(&["outage 50 was killed", "tamper 0 a rule"]));
        assert!(!is_told(&[]));
    }

    #[test]
    fn whoever_does_not_ask_is_not_told_of_gaps() {
        assert_eq!(difference(&json!({}), None), None);
        assert_eq!(difference(&json!({}), Some(&[])), None);
    }
}
