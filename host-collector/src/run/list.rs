//! How an allowlist reaches the entrypoint: in a variable, or in a file where that cannot hold it.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use policy::Policy;

use super::error::SetUpError;
use crate::engine::HOST_DIRECTORY;

/// What to say to the entrypoint: the entries, or `@` and the file in which they are. That is laid
/// into `directory`, which the container sees, read-only, at [`HOST_DIRECTORY`].
pub(super) fn hand_over(policy: &Policy, directory: Option<&Path>) -> Result<String, SetUpError> {
    let entries = policy.entries();
    let list = entries.join(",");
    if list.len() <= MOST_IN_VARIABLE {
        return Ok(list);
    }
    let directory = directory.ok_or(SetUpError::LongList { size: list.len() })?;
    let path = directory.join(FILE);
    write(&path, &entries).map_err(|source| SetUpError::List { path, source })?;
    Ok(format!("@{HOST_DIRECTORY}/{FILE}"))
}

/// A line for each entry. The container's root may be anybody on the host, and has no
/// `DAC_OVERRIDE`: the file is open to others, and the directories above it are not.
fn write(path: &Path, entries: &[String]) -> io::Result<()> {
    let mut text = entries.join("\n");
    text.push('\n');
    fs::write(path, text)?;
    fs::set_permissions(path, Permissions::from_mode(0o644))
}

/// The kernel takes no string of the environment over 128 KiB (`execve(2)`); the name takes some.
const MOST_IN_VARIABLE: usize = 128 * 1024 - 64;
const FILE: &str = "allow.txt";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_a_variable_can_hold_is_held_by_one() {
        let dir = tempfile::tempdir().unwrap();
        let policy = Policy::parse("b.example,a.example").unwrap();
        assert_eq!(
            hand_over(&policy, Some(dir.path())).unwrap(),
            "a.example,b.example"
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_longer_one_is_laid_beside_the_channel_and_is_the_same_list() {
        let dir = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..10_000).map(|n| format!("name-{n}.example")).collect();
        let policy = Policy::from_entries(&names).unwrap();
        let said = hand_over(&policy, Some(dir.path())).unwrap();
        assert_eq!(said, "@/run/sandbox-egress/host/allow.txt");
        let file = dir.path().join("allow.txt");
        let laid = Policy::parse(&fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(laid.digest(), policy.digest());
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o644);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let names: Vec<String> = (0..10_000).map(|n| format!("name-{n}.example")).collect();
        let policy = Policy::from_entries(&names).unwrap();
        let line = hand_over(&policy, Some(Path::new("/nowhere")))
            .unwrap_err()
            .to_string();
        assert!(line.contains("/nowhere/allow.txt"), "{line}");
    }
}
