//! What the set-up may do only with a capability, and whether the container has it.

use rustix::thread::CapabilitySet;

use crate::failure::Failure;

/// Refuses a container that lacks something of `needed`, and names all of it at once.
pub(crate) fn require(step: &'static str, needed: CapabilitySet) -> Result<(), Failure> {
    let sets = rustix::thread::capabilities(None);
    let sets = sets.map_err(|errno| Failure::system("look at the capabilities")(errno.into()))?;
    lacking(needed, sets.effective).map_or(Ok(()), |lacking| {
        let cause = format!("the container lacks {lacking}");
        Err(Failure::setup(step, cause, REMEDY))
    })
}

/// The names of what is needed and not held.
fn lacking(needed: CapabilitySet, held: CapabilitySet) -> Option<String> {
    let names = NAMES
        .iter()
        .filter(|(capability, _)| needed.contains(*capability) && !held.contains(*capability));
    let names: Vec<_> = names.map(|(_, name)| *name).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// To become somebody else who can never come back, and to signal whoever that is.
pub(crate) const TO_CHANGE_USER: CapabilitySet = CapabilitySet::SETUID
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::KILL);
/// The same, and to close the network first.
pub(crate) const TO_ENFORCE: CapabilitySet = TO_CHANGE_USER.union(CapabilitySet::NET_ADMIN);

/// As engines spell them.
const NAMES: [(CapabilitySet, &str); 5] = [
    (CapabilitySet::NET_ADMIN, "NET_ADMIN"),
    (CapabilitySet::SETUID, "SETUID"),
    (CapabilitySet::SETGID, "SETGID"),
    (CapabilitySet::SETPCAP, "SETPCAP"),
    (CapabilitySet::KILL, "KILL"),
];
const REMEDY: &str = "start it as root with a --cap-add of each, or by `host-collector run`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_named_and_nothing_else() {
        for (held, expected) in [
            (TO_ENFORCE, None),
            (CapabilitySet::all(), None),
            (TO_CHANGE_USER, Some("NET_ADMIN")),
            (
                CapabilitySet::NET_ADMIN,
                Some("SETUID, SETGID, SETPCAP, KILL"),
            ),
            (
                CapabilitySet::empty(),
                Some("NET_ADMIN, SETUID, SETGID, SETPCAP, KILL"),
            ),
        ] {
            assert_eq!(lacking(TO_ENFORCE, held).as_deref(), expected, "{held:?}");
        }
        assert_eq!(lacking(TO_CHANGE_USER, TO_CHANGE_USER), None);
    }

    #[test]
    fn everything_that_is_ever_needed_has_a_name() {
        let named = NAMES.iter().map(|(capability, _)| *capability);
        assert_eq!(named.collect::<CapabilitySet>(), TO_ENFORCE);
    }

    #[test]
    fn root_with_everything_lacks_nothing() {
        // As the tests run.
        require("test", TO_ENFORCE).unwrap();
    }
}
