//! Runs whose host was started anew: their directories were in memory, and so were their reports. What
//! is left is a note beside the log, made when the guest was started and removed when the line of the
//! end is there. Of a run that only has a note, the line says what is known: that it ended so.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::{
    outcome,
    registration::{Registration, write_whole},
};
use crate::{
    channel::boot,
    log::{self, Entries},
    run_id::RunId,
    session::{Network, Session},
};

/// A run that goes on, as it stands beside the log.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    /// Which start of the machine it belongs to.
    boot: String,
    /// Where the run is taken up, should that have outlived the boot.
    run_dir: PathBuf,
    /// What its line will say if there is no other.
    session: Session,
}

/// Notes that a run goes on. Without the note it leaves no line if the host is started anew meanwhile,
/// and that is all that it costs.
pub(super) fn note(run_dir: &Path, registration: &Registration) {
    let noted = || {
        let dir = registration.audit_dir.as_deref()?.join(OPEN);
        let network = if registration.terms.is_some() {
            Network::lost(LOST)
        } else {
            Network::unwatched()
        };
        let note = Note {
            boot: boot()?,
            run_dir: run_dir.to_owned(),
            session: Session {
                finished: Some(true),
                network,
                ..outcome::unfinished(registration)
            },
        };
        let text = serde_json::to_vec(&note).ok()?;
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&dir).ok()?;
        write_whole(&dir.join(registration.run_id.as_str()), &text).ok()
    };
    let _ = noted();
}

/// Removes the note of a run that has its line.
pub(super) fn close(registration: &Registration) {
    if let Some(dir) = &registration.audit_dir {
        let _ = fs::remove_file(dir.join(OPEN).join(registration.run_id.as_str()));
    }
}

/// Writes the lines of runs that the host's last end has ended. What cannot be read or written is left
/// for the next time, and so is what whoever recovers runs still finds in its place.
pub fn after_boot(audit_dir: &Path) {
    let entries = fs::read_dir(audit_dir.join(OPEN)).into_iter().flatten();
    let mut left: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            // Another's half of a note is no note.
            let run_id = RunId::try_from(entry.file_name().into_string().ok()?).ok()?;
            let note = read(&entry.path()).ok()?;
            let is_over = boot()? != note.boot && !note.run_dir.exists();
            is_over.then(|| (run_id, entry.path(), note))
        })
        .take(AT_ONCE)
        .collect();
    if left.is_empty() {
        return;
    }
    // The power may have gone between a line and the end of its note.
    for entry in Entries::open(audit_dir).filter(|entry| entry.session.finished == Some(true)) {
        let ended = |run_id: &RunId| entry.session.run_id.as_deref() == Some(run_id.as_str());
        left.retain(|(run_id, path, _)| !ended(run_id) || fs::remove_file(path).is_err());
    }
    for (_, path, note) in left {
        let _ = end(audit_dir, &path, note);
    }
}

fn read(path: &Path) -> io::Result<Note> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Of several that do this at once one gets the lock, and the others find the note gone.
fn end(audit_dir: &Path, path: &Path, note: Note) -> io::Result<()> {
    let file = File::open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    if file.metadata()?.nlink() > 0 && log::record(audit_dir.to_owned(), note.session, None).is_ok()
    {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Lines that one verb writes before it does what it was called for.
const AT_ONCE: usize = 64;
/// Beside the log.
const OPEN: &str = "open";
const LOST: &str =
    "the host was started anew before the run had ended, and its reports were in memory";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use report::ChannelState;
    use tempfile::TempDir;

    use super::{super::registration::tests::registration, *};

    fn noted(allowlist: bool) -> (TempDir, Registration) {
        let dir = tempfile::tempdir().unwrap();
        let mut registration = registration(allowlist);
        registration.audit_dir = Some(dir.path().to_owned());
        note(&dir.path().join("run"), &registration);
        (dir, registration)
    }

    fn path(registration: &Registration) -> PathBuf {
        let dir = registration.audit_dir.as_ref().unwrap();
        dir.join(OPEN).join(registration.run_id.as_str())
    }

    /// As another start of the machine would find it.
    fn reboot(registration: &Registration) {
        let text = fs::read_to_string(path(registration)).unwrap();
        let other = text.replace(&boot().unwrap(), "another");
        fs::write(path(registration), other).unwrap();
    }

    fn lines(dir: &Path) -> Vec<Session> {
        Entries::open(dir).map(|entry| entry.session).collect()
    }

    #[test]
    fn a_run_that_its_host_has_ended_has_one_line_of_lower_bounds() {
        for (allowlist, state, at_least) in [
            (true, ChannelState::Interrupted, Some(0)),
            (false, ChannelState::NotApplicable, None),
        ] {
            let (dir, registration) = noted(allowlist);
            reboot(&registration);
            after_boot(dir.path());
            after_boot(dir.path());
            let lines = lines(dir.path());
            assert_eq!(lines.len(), 1, "{lines:?}");
            let line = &lines[0];
            assert_eq!(line.run_id.as_deref(), Some(registration.run_id.as_str()));
            assert_eq!((line.finished, line.exit_code), (Some(true), None));
            assert_eq!(line.network.egress_channel.as_ref().unwrap().state, state);
            assert_eq!(
                (
                    line.network.egress_denied,
                    line.network.egress_denied_at_least
                ),
                (None, at_least)
            );
            assert!(!path(&registration).exists());
        }
    }

    #[test]
    fn a_run_of_this_start_of_the_machine_is_somebody_else_s_to_end() {
        let (dir, registration) = noted(true);
        after_boot(dir.path());
        assert!(lines(dir.path()).is_empty() && path(&registration).exists());
        close(&registration);
        assert!(!path(&registration).exists());
    }

    #[test]
    fn a_note_has_no_secret_and_is_its_owner_s_alone() {
        let (_dir, registration) = noted(true);
        let text = fs::read_to_string(path(&registration)).unwrap();
        let terms = registration.terms.as_ref().unwrap();
        assert!(
            !text.contains(terms.nonce.expose()) && !text.contains(terms.resume_token.expose())
        );
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let path = path(&registration);
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    }

    #[test]
    fn what_is_no_note_is_passed_over_and_hides_no_other() {
        let (dir, registration) = noted(true);
        reboot(&registration);
        let open = dir.path().join(OPEN);
        fs::write(open.join("half.part"), "{").unwrap();
        fs::write(open.join(RunId::random().unwrap().as_str()), "{}").unwrap();
        after_boot(dir.path());
        assert_eq!(lines(dir.path()).len(), 1);
        assert_eq!(fs::read_dir(open).unwrap().count(), 2);
    }

    #[test]
    fn a_run_whose_directory_outlived_the_boot_is_taken_up_there() {
        let (dir, registration) = noted(true);
        reboot(&registration);
        fs::create_dir(dir.path().join("run")).unwrap();
        after_boot(dir.path());
        assert!(lines(dir.path()).is_empty() && path(&registration).exists());
    }

    #[test]
    fn a_run_that_has_its_line_gets_no_other() {
        let (dir, registration) = noted(true);
        reboot(&registration);
        let line = read(&path(&registration)).unwrap().session;
        log::record(dir.path().to_owned(), line, None).unwrap();
        after_boot(dir.path());
        assert_eq!(lines(dir.path()).len(), 1);
        assert!(!path(&registration).exists());
    }

    #[test]
    fn whoever_comes_second_writes_no_second_line() {
        let (dir, registration) = noted(true);
        reboot(&registration);
        let held = File::open(path(&registration)).unwrap();
        flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        after_boot(dir.path());
        assert!(lines(dir.path()).is_empty());
    }
}
