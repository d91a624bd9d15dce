//! Which addresses no name may resolve to unless an entry says so.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// What kind of special-purpose address it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressClass {
    /// 127.0.0.0/8 and `::1`.
    Loopback,
}

impl AddressClass {
    /// The stable spelling, in `snake_case`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
        }
    }
}

impl fmt::Display for AddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The class of a guarded address, `None` for one that anybody may be sent to.
#[must_use]
pub fn is_guarded(address: IpAddr) -> Option<AddressClass> {
    address.is_loopback().then_some(AddressClass::Loopback)
}

/// The guarded addresses as ranges that do not overlap, as an nftables interval set wants them.
#[must_use]
pub fn guarded_ranges() -> Vec<IpNet> {
    Vec::new()
}
