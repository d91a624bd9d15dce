//! No file, no listener of its own, no signal to others: what Landlock takes, as far as there is one.
//!
//! The filter of system calls forbids the same and more. Landlock judges what a call is about, not
//! which call it is, so that a call which the filter has forgotten is not a way to a file.

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, LandlockStatus, RestrictionStatus, Ruleset,
    RulesetAttr as _, RulesetError, Scope,
};

/// Takes every right to files from the calling thread and says what could not be had.
pub(super) fn close() -> Option<String> {
    match restrict() {
        Ok(status) => uncovered(status.landlock),
        Err(error) => Some(format!(
            "the proxy may open the files of its uid: Landlock refuses: {error}"
        )),
    }
}

/// Best effort is the library's default: what this kernel does not know is left out.
fn restrict() -> Result<RestrictionStatus, RulesetError> {
    Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::BindTcp)?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .restrict_self()
}

/// What this kernel's Landlock does not take, in one sentence.
fn uncovered(landlock: LandlockStatus) -> Option<String> {
    let abi = match landlock {
        LandlockStatus::Available { effective_abi, .. } => effective_abi,
        LandlockStatus::NotEnabled => {
            return Some(format!("{WITHOUT} has Landlock switched off"));
        }
        LandlockStatus::NotImplemented => return Some(format!("{WITHOUT} has no Landlock")),
    };
    let since = COVERED_SINCE.iter().filter(|(since, _)| *since > abi);
    let uncovered: Vec<_> = since.map(|(_, what)| *what).collect();
    if uncovered.is_empty() {
        return None;
    }
    Some(format!(
        "this kernel's Landlock (ABI {}) does not keep the proxy from {}",
        abi as i32,
        uncovered.join(", ")
    ))
}

const WITHOUT: &str = "the proxy may open the files of its uid: this kernel";
/// The version of Landlock that has all that is asked for.
const NEWEST: ABI = ABI::V6;
/// What came to Landlock after its first version, and when.
const COVERED_SINCE: [(ABI, &str); 5] = [
    (ABI::V2, "moving files to other directories"),
    (ABI::V3, "truncating files"),
    (ABI::V4, "listening on TCP ports"),
    (ABI::V5, "commands to devices"),
    (
        ABI::V6,
        "signals and abstract sockets of its uid's other processes",
    ),
];

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;
    use crate::confine::calls::tests::without;

    /// Landlock binds the thread that asks for it.
    fn confined<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
        let acting = thread::spawn(|| {
            let missing = close();
            assert_eq!(
                missing, None,
                "this test needs a kernel with Landlock, ABI 6"
            );
            act()
        });
        acting.join().unwrap()
    }

    #[test]
    fn no_file_can_be_opened_read_or_made() {
        let directory = std::env::temp_dir();
        let made = directory.join("sandbox-egress-never-made");
        let kinds = confined(move || {
            [
                std::fs::read("/etc/passwd").map(drop),
                std::fs::read_dir(&directory).map(drop),
                std::fs::write(&made, "x"),
                std::fs::remove_file("/etc/passwd"),
            ]
            .map(|done| done.unwrap_err().kind())
        });
        assert_eq!(kinds, [std::io::ErrorKind::PermissionDenied; 4]);
    }

    #[test]
    fn nothing_new_can_listen() {
        let error = confined(|| TcpListener::bind("127.0.0.1:0").unwrap_err());
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn no_process_outside_can_be_signalled() {
        let parent = rustix::process::getppid().unwrap();
        let sent = confined(move || rustix::process::test_kill_process(parent));
        assert_eq!(sent, Err(rustix::io::Errno::PERM));
    }

    #[test]
    fn what_an_older_landlock_leaves_open_is_named() {
        let at = |effective_abi| {
            uncovered(LandlockStatus::Available {
                effective_abi,
                kernel_abi: None,
            })
        };
        assert_eq!(at(ABI::V6), None);
        assert_eq!(at(ABI::V7), None);
        assert_eq!(
            at(ABI::V5).unwrap(),
            "this kernel's Landlock (ABI 5) does not keep the proxy from signals and abstract \
             sockets of its uid's other processes"
        );
        let oldest = at(ABI::V1).unwrap();
        for (_, what) in COVERED_SINCE {
            assert!(oldest.contains(what), "{oldest}");
        }
    }

    #[test]
    fn a_kernel_without_landlock_is_named_and_not_fatal() {
        for (errno, says) in [
            (libc::ENOSYS, "this kernel has no Landlock"),
            (libc::EOPNOTSUPP, "has Landlock switched off"),
        ] {
            let missing = without(libc::SYS_landlock_create_ruleset, errno, close);
            assert!(missing.as_ref().unwrap().ends_with(says), "{missing:?}");
        }
    }

    #[test]
    fn an_engine_that_refuses_landlock_is_named_and_not_fatal() {
        let missing = without(libc::SYS_landlock_restrict_self, libc::EPERM, close);
        assert!(
            missing.as_ref().unwrap().contains("Landlock refuses: "),
            "{missing:?}"
        );
    }
}
