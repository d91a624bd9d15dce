//! The part of a line that counting refusals needs, without taking the rest apart: a history is
//! tens of thousands of lines, and somebody waits for the sum.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};

/// A line, at a glance.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Glance<'a> {
    #[serde(borrow)]
    pub(crate) time: Text<'a>,
    #[serde(borrow)]
    pub(crate) run_id: Text<'a>,
    #[serde(borrow)]
    pub(crate) image: Text<'a>,
    #[serde(borrow)]
    pub(crate) workspace: Text<'a>,
    #[serde(borrow)]
    pub(crate) agent: Text<'a>,
    #[serde(borrow)]
    pub(crate) branch: Text<'a>,
    #[serde(borrow)]
    pub(crate) network: Text<'a>,
    pub(crate) detached: bool,
    pub(crate) finished: Option<bool>,
    pub(crate) egress_denied: Option<u64>,
    pub(crate) egress_denied_at_least: Option<u64>,
    pub(crate) egress_denied_reported: Option<u64>,
    #[serde(borrow)]
    pub(crate) egress_denied_by_reason: Option<BTreeMap<Text<'a>, u64>>,
    #[serde(borrow)]
    pub(crate) egress_denied_hosts: Option<Vec<GlanceHost<'a>>>,
}

/// A refused target, at a glance.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct GlanceHost<'a> {
    #[serde(borrow)]
    pub(crate) host: Text<'a>,
    #[serde(borrow)]
    pub(crate) address: Text<'a>,
    #[serde(borrow)]
    pub(crate) reason: Text<'a>,
    pub(crate) count: u64,
    pub(crate) at_least: bool,
}

impl Glance<'_> {
    /// Whether it is the line of a launch whose end has one of its own.
    pub(crate) fn is_launch(&self) -> bool {
        self.detached && self.finished.is_none() && self.egress_denied.is_none()
    }
}

/// A string of the line itself wherever JSON lets it be; empty where there is none.
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Text<'a>(Option<Cow<'a, str>>);

impl Text<'_> {
    pub(crate) fn as_str(&self) -> Option<&str> {
        self.0.as_deref()
    }

    pub(crate) fn or_empty(&self) -> &str {
        self.as_str().unwrap_or_default()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor).map(Text)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Option<Cow<'de, str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or null")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Some(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(Cow::Owned(text.to_owned())))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glance_sees_what_the_line_says() {
        let line = r#"{"time":"t","image":"a\tb","agent":null,"command":["x",{"y":1}],"egress_denied":3,
            "egress_denied_by_reason":{"not_allowed":2,"packet":1},
            "egress_denied_hosts":[{"host":"h","port":1,"reason":"not_allowed","count":2},{"address":"1.2.3.4","count":1,"at_least":true}]}"#;
        let glance: Glance<'_> = serde_json::from_str(line).unwrap();
        assert_eq!(
            (glance.time.or_empty(), glance.image.or_empty()),
            ("t", "a\tb")
        );
        assert!(matches!(glance.time.0, Some(Cow::Borrowed(_))));
        assert_eq!(
            (glance.agent.as_str(), glance.egress_denied),
            (None, Some(3))
        );
        let hosts = glance.egress_denied_hosts.unwrap();
        assert_eq!((hosts[0].host.or_empty(), hosts[0].count), ("h", 2));
        assert_eq!((hosts[1].host.as_str(), hosts[1].at_least), (None, true));
        let reasons = glance.egress_denied_by_reason.unwrap();
        assert_eq!(reasons.into_values().sum::<u64>(), 3);
    }

    #[test]
    fn only_the_first_line_of_a_detached_run_is_a_launch() {
        for (line, is_launch) in [
            (r#"{"time":"t","detached":true,"exit_code":null}"#, true),
            (r#"{"time":"t","detached":true,"finished":true}"#, false),
            (r#"{"time":"t","detached":false}"#, false),
        ] {
            let glance: Glance<'_> = serde_json::from_str(line).unwrap();
            assert_eq!(glance.is_launch(), is_launch, "{line}");
        }
    }

    #[test]
    fn what_is_of_another_type_is_no_glance() {
        for line in [
            r#"{"time":3}"#,
            r#"{"image":["a"]}"#,
            r#"{"egress_denied":"3"}"#,
        ] {
            assert!(serde_json::from_str::<Glance<'_>>(line).is_err(), "{line}");
        }
    }
}
