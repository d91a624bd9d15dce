//! Plays the engine: a program called `docker` that does what a test says, and a host around it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use report::Body;
use rustix::fs::{FlockOperation, Mode};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    container::lines,
    schema::{faults_of, faults_of_answer},
};

/// A host with an engine of which everything is known.
pub(crate) struct Host {
    dir: TempDir,
}

/// What the engine knows of a container that ran and ended with a code.
pub(crate) fn ended(code: i32) -> String {
    format!(
        r#"{{"state":{{"Running":false,"OOMKilled":false,"ExitCode":{code},"StartedAt":"2026-11-29T16:44:43Z"}},"networks":{{"bridge":null}}}}"#
    )
}

/// What it knows of one that runs.
pub(crate) const RUNNING: &str =
    r#"{"state":{"Running":true,"ExitCode":0,"StartedAt":"2026-11-29T16:44:43Z"},"networks":null}"#;

/// What it knows of one that could not be started.
pub(crate) const NEVER_STARTED: &str = r#"{"state":{"Running":false,"ExitCode":0,"StartedAt":"0001-01-01T00:00:00Z"},"networks":null}"#;

impl Host {
    /// Its image is this project's, and its containers do nothing and end with 0.
    pub(crate) fn new() -> Self {
        let host = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        for name in ["up-now", "hold", "heard"] {
            rustix::fs::mkfifoat(rustix::fs::CWD, host.path(name), Mode::RUSR | Mode::WUSR)
                .unwrap();
        }
        fs::write(host.path("up"), RUNNING).unwrap();
        fs::write(host.path("fresh"), NEVER_STARTED).unwrap();
        host.on("logs", "echo 'sandbox-entrypoint: why' >&2");
        for dir in ["bin", "run"] {
            fs::create_dir(host.path(dir)).unwrap();
        }
        host.image(r#"{"Entrypoint":["/usr/local/bin/sandbox-entrypoint"],"Cmd":["/bin/bash"]}"#);
        host.on("pull", "exit 1");
        host.on("create", "echo created");
        host.on("cp", "exit 0");
        host.on("info", "exit 1");
        host.on("kill", "exit 0");
        host.on("exec", "echo 'container is not running' >&2; exit 1");
        host.container(":", &ended(0));
        host.write_engine();
        host
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The image that the engine has.
    pub(crate) fn image(&self, config: &str) {
        self.on("image", &format!("echo '{config}'"));
    }

    /// What the engine does when told `verb`.
    pub(crate) fn on(&self, verb: &str, script: &str) {
        fs::write(self.path(verb), script).unwrap();
    }

    /// What a container does, and what the engine knows of it afterwards.
    pub(crate) fn container(&self, script: &str, state: &str) {
        self.on("role", script);
        fs::write(self.path("state"), state).unwrap();
    }

    /// A container that says all this over its channel, and the code of the engine's client then.
    pub(crate) fn reports(&self, script: &[Body], code: i32) {
        self.says(&lines(script), code);
    }

    /// The same, in its own words. What comes after [`AGAIN`](crate::container::AGAIN) it says when it was [`Host::heard`] and
    /// let go on by [`Host::release`].
    pub(crate) fn says(&self, script: &[u8], code: i32) {
        fs::write(self.path("script"), script).unwrap();
        let binary = std::env::current_exe().unwrap();
        let role = format!(
            "FAKE_CONTAINER_SOCKET=$socket FAKE_CONTAINER_SCRIPT={} FAKE_CONTAINER_FIFOS={} {} --exact \
             container::plays_a_container_where_it_is_told_to >/dev/null || exit 99\nexit {code}",
            self.path("script").display(),
            self.dir.path().display(),
            binary.display()
        );
        self.container(&role, &ended(code));
    }

    /// Waits until a container has been heard that has more to say.
    pub(crate) fn heard(&self) {
        fs::read(self.path("heard")).unwrap();
    }

    /// Lets it say the rest.
    pub(crate) fn release(&self) {
        fs::write(self.path("hold"), "go on").unwrap();
    }

    /// The directories of runs that are going on.
    pub(crate) fn runs(&self) -> Vec<String> {
        let dirs = fs::read_dir(self.path("run/host-collector/runs"));
        let names = dirs.into_iter().flatten().flatten();
        names
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect()
    }

    /// Waits until nobody attends to a run any more.
    pub(crate) fn released(&self, run: &str) {
        let lock = self.path("run/host-collector/runs").join(run).join("lock");
        if let Ok(lock) = fs::File::open(lock) {
            rustix::fs::flock(lock, FlockOperation::LockShared).unwrap();
        }
    }

    /// `host-collector` on this host.
    pub(crate) fn collector(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_host-collector"));
        command.args(arguments).stdin(Stdio::null());
        command.env(
            "PATH",
            format!("{}:/usr/bin:/bin", self.path("bin").display()),
        );
        command
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("SANDBOX_AUDIT_DIR", self.path("audit"));
        command
    }

    /// Runs a verb to its end. What it prints as JSON is as its schema says.
    pub(crate) fn does(&self, arguments: &[&str]) -> Done {
        let done = Done::of(self.collector(arguments).output().unwrap());
        let is_json = arguments.contains(&"--json") || arguments.contains(&"prepare");
        if let Some(verb) = arguments.first().filter(|_| is_json && done.code < 2) {
            let faults = faults_of_answer(verb, &done.stdout);
            assert_eq!(faults, [""; 0], "{}", done.stdout);
        }
        done
    }

    /// Every call of the engine, one a line.
    pub(crate) fn calls(&self) -> String {
        fs::read_to_string(self.path("calls")).unwrap_or_default()
    }

    /// The lines of the session log, each as its schema says.
    pub(crate) fn log(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("audit/sessions.jsonl")).unwrap_or_default();
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        for line in &lines {
            assert_eq!(faults_of(line), [""; 0], "{line:#}");
        }
        lines
    }

    fn write_engine(&self) {
        let script = format!(
            r#"#!/bin/sh
cd '{dir}'
echo "$*" >>calls
if [ -e unmountable ]; then
    case "$*" in *type=bind*)
        echo 'docker: no such path' >&2
        exit 125
    esac
fi
case "$1" in
    version) echo 99 ;;
    create) . ./create ;;
    container) if [ ! -e begun ]; then cat fresh; elif [ -e running ]; then cat up; else cat state; fi ;;
    image | pull | cp | kill | logs | exec | info) . "./$1" ;;
    ps) if [ -e made ]; then echo the-container; fi ;;
    wait) exec 8<running && flock 8 ;;
    rm) rm -f made running ;;
    run)
        while [ $# -gt 0 ]; do
            case "$1" in
                --detach) detach=yes ;;
                --cidfile) cidfile=$2 ;;
                --mount)
                    case "$2" in *dst=/run/sandbox-egress/host*)
                        socket=${{2#*src=}}
                        socket=${{socket%%,*}}/report.sock
                    esac ;;
            esac
            shift
        done
        [ -z "$cidfile" ] || echo the-container >"$cidfile"
        touch made
        # The lock is held for as long as the container runs, and its waiters wait for that. It is
        # there before `begun` is: whoever finds `begun` and then no lock is told the truth.
        if [ -z "$detach" ]; then
            exec 9>running
            flock 9
            touch begun
            (. ./role) 9>&-
            code=$?
            rm -f running
            exit $code
        fi
        (
            exec </dev/null >/dev/null 2>&1
            exec 9>running
            flock 9
            touch begun
            echo >up-now
            (. ./role) 9>&-
            rm -f running
        ) &
        # Only then does it run.
        cat up-now
        ;;
esac
"#,
            dir = self.dir.path().display()
        );
        executable(&self.path("bin/docker"), &script);
    }
}

/// Another process writes it: one that this one forks meanwhile would hold it open for writing, and
/// it could not be executed.
pub(crate) fn executable(path: &Path, content: &str) {
    let source = path.with_extension("sh");
    fs::write(&source, content).unwrap();
    let mut install = Command::new("install");
    install.arg("-m755").arg(&source).arg(path);
    assert!(install.status().unwrap().success());
}

/// What a verb came to.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}
