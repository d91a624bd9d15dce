//! Why a list is refused, told so that the line can be found and mended.

use std::fmt;

/// Why an entry, or the list as a whole, is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorCode {
    /// There is nothing to allow: the list has no entry, or the entry no target.
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
    /// Not an address or a range of addresses.
    Address,
    /// A range with bits set to the right of its prefix.
    HostBits,
    /// Not a host name.
    Name,
    /// A preset or tool that is not known here.
    Preset,
    /// Not one of the three protocols.
    Protocol,
    /// An entry longer than any real one, or too many of them.
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
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An allowlist that cannot be used. `Display` is one line that names the entry, its position, the
/// cause and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyError {
    /// The entry, cut if it is long, with control and invisible characters escaped.
    pub entry: String,
    /// Which of the entries it is, from 1, blanks not counted; 0 for the list as a whole.
    pub position: usize,
    /// What is wrong.
    pub code: ErrorCode,
    /// What would be right.
    pub hint: String,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {} \"{}\": {}; {}", self.position, self.entry, self.code, self.hint)
    }
}

impl std::error::Error for PolicyError {}
