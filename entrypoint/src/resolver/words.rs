//! What PID 1 and its resolver say to each other. The resolver reads what strangers wrote: its word
//! is an index and addresses, of bounded size, and opens nothing that policy does not let it.

use std::net::IpAddr;

use policy::HostName;
use serde::{Deserialize, Serialize};

/// The one message to the resolver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Questions {
    /// Whom to ask, in this order.
    pub(crate) resolvers: Vec<IpAddr>,
    /// What to ask for, again and again.
    pub(crate) names: Vec<String>,
}

impl Questions {
    /// The names, in their order; PID 1 sends none that is not one.
    pub(super) fn host_names(&self) -> Result<Vec<HostName>, policy::HostNameError> {
        self.names
            .iter()
            .map(|name| HostName::parse(name))
            .collect()
    }
}

/// From the resolver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum FromResolver {
    /// A name has addresses.
    Resolved(Resolved),
    /// Every name has been asked for once, whatever came of it.
    AllAsked,
}

/// Addresses of a name, of one family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Resolved {
    /// Which of [`Questions::names`].
    pub(crate) index: u32,
    /// At most [`MOST_ADDRESSES`].
    pub(crate) addresses: Vec<IpAddr>,
    /// For how many seconds that may be believed, every alias on the way included.
    pub(crate) ttl: u32,
}

/// The most addresses of one name and family that are opened.
pub(crate) const MOST_ADDRESSES: usize = 64;
/// The greatest size of a message from the resolver, in bytes.
pub(crate) const MAX_FRAME: usize = 8 * 1024;

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn the_longest_answer_fits_a_frame() {
        let longest = Ipv6Addr::new(
            0x2001, 0xdb8, 0x1111, 0x2222, 0x3333, 0x4444, 0x5555, 0x6666,
        );
        let message = FromResolver::Resolved(Resolved {
            index: u32::MAX,
            addresses: vec![longest.into(); MOST_ADDRESSES],
            ttl: u32::MAX,
        });
        assert!(report::encode(&message, MAX_FRAME).is_ok());
    }

    #[test]
    fn what_is_no_name_is_not_asked_for() {
        let questions = |name: &str| Questions {
            resolvers: Vec::new(),
            names: vec![name.to_owned()],
        };
        assert!(questions("a.example").host_names().is_ok());
        for name in ["", "10.0.0.1", "*.example", "a b"] {
            assert!(questions(name).host_names().is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_message_reads_back_as_it_was() {
        let message = FromResolver::Resolved(Resolved {
            index: 3,
            addresses: vec!["203.0.113.7".parse().unwrap()],
            ttl: 60,
        });
        let text = serde_json::to_string(&message).unwrap();
        assert_eq!(
            serde_json::from_str::<FromResolver>(&text).unwrap(),
            message
        );
    }
}
