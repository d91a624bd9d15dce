//! What must be seen on a stream before bytes are passed on.

use std::fmt;

/// What an entry demands to see on the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StreamKind {
    /// A TLS `ClientHello` whose SNI is the authorised name.
    Tls,
    /// HTTP requests whose Host is the authorised name.
    Http,
    /// Nothing: an opaque stream, as SSH or a database needs it.
    Tcp,
}

impl StreamKind {
    /// Every kind there is.
    pub const ALL: [Self; 3] = [Self::Tls, Self::Http, Self::Tcp];

    /// What an entry demands on `port` when it names no protocol.
    #[must_use]
    pub const fn default_for(port: u16) -> Self {
        match port {
            443 => Self::Tls,
            80 => Self::Http,
            _ => Self::Tcp,
        }
    }

    /// The word for it in an entry.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Http => "http",
            Self::Tcp => "tcp",
        }
    }
}

impl fmt::Display for StreamKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of [`StreamKind`]s: what several entries for one destination demand, any of which will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct StreamKinds(u8);

impl StreamKinds {
    /// No kind at all.
    pub const NONE: Self = Self(0);
    /// Every kind.
    pub const ALL: Self = Self(0b111);

    /// The set of `kind` alone.
    #[must_use]
    pub const fn only(kind: StreamKind) -> Self {
        Self(1 << kind as u8)
    }

    /// Whether a stream of this kind will do.
    #[must_use]
    pub const fn contains(self, kind: StreamKind) -> bool {
        self.0 & Self::only(kind).0 != 0
    }

    /// Whether any stream will do, because one of the entries demands nothing.
    #[must_use]
    pub const fn is_opaque(self) -> bool {
        self.contains(StreamKind::Tcp)
    }

    /// Whether no kind is in the set. A permit's set never is.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The kinds in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The kinds of this set that `other` has not.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_decides_what_is_demanded_by_default() {
        for (port, kind) in [
            (443, StreamKind::Tls),
            (80, StreamKind::Http),
            (22, StreamKind::Tcp),
            (8443, StreamKind::Tcp),
        ] {
            assert_eq!(StreamKind::default_for(port), kind, "{port}");
        }
    }

    #[test]
    fn a_set_with_tcp_is_opaque() {
        let both = StreamKinds::only(StreamKind::Tls).union(StreamKinds::only(StreamKind::Tcp));
        assert!(both.is_opaque() && both.contains(StreamKind::Tls));
        assert!(!both.contains(StreamKind::Http));
        assert!(!both.without(StreamKinds::only(StreamKind::Tcp)).is_opaque());
    }

    #[test]
    fn all_is_the_union_of_every_kind() {
        let all = StreamKind::ALL
            .into_iter()
            .fold(StreamKinds::NONE, |set, kind| {
                set.union(StreamKinds::only(kind))
            });
        assert_eq!(all, StreamKinds::ALL);
        assert!(StreamKinds::ALL.without(all).is_empty());
    }

    #[test]
    fn a_kind_is_displayed_as_an_entry_names_it() {
        assert_eq!(
            StreamKind::ALL.map(|kind| kind.to_string()),
            ["tls", "http", "tcp"]
        );
    }

    #[test]
    fn a_set_of_one_kind_contains_no_other() {
        for kind in StreamKind::ALL {
            let set = StreamKinds::only(kind);
            let within = StreamKind::ALL
                .into_iter()
                .filter(|other| set.contains(*other))
                .count();
            assert_eq!(within, 1, "{kind}");
        }
    }
}
