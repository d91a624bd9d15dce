//! That a flow was let through, and by whom it was opened: the marks of the table of nftables, where
//! the reasons stand.

use super::script::{Family, Table};

/// Notes on a flow that it was let through: what belongs to it passes for that.
pub(super) fn let_through(table: &mut Table) {
    for (chain, mark) in [(CLAIMED, OURS), (LET_THROUGH, OTHERS_MARK)] {
        table.rule(chain, format_args!("-j CONNMARK --set-mark {mark:#x}"));
        table.rule(chain, "-j ACCEPT");
    }
}

/// More of a flow that was let through, and what the kernel itself says of flows.
pub(super) fn accept_known(chain: &str, family: Family, table: &mut Table) {
    let either = format!("-m connmark --mark {OURS:#x}/{:#x}", !1_u32);
    let known = format!("-m conntrack --ctstate ESTABLISHED {either}");
    table.rule(chain, known + " -j ACCEPT");
    let errors = match family {
        Family::V4 => "-p 1",
        Family::V6 => "-p 58",
    };
    for said in [errors, "-p 6 -m tcp --tcp-flags RST RST"] {
        let related = format!("{said} -m conntrack --ctstate RELATED");
        table.rule(chain, related + " -j ACCEPT");
    }
}

/// Where flows of others are noted as let through, and pass.
pub(super) const LET_THROUGH: &str = "sandbox_let_through";
/// Where flows of ours are.
pub(super) const CLAIMED: &str = "sandbox_claimed";
/// The mark of flows of ours, and that of others that were let through: those of the table of
/// nftables.
pub(super) const OURS: u32 = 0x5e99_e550;
const OTHERS_MARK: u32 = OURS | 1;

#[cfg(test)]
mod tests {
    use super::{
        super::{abilities::Ability, rules::script},
        *,
    };
    use crate::firewall::plan::tests::plan;

    #[test]
    fn what_belongs_to_a_flow_passes_for_the_mark_of_what_let_it_through() {
        for (family, errors) in Family::BOTH.into_iter().zip(["-p 1", "-p 58"]) {
            let text = script(&plan("example.com:22", &[]), family, &Ability::ALL.into());
            for chain in ["sandbox_output", "sandbox_input"] {
                let lines: Vec<_> = text
                    .lines()
                    .filter_map(|line| line.strip_prefix(&format!("-A {chain} ")))
                    .filter(|rule| rule.contains("ESTABLISHED") || rule.contains("RELATED"))
                    .collect();
                assert_eq!(
                    lines,
                    [
                        "-m conntrack --ctstate ESTABLISHED -m connmark --mark 0x5e99e550/0xfffffffe \
                         -j ACCEPT",
                        &format!("{errors} -m conntrack --ctstate RELATED -j ACCEPT"),
                        "-p 6 -m tcp --tcp-flags RST RST -m conntrack --ctstate RELATED -j ACCEPT",
                    ],
                    "{chain}"
                );
            }
            let order = [
                "-A sandbox_claimed -j CONNMARK --set-mark 0x5e99e550\n",
                "-A sandbox_claimed -j ACCEPT\n",
                "-A sandbox_let_through -j CONNMARK --set-mark 0x5e99e551\n",
                "-A sandbox_let_through -j ACCEPT\n",
            ];
            let places = order.map(|part| text.find(part).unwrap_or_else(|| panic!("{part}")));
            assert!(places.is_sorted(), "{text}");
        }
    }
}
