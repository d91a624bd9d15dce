//! The allowlist that the environment asks for: entries, presets, or a file of them.

use std::{
    borrow::Cow,
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use policy::{Policy, Presets};
use rustix::fs::OFlags;

use crate::failure::Failure;

/// The variable that asks for it.
pub(crate) const ALLOW: &str = "SANDBOX_EGRESS_ALLOW";
/// Those in which it goes on where one cannot hold it and no file can be had. All of them together
/// are about what a program can be started with.
pub(crate) const ALLOW_CONTINUED: [&str; 11] = [
    "SANDBOX_EGRESS_ALLOW_2",
    "SANDBOX_EGRESS_ALLOW_3",
    "SANDBOX_EGRESS_ALLOW_4",
    "SANDBOX_EGRESS_ALLOW_5",
    "SANDBOX_EGRESS_ALLOW_6",
    "SANDBOX_EGRESS_ALLOW_7",
    "SANDBOX_EGRESS_ALLOW_8",
    "SANDBOX_EGRESS_ALLOW_9",
    "SANDBOX_EGRESS_ALLOW_10",
    "SANDBOX_EGRESS_ALLOW_11",
    "SANDBOX_EGRESS_ALLOW_12",
];

/// Reads the variable's value: a list, or `@` and the absolute path of a file that has one, for a
/// variable holds at most 128 KiB (`execve(2)`). All of it is read before there is a guest.
pub(crate) fn policy(value: &str) -> Result<Policy, Failure> {
    policy_with(value, Path::new(PRESETS))
}

fn policy_with(value: &str, presets: &Path) -> Result<Policy, Failure> {
    let list = match file_of(value) {
        Some(path) => Cow::Owned(read(path).map_err(unreadable(path))?),
        None => Cow::Borrowed(value),
    };
    let entries = known_presets(&list, presets)?.expand(&list);
    entries.and_then(Policy::from_entries).map_err(|error| {
        Failure::config(
            ALLOW,
            error,
            "mend the entry, or unset the variable to run without an allowlist",
        )
    })
}

fn file_of(value: &str) -> Option<&Path> {
    let path = value.trim().strip_prefix('@')?;
    (path.starts_with('/') && !path.contains([',', '\n'])).then(|| Path::new(path))
}

/// Those compiled in, and in their place those that whoever made the image put into `directory`,
/// which is looked at only if the list may name one.
fn known_presets(list: &str, directory: &Path) -> Result<Presets, Failure> {
    let mut presets = Presets::built_in();
    let is_asked_for = list
        .split([',', '\n'])
        .any(|entry| entry.trim_start().starts_with('@'));
    if !is_asked_for {
        return Ok(presets);
    }
    let files = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(presets),
        files => files.map_err(unreadable(directory))?,
    };
    for file in files {
        let path = file.map_err(unreadable(directory))?.path();
        let stem = path.file_stem().map(OsStr::to_string_lossy);
        let name = stem
            .filter(|stem| path.extension() == Some(OsStr::new("txt")) && !stem.starts_with('.'));
        if let Some(name) = name {
            let list = read(&path).map_err(unreadable(&path))?;
            presets.insert(&name, list).map_err(|error| {
                let problem = format!("preset {}: {error}", path.display());
                Failure::config(ALLOW, problem, "rename the file")
            })?;
        }
    }
    Ok(presets)
}

/// The text of a regular file of bounded size, whole or not at all.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    // Or opening a named pipe would wait for somebody to write to it.
    let file = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut list = String::new();
    // A list that is cut would still be a list, and another one.
    if file.take(MOST + 1).read_to_string(&mut list)? as u64 > MOST {
        return Err(io::Error::other(format!("larger than {MOST} bytes")));
    }
    Ok(list)
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Failure {
    move |error| {
        let problem = format!("{}: {error}", path.display());
        Failure::config(ALLOW, problem, "name a file of entries that root can read")
    }
}

const PRESETS: &str = "/etc/sandbox-egress/presets.d";
/// A million canonical names, about as many as a policy takes.
const MOST: u64 = 64 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A directory of files, gone with the value.
    struct Files(PathBuf);

    impl Files {
        fn new(files: &[(&str, &str)]) -> Self {
            let thread = std::thread::current();
            let name = format!("allow-{}-{:?}", std::process::id(), thread.id());
            let files_of = Self(std::env::temp_dir().join(name));
            fs::create_dir_all(&files_of.0).unwrap();
            for (name, text) in files {
                fs::write(files_of.0.join(name), text).unwrap();
            }
            files_of
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn entries(value: &str, files: &Files) -> Result<Vec<String>, String> {
        policy_with(value, &files.0)
            .map(|policy| policy.entries())
            .map_err(|failure| failure.one_line())
    }

    #[test]
    fn a_file_stands_for_its_list_however_long_that_is() {
        let long: Vec<String> = (0..100_000).map(|n| format!("n{n}.example\n")).collect();
        let files = Files::new(&[("list", &long.concat()), ("short", "# a\na.example # b")]);
        let value = format!("@{}", files.0.join("list").display());
        assert_eq!(entries(&value, &files).unwrap().len(), 100_000);
        let value = format!(" @{}\n", files.0.join("short").display());
        assert_eq!(entries(&value, &files).unwrap(), ["a.example"]);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named_with_variable_and_remedy() {
        let files = Files::new(&[]);
        let directory = format!("@{}", files.0.display());
        for value in ["@/nowhere/list", "@/dev/null", &directory] {
            let line = entries(value, &files).unwrap_err();
            assert!(
                line.starts_with(&format!("{ALLOW}: {}: ", &value[1..]))
                    && line.contains("that root can read"),
                "{line}"
            );
        }
    }

    #[test]
    fn an_empty_file_is_an_empty_list() {
        let files = Files::new(&[("list", "# nothing\n")]);
        let value = format!("@{}", files.0.join("list").display());
        let line = entries(&value, &files).unwrap_err();
        assert!(line.contains("names nothing"), "{line}");
    }

    #[test]
    fn presets_of_the_image_take_the_place_of_those_compiled_in() {
        let files = Files::new(&[("github.txt", "git.example"), ("NOTES", "words")]);
        assert_eq!(
            entries("a.example,@github", &files).unwrap(),
            ["a.example", "git.example"]
        );
        assert!(
            entries("@anthropic", &files)
                .unwrap()
                .contains(&"api.anthropic.com".to_owned())
        );
    }

    #[test]
    fn what_only_a_host_knows_is_refused_with_the_remedy() {
        let files = Files::new(&[]);
        for (value, part) in [
            ("@tool:pip", "host-collector writes @tool entries out"),
            ("@githib", "did you mean @github?"),
            ("a.example,@/list", "a file of entries is named alone"),
        ] {
            let line = entries(value, &files).unwrap_err();
            assert!(line.contains(part) && line.starts_with(ALLOW), "{line}");
        }
    }

    #[test]
    fn a_preset_of_an_unusable_name_is_told_to_those_who_use_presets() {
        let files = Files::new(&[("Not A Name.txt", "")]);
        assert!(entries("a.example,b@10.0.0.0/8", &files).is_ok());
        let line = entries("@github", &files).unwrap_err();
        assert!(
            line.contains("Not A Name.txt") && line.contains("rename the file"),
            "{line}"
        );
    }
}
