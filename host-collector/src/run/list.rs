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

/// What to say to the entrypoint: the entries, in one variable if that can hold them, or else `@` and
/// the file in which they are. That is laid into `directory`, which the container sees, read-only, at
/// [`HOST_DIRECTORY`]; where there is none, they go on in further variables.
pub(super) fn hand_over(
    policy: &Policy,
    directory: Option<&Path>,
) -> Result<Vec<String>, SetUpError> {
    let entries = policy.entries();
    let list = entries.join(",");
    if list.len() <= MOST_IN_VARIABLE {
        return Ok(vec![list]);
    }
    let Some(directory) = directory else {
        return in_variables(&list);
    };
    let path = directory.join(FILE);
    write(&path, &entries).map_err(|source| SetUpError::List { path, source })?;
    Ok(vec![format!("@{HOST_DIRECTORY}/{FILE}")])
}

/// Canonical entries are ASCII, and may be cut anywhere: the entrypoint puts the pieces together.
fn in_variables(list: &str) -> Result<Vec<String>, SetUpError> {
    let pieces: Vec<String> = list
        .as_bytes()
        .chunks(MOST_IN_VARIABLE)
        .map(|piece| String::from_utf8_lossy(piece).into_owned())
        .collect();
    if pieces.len() <= MOST_VARIABLES {
        Ok(pieces)
    } else {
        Err(SetUpError::LongList {
            size: list.len(),
            most: MOST_VARIABLES * MOST_IN_VARIABLE,
        })
    }
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
/// Arguments and environment of a program have 2 MiB in all, where nobody has raised that.
const MOST_VARIABLES: usize = 12;
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
            ["a.example,b.example"]
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_longer_one_is_laid_beside_the_channel_and_is_the_same_list() {
        let dir = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..10_000).map(|n| format!("name-{n}.example")).collect();
        let policy = Policy::from_entries(&names).unwrap();
        let said = hand_over(&policy, Some(dir.path())).unwrap();
        assert_eq!(said, ["@/run/sandbox-egress/host/allow.txt"]);
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

    #[test]
    fn without_a_directory_it_goes_on_in_further_variables_as_far_as_a_program_takes_them() {
        let list = |count: u32| (0..count).map(|n| format!("name-{n}.example"));
        let policy = Policy::from_entries(list(20_000)).unwrap();
        let said = hand_over(&policy, None).unwrap();
        assert_eq!(said.len(), 3);
        assert!(said.iter().all(|piece| piece.len() <= MOST_IN_VARIABLE));
        let laid = Policy::parse(&said.concat()).unwrap();
        assert_eq!(laid.digest(), policy.digest());
        let policy = Policy::from_entries(list(100_000)).unwrap();
        let line = hand_over(&policy, None).unwrap_err().to_string();
        assert!(line.contains("nothing can be mounted"), "{line}");
    }
}
