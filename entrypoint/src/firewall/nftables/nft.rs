//! Runs nft, and says in one line what went wrong where something did.

use std::{io, path::Path};

use crate::{
    failure::Failure,
    firewall::{
        LOAD,
        program::{self, Said, first_line},
    },
};

/// Runs nft with `args`, gives it `input`, and returns what it prints.
///
/// Not through `nftables::helper`, which lets nft's own messages through to the guest's terminal.
pub(super) fn run(args: &[&str], input: &str) -> Result<String, Failure> {
    match program::run(NFT, args, input).map_err(|error| cannot_run(&error))? {
        Said::Done(printed) => Ok(printed),
        Said::Refused(complaint) => Err(explain(&complaint, Circumstances::observe())),
    }
}

/// What decides which of the usual mistakes it was.
#[derive(Debug, Clone, Copy)]
struct Circumstances {
    net_admin: bool,
    netfilter: bool,
}

impl Circumstances {
    fn observe() -> Self {
        let effective = rustix::thread::capabilities(None).map(|sets| sets.effective);
        Self {
            net_admin: effective
                .is_ok_and(|set| set.contains(rustix::thread::CapabilitySet::NET_ADMIN)),
            netfilter: Path::new("/proc/net/netfilter").exists(),
        }
    }
}

fn explain(stderr: &str, circumstances: Circumstances) -> Failure {
    let said = first_line(stderr);
    if !circumstances.net_admin {
        let cause = format!("the container lacks NET_ADMIN ({said})");
        return Failure::setup(
            LOAD,
            cause,
            "start it with --cap-add NET_ADMIN, or by `host-collector run`",
        );
    }
    if !circumstances.netfilter {
        let cause = format!("the kernel has no nf_tables ({said})");
        return Failure::setup(LOAD, cause, "load the nf_tables module on the host");
    }
    Failure::setup(
        LOAD,
        said,
        "check that the host's kernel has nf_tables with nat, log and reject",
    )
}

fn cannot_run(error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::NotFound {
        let cause = format!("no {NFT} in the image");
        return Failure::setup(LOAD, cause, "install nftables in it");
    }
    Failure::setup(
        LOAD,
        format_args!("run {NFT}: {error}"),
        "install nftables in the image",
    )
}

/// Absolute: nothing that root runs is found through an environment that others chose.
const NFT: &str = "/usr/sbin/nft";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_mistakes_are_named_with_their_remedy() {
        let said = "\nOperation not permitted (you must be root)\nnetlink: Error";
        for (net_admin, netfilter, expected) in [
            (
                false,
                true,
                "lacks NET_ADMIN (Operation not permitted (you must be root)); start it with --cap-add",
            ),
            (true, false, "no nf_tables"),
            (true, true, "check that the host's kernel has"),
        ] {
            let line = explain(
                said,
                Circumstances {
                    net_admin,
                    netfilter,
                },
            )
            .one_line();
            assert!(line.contains(expected), "{line}");
        }
    }

    #[test]
    fn a_missing_nft_is_named_with_its_remedy() {
        let line = cannot_run(&io::Error::from(io::ErrorKind::NotFound)).one_line();
        assert_eq!(
            line,
            "load the firewall: no /usr/sbin/nft in the image; install nftables in it"
        );
    }

    #[test]
    fn what_nft_says_is_told_in_one_line() {
        let circumstances = Circumstances {
            net_admin: true,
            netfilter: true,
        };
        let line = explain("\n\nfirst\nsecond\n", circumstances).one_line();
        assert!(line.contains("first") && !line.contains("second"), "{line}");
        assert!(explain("", circumstances).one_line().contains("no message"));
    }

    #[test]
    fn a_program_that_cannot_be_executed_is_named() {
        let line = cannot_run(&io::ErrorKind::PermissionDenied.into()).one_line();
        assert!(
            line.contains("/usr/sbin/nft") && line.contains("install nftables"),
            "{line}"
        );
    }

    #[test]
    fn a_transaction_that_is_none_is_refused_by_nft_and_told() {
        assert!(run(&["-j", "-f", "-"], "{\"nftables\":[{\"nonsense\":1}]}").is_err());
    }
}
