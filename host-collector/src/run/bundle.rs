//! The host's CA bundle, for networks that have authorities of their own.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use crate::environment::Environment;

/// Why there is no bundle to give.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// There is none where bundles are.
    #[error("--host-ca: no CA bundle found on this host; name it with --host-ca=PATH")]
    NotFound,
    /// It cannot be read.
    #[error("--host-ca: {path}: {source}; name a readable bundle with --host-ca=PATH")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It holds something else.
    #[error("--host-ca: {path} holds no PEM certificate; name a bundle with --host-ca=PATH")]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
}

/// The bundle that was named, or the host's: what `SSL_CERT_FILE` says, or where distributions put
/// it. Without links, since the engine mounts what it finds at the path.
pub(super) fn bundle(
    named: Option<&Path>,
    environment: &Environment,
) -> Result<PathBuf, BundleError> {
    let of_variable = || environment.get("SSL_CERT_FILE").map(PathBuf::from);
    let usual = || USUAL.iter().map(PathBuf::from).find(|path| path.is_file());
    let path = named
        .map(Path::to_owned)
        .or_else(of_variable)
        .or_else(usual)
        .ok_or(BundleError::NotFound)?;
    let unreadable = |source| BundleError::Unreadable {
        path: path.clone(),
        source,
    };
    let real = path.canonicalize().map_err(unreadable)?;
    let mut content = Vec::new();
    File::open(&real)
        .and_then(|file| file.take(LARGEST).read_to_end(&mut content))
        .map_err(unreadable)?;
    if content.windows(MARK.len()).any(|window| window == MARK) {
        Ok(real)
    } else {
        Err(BundleError::NoCertificate { path })
    }
}

/// Debian and Arch, Fedora, SUSE, Alpine.
const USUAL: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
const MARK: &[u8] = b"-----BEGIN CERTIFICATE-----";
const LARGEST: u64 = 16 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_named_one_is_taken_before_the_variable_s() {
        let dir = tempfile::tempdir().unwrap();
        let (named, set) = (dir.path().join("named"), dir.path().join("set"));
        for path in [&named, &set] {
            fs::write(path, "x\n-----BEGIN CERTIFICATE-----\n").unwrap();
        }
        let environment = Environment::of([("SSL_CERT_FILE", set.to_str().unwrap())]);
        assert_eq!(
            bundle(Some(&named), &environment).unwrap(),
            named.canonicalize().unwrap()
        );
        assert_eq!(
            bundle(None, &environment).unwrap(),
            set.canonicalize().unwrap()
        );
    }

    #[test]
    fn a_link_is_followed_to_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, MARK).unwrap();
        std::os::unix::fs::symlink(&file, dir.path().join("link")).unwrap();
        let found = bundle(Some(&dir.path().join("link")), &Environment::default()).unwrap();
        assert_eq!(found, file.canonicalize().unwrap());
    }

    #[test]
    fn what_is_no_bundle_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key.pem");
        fs::write(&file, "-----BEGIN PRIVATE KEY-----\n").unwrap();
        for path in [file.as_path(), Path::new("/nowhere"), dir.path()] {
            let line = bundle(Some(path), &Environment::default())
                .unwrap_err()
                .to_string();
            assert!(
                line.contains(path.to_str().unwrap()) && line.contains("--host-ca=PATH"),
                "{line}"
            );
        }
    }
}
