//! What can be wrong with an entry, before it is known which one of the list it is.

/// A cause and a remedy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) code: ErrorCode,
    pub(crate) hint: String,
}

impl Fault {
    pub(crate) fn new(code: ErrorCode, hint: impl Into<String>) -> Self {
        Self {
            code,
            hint: hint.into(),
        }
    }
}

/// Why an entry, or the list as a whole, is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorCode {
    /// The list has no entry, or the entry no target.
    Empty,
    /// The entry would allow nearly everything.
    Overbroad,
    /// A `*` anywhere but as the whole first label.
    WildcardPosition,
    /// A URL or a path.
    Url,
    /// User information before an `@`.
    Userinfo,
    /// Not a port, a range of ports or `*`.
    Port,
    /// Not an address or a range of addresses, or one where none belongs.
    Address,
    /// A range with bits set to the right of its prefix.
    HostBits,
    /// Not a host name.
    Name,
    /// A preset that is not known or not sound, or a preset or tool that was not written out.
    Preset,
    /// Not one of the three protocols.
    Protocol,
    /// An entry longer than any real one, or more of them than any real list has.
    TooLong,
}

impl ErrorCode {
    /// The stable spelling, in `snake_case`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Overbroad => "overbroad",
            Self::WildcardPosition => "wildcard_position",
            Self::Url => "url",
            Self::Userinfo => "userinfo",
            Self::Port => "port",
            Self::Address => "address",
            Self::HostBits => "host_bits",
            Self::Name => "name",
            Self::Preset => "preset",
            Self::Protocol => "protocol",
            Self::TooLong => "too_long",
        }
    }

    /// What is wrong, as the rest of a sentence about the entry.
    pub(crate) const fn sentence(self) -> &'static str {
        match self {
            Self::Empty => "names nothing",
            Self::Overbroad => "covers too much",
            Self::WildcardPosition => "has a * in the wrong place",
            Self::Url => "is a URL or a path",
            Self::Userinfo => "carries a user",
            Self::Port => "has no valid port",
            Self::Address => "has no valid address or range",
            Self::HostBits => "has bits set beyond its prefix length",
            Self::Name => "has no valid host name",
            Self::Preset => "is a preset that cannot be used",
            Self::Protocol => "has an unknown protocol",
            Self::TooLong => "is too long",
        }
    }
}
