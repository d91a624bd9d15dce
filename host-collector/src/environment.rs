//! The process's environment, read once and handed on as a value, so that tests set none.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// Variables by name. An empty one counts as unset, as most tools take it.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// That of this process.
    #[must_use]
    pub fn of_process() -> Self {
        Self {
            variables: std::env::vars_os().collect(),
        }
    }

    /// One written down.
    #[must_use]
    pub fn of<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let variables = variables
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()));
        Self {
            variables: variables.collect(),
        }
    }

    /// The value of a variable that is set and not empty.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.variables
            .get(OsStr::new(name))
            .map(OsString::as_os_str)
            .filter(|v| !v.is_empty())
    }

    /// Whether the variable is set, be it to nothing.
    #[must_use]
    pub fn is_set(&self, name: &str) -> bool {
        self.variables.contains_key(OsStr::new(name))
    }

    /// Where run directories are made: gone with the session or the boot, as the runs are.
    #[must_use]
    pub fn runtime_dir(&self) -> PathBuf {
        self.absolute("XDG_RUNTIME_DIR")
            .unwrap_or_else(|| "/run".into())
    }

    /// Where the session log is kept; `None` where nobody has a home.
    #[must_use]
    pub fn audit_dir(&self) -> Option<PathBuf> {
        if let Some(dir) = self.get("SANDBOX_AUDIT_DIR") {
            return Some(dir.into());
        }
        Some(self.absolute("HOME")?.join(".config/sandbox/audit"))
    }

    /// Where the user keeps presets; `None` where nobody has a home.
    #[must_use]
    pub fn presets_dir(&self) -> Option<PathBuf> {
        Some(self.absolute("HOME")?.join(".config/sandbox/presets.d"))
    }

    /// Where cargo keeps its configuration and what it has fetched; `None` where it has no place.
    #[must_use]
    pub fn cargo_home(&self) -> Option<PathBuf> {
        self.absolute("CARGO_HOME")
            .or_else(|| Some(self.absolute("HOME")?.join(".cargo")))
    }

    /// Finds a program the way a shell does, except that only absolute directories are searched: a
    /// relative one would let a workspace provide the program.
    #[must_use]
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        let path = self.get("PATH")?;
        std::env::split_paths(path)
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join(name))
            .find(|file| is_executable(file))
    }

    fn absolute(&self, name: &str) -> Option<PathBuf> {
        self.get(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    }
}

/// The name of this machine, as the log has it.
pub(crate) fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

    use super::*;

    #[test]
    fn the_audit_directory_is_asked_for_or_in_the_home() {
        for (variables, expected) in [
            (
                vec![("SANDBOX_AUDIT_DIR", "/a"), ("HOME", "/h")],
                Some("/a"),
            ),
            (
                vec![("SANDBOX_AUDIT_DIR", ""), ("HOME", "/h")],
                Some("/h/.config/sandbox/audit"),
            ),
            (vec![("HOME", "relative")], None),
            (vec![], None),
        ] {
            let found = Environment::of(variables.clone()).audit_dir();
            assert_eq!(found, expected.map(PathBuf::from), "{variables:?}");
        }
    }

    #[test]
    fn presets_and_cargo_have_their_places_in_the_home() {
        let home = Environment::of([("HOME", "/h")]);
        assert_eq!(
            home.presets_dir(),
            Some("/h/.config/sandbox/presets.d".into())
        );
        assert_eq!(home.cargo_home(), Some("/h/.cargo".into()));
        let own = Environment::of([("HOME", "/h"), ("CARGO_HOME", "/c")]);
        assert_eq!(own.cargo_home(), Some("/c".into()));
        let nobody = Environment::default();
        assert_eq!((nobody.presets_dir(), nobody.cargo_home()), (None, None));
    }

    #[test]
    fn a_relative_runtime_directory_is_not_used() {
        assert_eq!(
            Environment::of([("XDG_RUNTIME_DIR", "x")]).runtime_dir(),
            Path::new("/run")
        );
        assert_eq!(
            Environment::of([("XDG_RUNTIME_DIR", "/x")]).runtime_dir(),
            Path::new("/x")
        );
    }

    #[test]
    fn a_program_is_found_in_absolute_directories_and_only_if_it_can_run() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tool");
        fs::write(&file, "").unwrap();
        let path = format!(".:{}", dir.path().display());
        let environment = Environment::of([("PATH", path.as_str())]);
        assert_eq!(environment.program("tool"), None);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(environment.program("tool"), Some(file));
    }

    #[test]
    fn an_empty_variable_is_set_but_has_nothing_to_say() {
        let environment = Environment::of([("EMPTY", "")]);
        assert_eq!(
            (environment.get("EMPTY"), environment.is_set("EMPTY")),
            (None, true)
        );
        assert_eq!(
            (environment.get("OTHER"), environment.is_set("OTHER")),
            (None, false)
        );
    }

    #[test]
    fn without_a_path_there_are_no_programs() {
        assert_eq!(Environment::default().program("sh"), None);
        assert!(Environment::of_process().program("sh").is_some());
    }

    #[test]
    fn a_program_is_not_looked_for_in_a_relative_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tool");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let here = std::env::current_dir().unwrap();
        let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
        let relative = up.join(dir.path().strip_prefix("/").unwrap());
        assert!(relative.join("tool").exists(), "{}", relative.display());
        let path = relative.to_str().unwrap();
        assert_eq!(Environment::of([("PATH", path)]).program("tool"), None);
    }

    /// A program that is this shell script.
    ///
    /// Another process writes it: one that this one forks meanwhile would hold it open for writing,
    /// and it could not be executed.
    pub(crate) fn program(dir: &Path, name: &str, script: &str) {
        let source = dir.join(format!("{name}.sh"));
        fs::write(&source, format!("#!/bin/sh\n{script}\n")).unwrap();
        let mut install = Command::new("install");
        install.arg("-m755").arg(source).arg(dir.join(name));
        assert!(install.status().unwrap().success());
    }
}
