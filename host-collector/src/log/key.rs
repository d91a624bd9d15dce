//! The keys of checkpoints: Ed25519, in the PEM files that other tools read and write (RFC 8410).

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use ed25519_dalek::{
    SigningKey, VerifyingKey,
    pkcs8::{
        DecodePrivateKey as _, DecodePublicKey as _, EncodePrivateKey as _, EncodePublicKey as _,
        spki::der::pem::LineEnding,
    },
};

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The system refused something.
    #[error("{verb} {path}: {source}")]
    Io {
        /// What was tried.
        verb: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The file holds something else.
    #[error(
        "{path} holds no Ed25519 {kind} key in PEM; make a pair with `host-collector keygen FILE`"
    )]
    NoKey {
        /// The file.
        path: PathBuf,
        /// `secret` or `public`.
        kind: &'static str,
    },
    /// Others may read it.
    #[error("{path} can be read by others; close it with `chmod 600`, and think of it as known")]
    Open {
        /// The file.
        path: PathBuf,
    },
    /// There is no randomness.
    #[error("make a key: {0}")]
    Random(#[from] getrandom::Error),
}

/// Makes a pair: the secret key in `file`, for its owner alone, the public one beside it. Returns
/// the path of that.
///
/// # Errors
/// Also if there is a file already: a key that is written over is lost.
pub(crate) fn make(file: &Path) -> Result<PathBuf, KeyError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)?;
    let key = SigningKey::from_bytes(&seed);
    let secret = key
        .to_pkcs8_pem(LineEnding::LF)
        .map_err(|_| no_key(file, "secret"))?;
    let public = key.verifying_key().to_public_key_pem(LineEnding::LF);
    let public = public.map_err(|_| no_key(file, "public"))?;
    let beside = beside(file);
    write_new(file, secret.as_bytes(), 0o600)?;
    write_new(&beside, public.as_bytes(), 0o644)?;
    Ok(beside)
}

/// Reads a secret key, and insists that nobody else can.
pub(crate) fn secret(path: &Path) -> Result<SigningKey, KeyError> {
    let text = read(path)?;
    let mode = fs::metadata(path).map_err(io_error("read", path))?.mode();
    if mode & 0o077 != 0 {
        return Err(KeyError::Open {
            path: path.to_owned(),
        });
    }
    SigningKey::from_pkcs8_pem(&text).map_err(|_| no_key(path, "secret"))
}

/// Reads a public key.
pub(crate) fn public(path: &Path) -> Result<VerifyingKey, KeyError> {
    VerifyingKey::from_public_key_pem(&read(path)?).map_err(|_| no_key(path, "public"))
}

fn read(path: &Path) -> Result<String, KeyError> {
    let mut text = String::new();
    let file = File::open(path).map_err(io_error("read", path))?;
    // A key is some hundred bytes, whatever somebody names by mistake.
    io::Read::read_to_string(&mut io::Read::take(file, 4096), &mut text)
        .map_err(io_error("read", path))?;
    Ok(text)
}

fn write_new(path: &Path, content: &[u8], mode: u32) -> Result<(), KeyError> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path);
    let written = file.and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    written.map_err(io_error("write", path))
}

fn beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".pub");
    name.into()
}

fn no_key(path: &Path, kind: &'static str) -> KeyError {
    KeyError::NoKey {
        path: path.to_owned(),
        kind,
    }
}

fn io_error(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeyError {
    move |source| KeyError::Io {
        verb,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_pair_is_two_files_and_the_secret_one_is_its_owner_s() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        let beside = make(&file).unwrap();
        assert_eq!(beside, dir.path().join("key.pub"));
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(
            secret(&file).unwrap().verifying_key(),
            public(&beside).unwrap()
        );
        assert!(
            fs::read_to_string(&file)
                .unwrap()
                .starts_with("-----BEGIN PRIVATE KEY-----\n")
        );
    }

    #[test]
    fn a_key_is_never_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        make(&file).unwrap();
        let first = fs::read(&file).unwrap();
        let error = make(&file).unwrap_err().to_string();
        assert!(
            error.starts_with("write ") && error.contains("/key: "),
            "{error}"
        );
        assert_eq!(fs::read(&file).unwrap(), first);
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        make(&file).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(secret(&file), Err(KeyError::Open { .. })));
    }

    #[test]
    fn what_is_no_key_is_named_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        let beside = make(&file).unwrap();
        let nonsense = dir.path().join("x");
        fs::write(
            &nonsense,
            "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        )
        .unwrap();
        for path in [&file, &nonsense] {
            let error = public(path).unwrap_err().to_string();
            assert!(
                error.contains("no Ed25519 public key in PEM; make a pair"),
                "{error}"
            );
        }
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(secret(&beside), Err(KeyError::NoKey { .. })));
        assert!(matches!(
            public(Path::new("/nowhere")),
            Err(KeyError::Io { .. })
        ));
    }
}
