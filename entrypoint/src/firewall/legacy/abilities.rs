//! What `ip_tables` of this kernel can do besides the least, which is to tell users apart and to
//! redirect; and what it costs where it cannot.

use std::collections::BTreeSet;

/// Something that rules can do without, at a price.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ability {
    /// Knows to which connection a packet belongs.
    Tracking,
    /// Answers what it refuses.
    Answering,
    /// Hands heads of refused packets to PID 1.
    Logging,
    /// Has rules that end by themselves.
    Expiring,
    /// Tells kinds of `ICMPv6` apart, and broadcasts from what is meant for this host.
    Sorting,
    /// Judges packets where it is certain by which interface they go.
    Leaving,
    /// Judges packets that are passed on.
    Forwarding,
}

/// Those that a kernel has.
pub(super) type Abilities = BTreeSet<Ability>;

impl Ability {
    /// Every one.
    pub(super) const ALL: [Self; 7] = [
        Self::Tracking,
        Self::Answering,
        Self::Logging,
        Self::Expiring,
        Self::Sorting,
        Self::Leaving,
        Self::Forwarding,
    ];

    /// Those that single rules can do without; what lacks one of the others gets rules of another
    /// kind.
    #[cfg(test)]
    pub(super) const OPTIONAL: [Self; 5] = [
        Self::Logging,
        Self::Expiring,
        Self::Sorting,
        Self::Leaving,
        Self::Forwarding,
    ];

    /// What a kernel takes if and only if it has this. It is committed before it is taken back, or
    /// the kernel would never hear of it; nothing comes by the chain meanwhile.
    pub(super) fn trial(self) -> String {
        let (table, chain, rule) = match self {
            Self::Tracking => (
                "filter",
                TRIAL,
                "-m conntrack --ctstate ESTABLISHED,DNAT -m connmark --mark 1/1 \
                 -j CONNMARK --set-mark 1",
            ),
            Self::Answering => ("filter", TRIAL, "-p 6 -j REJECT --reject-with tcp-reset"),
            Self::Logging => ("filter", TRIAL, "-j NFLOG --nflog-group 4100"),
            Self::Expiring => ("filter", TRIAL, "-m time --datestop 2030-01-01T00:00:00"),
            Self::Sorting => ("filter", TRIAL, "-m pkttype --pkt-type multicast"),
            Self::Leaving => ("mangle", "POSTROUTING", "-j sandbox_trial"),
            Self::Forwarding => ("filter", "FORWARD", "-j sandbox_trial"),
        };
        format!(
            "*{table}\n:{TRIAL} - [0:0]\n-A {chain} {rule}\nCOMMIT\n\
             *{table}\n-D {chain} {rule}\n-X {TRIAL}\nCOMMIT\n"
        )
    }

    /// What is not covered without it, as the record says it.
    pub(super) const fn without(self) -> &'static str {
        match self {
            Self::Tracking => {
                "this kernel tracks no connections: what others send reaches the guest's sockets, and \
                 only its answers are refused"
            }
            Self::Answering => {
                "this kernel's rules cannot answer: a closed port does, for TCP and UDP, and the rest is \
                 silence"
            }
            Self::Logging => "this kernel hands no refused packets over: their targets are unknown",
            Self::Expiring => {
                "this kernel's rules do not end by themselves: ports of raw streams stay closed"
            }
            Self::Sorting => "this kernel's rules cannot tell link control apart: it is refused",
            Self::Leaving => {
                "this kernel does not judge by the interface chosen last: a socket bound to one may \
                 send to loopback addresses through it"
            }
            Self::Forwarding => {
                "this kernel has no rules for what it passes on: that this is nothing is its own doing"
            }
        }
    }
}

const TRIAL: &str = "sandbox_trial";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_is_committed_and_then_leaves_nothing_behind() {
        for ability in Ability::ALL {
            let text = ability.trial();
            assert!(text.ends_with("-X sandbox_trial\nCOMMIT\n"), "{text}");
            assert_eq!(text.matches("COMMIT").count(), 2, "{text}");
            let (_, added) = text.split_once("-A ").unwrap();
            let (added, rest) = added.split_once('\n').unwrap();
            assert!(rest.contains(&format!("-D {added}\n")), "{text}");
        }
    }

    #[test]
    fn each_lack_is_told_in_words_of_its_own() {
        let told: BTreeSet<_> = Ability::ALL.map(Ability::without).into();
        assert_eq!(told.len(), Ability::ALL.len());
    }
}
