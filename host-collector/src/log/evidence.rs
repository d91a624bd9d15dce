//! The details of runs that do not fit a line: a directory for each, bounded in all.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, BufReader, Read as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

/// `runs/` beside the log.
#[derive(Debug)]
pub struct Evidence {
    runs: PathBuf,
    limit: u64,
}

/// What has become of the details that a line names.
#[must_use]
pub fn evidence_of(path: &str) -> &'static str {
    if Path::new(path).is_dir() {
        "kept"
    } else {
        "pruned"
    }
}

impl Evidence {
    /// The details that belong to the log in `log_dir`: 512 MiB at most.
    #[must_use]
    pub fn of(log_dir: &Path) -> Self {
        Self {
            runs: log_dir.join("runs"),
            limit: 512 * 1024 * 1024,
        }
    }

    /// Keeps the journal of a run, for its owner alone, and returns the directory. The oldest runs
    /// make room for it.
    ///
    /// # Errors
    /// `AlreadyExists` where another journal is kept under this name. The same one again is no
    /// error: a collector that was killed before it wrote the line has left it.
    pub fn keep(&self, run_id: &str, journal: &Path) -> io::Result<PathBuf> {
        let dir = self.runs.join(run_id);
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let (part, kept) = (dir.join("journal.part"), dir.join("journal.jsonl"));
        let placed = seal(journal, &part).and_then(|()| place(&part, &kept));
        if let Err(error) = placed {
            // Half a journal would pass for a whole one. What is kept already stays, and with it
            // the directory.
            let _ = fs::remove_file(&part);
            let _ = fs::remove_dir(&dir);
            return Err(error);
        }
        // Too much is kept rather than this run's details lost: the next run prunes again.
        let _ = self.prune(&dir);
        Ok(dir)
    }

    fn prune(&self, newest: &Path) -> io::Result<()> {
        let mut runs = Vec::new();
        for entry in fs::read_dir(&self.runs)? {
            let path = entry?.path();
            if let Ok((size, changed)) = weigh(&path) {
                runs.push((changed, size, path));
            }
        }
        let mut total: u64 = runs.iter().map(|(_, size, _)| size).sum();
        runs.sort();
        for (_, size, path) in runs {
            if total <= self.limit {
                break;
            }
            // What another collector removed first is gone all the same.
            if path != newest && fs::remove_dir_all(&path).is_ok() {
                total = total.saturating_sub(size);
            }
        }
        Ok(())
    }
}

/// Copies a journal. Nobody writes to the copy again: what is changed later was changed by hand.
fn seal(journal: &Path, part: &Path) -> io::Result<()> {
    // One that a killed collector left may be sealed already.
    let _ = fs::remove_file(part);
    let mut copy = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(part)?;
    io::copy(&mut File::open(journal)?, &mut copy)?;
    copy.set_permissions(Permissions::from_mode(0o400))
}

/// Gives it its name, whole, unless there is one with other content. Whoever attends to the run holds
/// its lock, so nobody else does this meanwhile.
fn place(part: &Path, kept: &Path) -> io::Result<()> {
    if !kept.exists() {
        return fs::rename(part, kept);
    }
    if !same(part, kept)? {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    fs::remove_file(part)
}

fn same(one: &Path, other: &Path) -> io::Result<bool> {
    let (one, other) = (File::open(one)?, File::open(other)?);
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut one, mut other) = (BufReader::new(one).bytes(), BufReader::new(other).bytes());
    loop {
        match (one.next().transpose()?, other.next().transpose()?) {
            (None, None) => return Ok(true),
            (one, other) if one == other => {}
            _ => return Ok(false),
        }
    }
}

fn weigh(dir: &Path) -> io::Result<(u64, SystemTime)> {
    let mut size = 0_u64;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        // Links are weighed and not followed: they may lead anywhere, and in circles.
        let meta = entry.metadata()?;
        let within = if meta.is_dir() {
            weigh(&entry.path())?.0
        } else {
            meta.len()
        };
        size = size.saturating_add(within);
    }
    Ok((size, fs::metadata(dir)?.modified()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_can_read_what_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("j");
        fs::write(&journal, "x").unwrap();
        let kept = Evidence::of(dir.path()).keep("ab", &journal).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(&kept), mode(&kept.join("journal.jsonl"))),
            (0o700, 0o400)
        );
    }

    #[test]
    fn the_oldest_runs_make_room() {
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("j");
        fs::write(&journal, "0123456789").unwrap();
        let evidence = Evidence {
            limit: 25,
            ..Evidence::of(dir.path())
        };
        let kept: Vec<_> = ["c", "b", "a"]
            .iter()
            .enumerate()
            .map(|(age, run)| {
                let path = evidence.keep(run, &journal).unwrap();
                let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(age as u64);
                File::open(&path).unwrap().set_modified(time).unwrap();
                path
            })
            .collect();
        assert_eq!(
            kept.iter().map(|path| path.exists()).collect::<Vec<_>>(),
            [false, true, true]
        );
        assert_eq!(evidence_of(kept[0].to_str().unwrap()), "pruned");
    }

    #[test]
    fn a_run_that_is_over_the_bound_alone_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("j");
        fs::write(&journal, "0123456789").unwrap();
        let evidence = Evidence {
            limit: 5,
            ..Evidence::of(dir.path())
        };
        assert!(evidence.keep("a", &journal).unwrap().exists());
    }

    #[test]
    fn the_details_of_one_run_are_not_written_over_by_another() {
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("j");
        fs::write(&journal, "x").unwrap();
        let evidence = Evidence::of(dir.path());
        let kept = evidence.keep("a", &journal).unwrap();
        for other in ["y", "xx"] {
            fs::write(&journal, other).unwrap();
            let error = evidence.keep("a", &journal).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(fs::read_to_string(kept.join("journal.jsonl")).unwrap(), "x");
        assert_eq!(fs::read_dir(kept).unwrap().count(), 1);
    }

    #[test]
    fn what_a_killed_collector_kept_or_half_kept_is_kept_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("j");
        fs::write(&journal, "0123").unwrap();
        let evidence = Evidence::of(dir.path());
        let half = dir.path().join("runs/a");
        fs::create_dir_all(&half).unwrap();
        fs::write(half.join("journal.part"), "01").unwrap();
        for _ in 0..2 {
            let kept = evidence.keep("a", &journal).unwrap();
            assert_eq!(
                fs::read_to_string(kept.join("journal.jsonl")).unwrap(),
                "0123"
            );
            assert_eq!(fs::read_dir(kept).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_journal_that_cannot_be_read_leaves_no_directory_that_looks_kept() {
        let dir = tempfile::tempdir().unwrap();
        let evidence = Evidence::of(dir.path());
        assert!(evidence.keep("a", Path::new("/nowhere")).is_err());
        assert!(
            evidence.keep("b", dir.path()).is_err(),
            "a directory is no journal"
        );
        assert_eq!(fs::read_dir(dir.path().join("runs")).unwrap().count(), 0);
    }

    #[test]
    fn what_lies_deeper_counts_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("artifacts/a");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("x"), vec![0; 5000]).unwrap();
        std::os::unix::fs::symlink("/", deep.join("root")).unwrap();
        let (size, _) = weigh(dir.path()).unwrap();
        assert!((5000..6000).contains(&size), "{size}");
    }

    #[test]
    fn what_is_there_is_kept_and_what_is_not_was_pruned() {
        assert_eq!(
            (evidence_of("/"), evidence_of("/nowhere")),
            ("kept", "pruned")
        );
    }
}
