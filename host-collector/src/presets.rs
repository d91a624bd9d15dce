//! The presets of this host: those compiled in, and those of its presets directories.
//!
//! Only the administrator's and the user's own directories are read, never the one that a run is
//! started from: a guest may have left files there.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use policy::{PresetNameError, Presets};

use crate::{environment::Environment, list_file};

/// Why the presets of this host are not known.
#[derive(Debug, thiserror::Error)]
pub enum PresetsError {
    /// A file or directory cannot be read.
    #[error("presets: {path}: {source}; make it readable, or move it away")]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file has a name that no entry could refer to.
    #[error("presets: {path}: {source}; rename the file")]
    Name {
        /// The file.
        path: PathBuf,
        /// What is wrong with its name.
        source: PresetNameError,
    },
}

/// The presets there are. One of the user's takes the place of the administrator's of the same name,
/// and that of the one compiled in.
pub fn presets(environment: &Environment) -> Result<Presets, PresetsError> {
    let mut presets = Presets::built_in();
    add(&mut presets, Path::new(OF_THE_HOST))?;
    if let Some(directory) = environment.presets_dir() {
        add(&mut presets, &directory)?;
    }
    Ok(presets)
}

/// Adds each `NAME.txt` of a directory, if there is one. Hidden files are what editors leave.
fn add(presets: &mut Presets, directory: &Path) -> Result<(), PresetsError> {
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |source| PresetsError::Unreadable { path, source }
    };
    let files = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        files => files.map_err(unreadable(directory))?,
    };
    for file in files {
        let path = file.map_err(unreadable(directory))?.path();
        let Some(stem) = path.file_stem().filter(|_| is_preset(&path)) else {
            continue;
        };
        let list = list_file::read(&path).map_err(unreadable(&path))?;
        presets
            .insert(&stem.to_string_lossy(), list)
            .map_err(|source| PresetsError::Name { path, source })?;
    }
    Ok(())
}

fn is_preset(path: &Path) -> bool {
    let is_hidden = path
        .file_name()
        .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    !is_hidden && path.extension() == Some(OsStr::new("txt"))
}

const OF_THE_HOST: &str = "/etc/sandbox-egress/presets.d";

#[cfg(test)]
mod tests {
    use super::*;

    /// A home with presets, and the environment of whoever lives there.
    fn home(files: &[(&str, &str)]) -> (tempfile::TempDir, Environment) {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join(".config/sandbox/presets.d");
        fs::create_dir_all(&directory).unwrap();
        for (name, list) in files {
            fs::write(directory.join(name), list).unwrap();
        }
        let environment = Environment::of([("HOME", home.path().to_str().unwrap())]);
        (home, environment)
    }

    #[test]
    fn a_file_of_the_user_takes_the_place_of_what_is_built_in() {
        let (_home, environment) = home(&[
            ("github.txt", "git.example"),
            ("ours.txt", "@github\na.example # ours"),
        ]);
        let presets = presets(&environment).unwrap();
        assert_eq!(
            presets.expand("@ours").unwrap(),
            ["git.example", "a.example"]
        );
        assert!(presets.expand("@anthropic").is_ok());
    }

    #[test]
    fn the_later_directory_wins() {
        let (earlier, _) = home(&[("a.txt", "one.example"), ("b.txt", "two.example")]);
        let (later, _) = home(&[("a.txt", "three.example")]);
        let mut presets = Presets::default();
        for home in [earlier, later] {
            add(&mut presets, &home.path().join(".config/sandbox/presets.d")).unwrap();
        }
        assert_eq!(
            presets.expand("@a,@b").unwrap(),
            ["three.example", "two.example"]
        );
    }

    #[test]
    fn what_is_no_preset_is_passed_over() {
        let (_home, environment) = home(&[
            ("README.md", "words"),
            (".#a.txt", "words"),
            ("a.txt~", "words"),
        ]);
        let presets = presets(&environment).unwrap();
        assert!(presets.names().eq(Presets::built_in().names()));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named_with_the_remedy() {
        for (name, remedy) in [("My.List.txt", "rename"), ("dir.txt", "move it away")] {
            let (home, environment) = home(&[]);
            let path = home.path().join(".config/sandbox/presets.d").join(name);
            if name.starts_with("dir") {
                fs::create_dir(&path).unwrap();
            } else {
                fs::write(&path, "a.example").unwrap();
            }
            let line = presets(&environment).unwrap_err().to_string();
            assert!(
                line.contains(name) && line.contains(remedy) && !line.contains('\n'),
                "{line}"
            );
        }
    }

    #[test]
    fn without_directories_there_is_what_is_built_in() {
        assert!(presets(&Environment::default()).is_ok());
    }
}
