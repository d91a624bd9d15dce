//! Refuses entries that would allow nearly everything, however strict they look.

use ipnet::IpNet;

use crate::entry::{Effect, Target, Terms};
use crate::error::ErrorCode;
use crate::fault::Fault;
use crate::name::HostName;

/// A deny may be as broad as it likes; it only closes.
pub(crate) fn check(target: &Target, terms: &Terms) -> Result<(), Fault> {
    if terms.effect == Effect::Deny {
        return Ok(());
    }
    let range = match target {
        Target::Exact(_) => terms.lift,
        Target::Below(base) => {
            check_suffix(base)?;
            terms.lift
        }
        Target::Net(net) => Some(*net),
    };
    range.map_or(Ok(()), check_range)
}

/// Below a public suffix anyone can own a name, and send there whatever leaves the sandbox. The
/// private half of the list counts as well: that is where pages, buckets and tunnels are rented.
fn check_suffix(base: &HostName) -> Result<(), Fault> {
    let name = base.as_str();
    if psl::suffix(name.as_bytes()).is_none_or(|suffix| suffix != name) {
        return Ok(());
    }
    Err(Fault::new(
        ErrorCode::Overbroad,
        format!(
            "{name} is a public suffix, below which anyone can own a name; write the names or domains that are meant"
        ),
    ))
}

fn check_range(range: IpNet) -> Result<(), Fault> {
    let shortest = match range {
        IpNet::V4(_) => SHORTEST_V4,
        IpNet::V6(_) => SHORTEST_V6,
    };
    if range.prefix_len() >= shortest {
        return Ok(());
    }
    Err(Fault::new(
        ErrorCode::Overbroad,
        format!(
            "the prefix length is at least {shortest}; write the networks that are meant, as in 10.0.0.0/8"
        ),
    ))
}

/// The largest private network of IPv4 is 10.0.0.0/8, of IPv6 `fc00::/7`: nobody's own is larger.
const SHORTEST_V4: u8 = 8;
const SHORTEST_V6: u8 = 7;
