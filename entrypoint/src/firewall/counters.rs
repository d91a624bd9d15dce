//! What the rules count, as numbers that are added and compared kind by kind.

/// What was refused, in packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Refused on their way out.
    pub(crate) packets: u64,
    /// Of UDP 443.
    pub(crate) quic: u64,
    /// Refused on their way in.
    pub(crate) ingress: u64,
}

impl Counters {
    /// Does this with each kind of both.
    pub(super) fn map2(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            packets: f(self.packets, other.packets),
            quic: f(self.quic, other.quic),
            ingress: f(self.ingress, other.ingress),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_kept_apart() {
        let one = Counters {
            packets: 1,
            quic: 20,
            ingress: 300,
        };
        let other = Counters {
            packets: 5,
            quic: 4,
            ingress: 300,
        };
        let most = Counters {
            packets: 5,
            quic: 20,
            ingress: 300,
        };
        assert_eq!(one.map2(other, u64::max), most);
        let less = one.map2(other, u64::saturating_sub);
        assert_eq!((less.packets, less.quic, less.ingress), (0, 16, 0));
    }
}
