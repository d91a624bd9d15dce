//! What would be decided on a host, by the code that decides, with what would have to be added.

use std::fmt;

use policy::{Denial, DenyReason, Destination, Host, Permit};
use serde::Serialize;

use super::{
    asked::decoded,
    page::{NOTE, Problem},
};
use crate::{authority, proxy::Proxy};

/// The decisions on a host.
#[derive(Debug, Serialize)]
pub(super) struct Why {
    host: String,
    decisions: Vec<Decided>,
    note: &'static str,
}

#[derive(Debug, Serialize)]
struct Decided {
    port: u16,
    verdict: Verdict,
    reason: Option<DenyReason>,
    /// The entry that decided, or the nearest to one that would have allowed.
    rule: Option<String>,
    hint: Option<String>,
    /// What a client has to keep to, where it is allowed.
    terms: Option<&'static str>,
    /// The entry that would allow it, where adding one would.
    add: Option<String>,
    #[serde(skip)]
    destination: Destination,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Allow,
    Deny,
}

/// The decisions on what `raw` names: a host, or a host and a port.
pub(super) fn of(raw: &str, proxy: &Proxy) -> Result<Why, Problem> {
    let (host, port) =
        authority::host_and_port(&decoded(raw)).map_err(|cause| Problem::host(&cause))?;
    let ports = port.map_or(vec![443, 80], |port| vec![port]);
    let decide = |port| Decided::on(host.clone(), port, proxy);
    Ok(Why {
        decisions: ports.into_iter().map(decide).collect(),
        host: host.to_string(),
        note: NOTE,
    })
}

impl Decided {
    fn on(host: Host, port: u16, proxy: &Proxy) -> Self {
        let destination = Destination { host, port };
        match proxy.why(&destination) {
            Ok(permit) => Self::allowed(&permit, destination),
            Err(denial) => Self::denied(denial, destination),
        }
    }

    fn allowed(permit: &Permit, destination: Destination) -> Self {
        Self {
            port: destination.port,
            verdict: Verdict::Allow,
            reason: None,
            rule: Some(permit.rule().to_owned()),
            hint: None,
            terms: Some(permit.terms()),
            add: None,
            destination,
        }
    }

    fn denied(denial: Denial, destination: Destination) -> Self {
        Self {
            port: destination.port,
            verdict: Verdict::Deny,
            reason: Some(denial.reason),
            rule: denial.nearest,
            hint: denial.hint,
            terms: None,
            add: entry_for(&destination, denial.reason),
            destination,
        }
    }
}

/// The entry that opens this destination and no other. Nothing that is added opens what a deny entry
/// closes.
fn entry_for(destination: &Destination, reason: DenyReason) -> Option<String> {
    let opens = matches!(
        reason,
        DenyReason::NotAllowed
            | DenyReason::PortNotAllowed
            | DenyReason::AddressLiteral
            | DenyReason::Limit
    );
    (opens && !destination.host.is_window()).then(|| destination.to_string())
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# {NOTE}")?;
        self.decisions.iter().try_for_each(|decided| decided.fmt(f))
    }
}

impl fmt::Display for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let destination = &self.destination;
        match self.reason {
            None => write!(f, "allow {destination}")?,
            Some(reason) => write!(f, "deny {destination}: {reason}")?,
        }
        match (&self.rule, self.verdict) {
            (Some(rule), Verdict::Allow) => writeln!(f, ", by `{rule}`")?,
            (Some(rule), Verdict::Deny) => writeln!(f, ", nearest is `{rule}`")?,
            (None, _) => writeln!(f)?,
        }
        if let Some(words) = self.terms.or(self.hint.as_deref()) {
            writeln!(f, "  {words}")?;
        }
        match &self.add {
            Some(entry) => writeln!(
                f,
                "  the entry for just this is `{entry}`; it is added where the sandbox is started"
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(list: &str, raw: &str) -> serde_json::Value {
        let why = of(raw, &Proxy::allowing(list)).unwrap();
        serde_json::to_value(why).unwrap()
    }

    #[test]
    fn a_host_is_decided_on_its_usual_ports_and_with_a_port_on_that() {
        let both = json("a.example:443", "a.example");
        let told: Vec<_> = both["decisions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| (one["port"].as_u64().unwrap(), one["verdict"].clone()))
            .collect();
        assert_eq!(told, [(443, "allow".into()), (80, "deny".into())]);
        let one = json("a.example:443", "A.example.:22");
        assert_eq!(one["host"], "a.example");
        assert_eq!(one["decisions"].as_array().unwrap().len(), 1);
        assert_eq!(one["decisions"][0]["reason"], "port_not_allowed");
        assert_eq!(one["decisions"][0]["add"], "a.example:22");
    }

    #[test]
    fn the_entry_that_is_named_opens_what_was_asked_for_and_nothing_is_named_where_none_would() {
        for (list, asked, add) in [
            ("a.example", "b.example:443", Some("b.example:443")),
            ("a.example", "203.0.113.7:22", Some("203.0.113.7:22")),
            (
                "a.example",
                "%5B2001:db8::7%5D:22",
                Some("[2001:db8::7]:22"),
            ),
            ("a.example, !b.a.example", "b.a.example:443", None),
            ("a.example", "a.example:443", None),
            ("a.example", "egress.sandbox:80", None),
        ] {
            let named = json(list, asked)["decisions"][0]["add"].clone();
            assert_eq!(named.as_str(), add, "{asked}");
            if let Some(entry) = add {
                let more = json(&format!("{list}, {entry}"), asked);
                assert_eq!(more["decisions"][0]["verdict"], "allow", "{entry}");
            }
        }
    }

    #[test]
    fn the_text_says_it_in_lines() {
        let proxy = Proxy::allowing("a.example");
        let text = of("a.example:443", &proxy).unwrap().to_string();
        assert!(
            text.contains("\nallow a.example:443, by `a.example`\n  for TLS "),
            "{text}"
        );
        let text = of("b.a.example:443", &proxy).unwrap().to_string();
        assert!(
            text.contains("\ndeny b.a.example:443: not_allowed"),
            "{text}"
        );
        assert!(
            text.contains("`b.a.example:443`; it is added where"),
            "{text}"
        );
    }

    #[test]
    fn what_names_no_host_is_told_why() {
        let proxy = Proxy::allowing("a.example");
        for raw in [
            "",
            ":80",
            "a..b",
            "a.example:x",
            "0x7f.1",
            "%00",
            "u@a.example",
            "a/b",
        ] {
            let problem = of(raw, &proxy).unwrap_err().to_string();
            assert!(problem.contains("/why/HOST"), "{raw}: {problem}");
            assert!(!problem.contains('\0'), "{raw}");
        }
    }

    #[test]
    fn an_address_needs_no_brackets_where_no_port_follows() {
        let told = json("2001:db8::/32", "2001:db8::7");
        assert_eq!(told["host"], "2001:db8::7");
        assert_eq!(told["decisions"][0]["verdict"], "allow");
    }
}
