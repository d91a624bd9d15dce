//! Checkpoints: signatures over the chain, beside the log. Each vouches for the line that it names,
//! and through the chain for every line before that.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};

use super::{
    LogError,
    lines::Forwards,
    verify::{Kind, Place, Report},
};
use crate::run_id::{hex, unhex};

/// A line of `checkpoints.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Checkpoint {
    v: u32,
    /// When it was signed, RFC 3339.
    time: String,
    host: String,
    /// Lines that the log held then.
    lines: u64,
    /// Runs that it had forgotten.
    dropped_runs: u64,
    /// SHA-256 of its last line.
    last: String,
    /// The public key, in hexadecimal.
    key: String,
    /// The signature, in hexadecimal.
    sig: String,
}

/// What the checkpoints say of a log.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Vouched {
    /// Checkpoints of this key.
    pub(crate) checkpoints: u64,
    /// When the newest was signed.
    pub(crate) newest: Option<String>,
    /// Lines of the log that came after it; none where it is not about this log.
    pub(crate) lines_since: Option<u64>,
}

/// Where they are by default.
#[must_use]
pub(crate) fn beside(dir: &Path) -> PathBuf {
    dir.join("checkpoints.jsonl")
}

/// Checks those of a key against a log, and adds what does not hold to the report.
///
/// The line that the newest one names must be in the log: otherwise the end was cut off, or all of
/// it was written anew. Older ones may be about lines that rotation has dropped since.
///
/// # Errors
/// When the file is there and cannot be read.
pub(crate) fn check(
    file: &Path,
    key: &VerifyingKey,
    report: &mut Report,
) -> Result<Vouched, LogError> {
    let mut vouched = Vouched::default();
    let mut newest = None;
    let io = |verb| LogError::io(verb, file);
    let open = match File::open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vouched),
        open => open.map_err(io("open"))?,
    };
    let mut lines = Forwards::of(open).map_err(io("read"))?;
    let (mut content, mut number) = (Vec::new(), 0_u64);
    while lines.next_into(&mut content).map_err(io("read"))?.is_some() {
        number += 1;
        let mut found = |why: &str| {
            let why = format!("line {number} of the checkpoints {why}");
            report.findings.add(Place::default(), Kind::Checkpoint, why);
        };
        match serde_json::from_slice::<Checkpoint>(&content) {
            Err(_) => found("cannot be read"),
            // Whose key was changed keeps the checkpoints of the old one.
            Ok(checkpoint) if checkpoint.key != hex(key.as_bytes()) => {}
            Ok(checkpoint) if !checkpoint.is_signed_by(key) => found("is not what was signed"),
            Ok(checkpoint) => {
                vouched.checkpoints += 1;
                newest = Some(checkpoint);
            }
        }
    }
    if let Some(newest) = newest {
        vouched.lines_since = report.chain.after(&newest.last);
        if vouched.lines_since.is_none() {
            let why = format!(
                "the last line at the newest checkpoint, of {}, is not in the log",
                newest.time
            );
            report.findings.add(Place::default(), Kind::Checkpoint, why);
        }
        vouched.newest = Some(newest.time);
    }
    Ok(vouched)
}

/// Signs the log as it was found. Nothing is signed for a log without lines.
///
/// # Errors
/// When the checkpoint cannot be written.
pub(crate) fn sign(
    file: &Path,
    key: &SigningKey,
    report: &Report,
    time: String,
    host: String,
) -> Result<bool, LogError> {
    let Some(last) = report.chain.end() else {
        return Ok(false);
    };
    let mut checkpoint = Checkpoint {
        v: 1,
        time,
        host,
        lines: report.lines,
        dropped_runs: report.dropped_runs,
        last,
        key: hex(key.verifying_key().as_bytes()),
        sig: String::new(),
    };
    checkpoint.sig = hex(&key.sign(checkpoint.message()?.as_bytes()).to_bytes());
    let mut line = serde_json::to_vec(&checkpoint)?;
    line.push(b'\n');
    let io = |verb| LogError::io(verb, file);
    let open = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(file);
    let mut out = open.map_err(io("open"))?;
    out.write_all(&line).map_err(io("append to"))?;
    out.sync_data().map_err(io("flush"))?;
    Ok(true)
}

impl Checkpoint {
    /// What is signed: the fields before the signature, in JSON, so that no two checkpoints read
    /// the same, behind a line that no other use of the key begins with.
    fn message(&self) -> serde_json::Result<String> {
        let fields = (
            self.v,
            &self.time,
            &self.host,
            self.lines,
            self.dropped_runs,
            &self.last,
            &self.key,
        );
        let fields = serde_json::to_string(&fields)?;
        Ok(format!(
            "sandbox-egress checkpoint of a session log\n{fields}"
        ))
    }

    fn is_signed_by(&self, key: &VerifyingKey) -> bool {
        let signature = unhex::<64>(&self.sig).map(|sig| Signature::from_bytes(&sig));
        let message = self.message().ok();
        signature
            .zip(message)
            .is_some_and(|(sig, message)| key.verify_strict(message.as_bytes(), &sig).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{
        log::{Limits, Log, generations, verify},
        session::Session,
    };

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_bytes(&[seed; 32])
    }

    fn append(dir: &Path, runs: usize) {
        let log = Log::open(dir, Limits { file: 900 }).unwrap();
        for n in 0..runs {
            let session = Session {
                v: Some(2),
                run_id: Some(n.to_string()),
                ..Session::default()
            };
            log.append(&session).unwrap();
        }
    }

    fn signed(dir: &Path, key: &SigningKey) -> bool {
        let report = verify(dir, &mut |_, _| {});
        let time = "2026-01-31T12:00:00Z".into();
        sign(&beside(dir), key, &report, time, "h".into()).unwrap()
    }

    fn checked(dir: &Path, key: &SigningKey) -> (Vouched, u64) {
        let mut report = verify(dir, &mut |_, _| {});
        let vouched = check(&beside(dir), &key.verifying_key(), &mut report).unwrap();
        (vouched, report.findings.count())
    }

    #[test]
    fn a_log_that_goes_on_after_a_checkpoint_is_sound() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), 3);
        assert!(signed(dir.path(), &key(1)));
        append(dir.path(), 2);
        let (vouched, findings) = checked(dir.path(), &key(1));
        assert_eq!(
            (vouched.checkpoints, vouched.lines_since, findings),
            (1, Some(2), 0)
        );
    }

    #[test]
    fn older_checkpoints_may_be_about_lines_that_rotation_dropped() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), 3);
        signed(dir.path(), &key(1));
        append(dir.path(), 100);
        signed(dir.path(), &key(1));
        let (vouched, findings) = checked(dir.path(), &key(1));
        assert_eq!(
            (vouched.checkpoints, vouched.lines_since, findings),
            (2, Some(0), 0)
        );
    }

    #[test]
    fn a_log_that_was_cut_and_whose_mark_was_forged_is_found_by_its_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), 2);
        signed(dir.path(), &key(1));
        let file = generations::file(dir.path(), 0);
        let text = fs::read_to_string(&file).unwrap();
        let first = text.lines().next().unwrap();
        fs::write(&file, format!("{first}\n")).unwrap();
        fs::remove_file(dir.path().join("sessions.lock")).unwrap();
        let (vouched, findings) = checked(dir.path(), &key(1));
        assert_eq!((vouched.lines_since, findings), (None, 1));
    }

    #[test]
    fn a_log_that_was_written_anew_is_found_by_its_checkpoint() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        append(dir.path(), 3);
        signed(dir.path(), &key(1));
        append(other.path(), 2);
        fs::copy(beside(dir.path()), beside(other.path())).unwrap();
        assert_eq!(checked(other.path(), &key(1)).1, 1);
    }

    #[test]
    fn no_field_of_a_checkpoint_can_be_changed() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), 3);
        signed(dir.path(), &key(1));
        let text = fs::read_to_string(beside(dir.path())).unwrap();
        for (from, to) in [
            ("\"v\":1", "\"v\":2"),
            ("2026", "2027"),
            ("\"host\":\"h\"", "\"host\":\"i\""),
            ("\"lines\":3", "\"lines\":4"),
            ("\"dropped_runs\":0", "\"dropped_runs\":1"),
            ("\"sig\":\"", "\"sig\":\"00"),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text, "{from}");
            fs::write(beside(dir.path()), changed).unwrap();
            let (vouched, findings) = checked(dir.path(), &key(1));
            assert_eq!((vouched.checkpoints, findings), (0, 1), "{from}");
        }
    }

    #[test]
    fn checkpoints_of_another_key_vouch_for_nothing_and_are_no_finding() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), 3);
        signed(dir.path(), &key(1));
        assert_eq!(checked(dir.path(), &key(2)), (Vouched::default(), 0));
    }

    #[test]
    fn what_is_no_checkpoint_is_named_and_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), 3);
        fs::write(beside(dir.path()), "torn{\n").unwrap();
        signed(dir.path(), &key(1));
        let (vouched, findings) = checked(dir.path(), &key(1));
        assert_eq!((vouched.checkpoints, findings), (1, 1));
    }

    #[test]
    fn an_empty_log_is_not_signed() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!signed(dir.path(), &key(1)));
        assert!(!beside(dir.path()).exists());
    }
}
