//! Reads a file of entries: an allowlist, or a preset.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::fs::OFlags;

/// The text of a regular file of at most [`MOST`] bytes.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    // Or opening a named pipe would wait for somebody to write to it.
    let file = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    // A list that is cut would still be a list, and another one.
    if file.take(MOST + 1).read_to_string(&mut text)? as u64 > MOST {
        return Err(io::Error::other(format!("larger than {MOST} bytes")));
    }
    Ok(text)
}

/// A hundred thousand entries, each with a long comment.
const MOST: u64 = 16 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_no_file_or_no_text_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        let binary = dir.path().join("binary");
        fs::write(&binary, [0xff, 0xfe]).unwrap();
        for path in [Path::new("/dev/null"), dir.path(), &pipe, &binary] {
            assert!(read(path).is_err(), "{}", path.display());
        }
    }

    #[test]
    fn a_file_is_read_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("list");
        let most = usize::try_from(MOST).unwrap();
        fs::write(&path, vec![b'a'; most]).unwrap();
        assert_eq!(read(&path).unwrap().len(), most);
        fs::write(&path, vec![b'a'; most + 1]).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("larger than"));
    }
}
