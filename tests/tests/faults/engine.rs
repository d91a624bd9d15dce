//! A docker that is killed under a run, with and without live restore, and one that never comes
//! back. The tests have a daemon of their own, in a network of its own: the machine's is nobody's to
//! kill, and on the machine's network ours would take away the bridge that another has.

use std::{
    fs,
    os::unix::net::UnixDatagram,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use sandbox_egress_tests::{
    contained::{BASE, Lab, Stage},
    namespace::Namespace,
    process::{Finished, PATIENCE, Running, output_of, wait_for_exit},
    programs::public_directory,
    record,
    trials::LabTest,
};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const TESTS: [(&str, LabTest); 1] = [(
    "a-docker-that-is-killed-costs-no-report-and-its-record-is-true",
    killed,
)];

/// Whether containers outlive their daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LiveRestore {
    On,
    Off,
}

/// A docker of the test's own.
struct Docker {
    namespace: Namespace,
    directory: TempDir,
    daemon: Child,
}

impl Docker {
    fn start() -> anyhow::Result<Self> {
        let (namespace, directory) = (Namespace::create("docker")?, public_directory()?);
        let daemon = daemon(&namespace, &directory, LiveRestore::Off)?;
        let docker = Self {
            namespace,
            directory,
            daemon,
        };
        docker.load_image()?;
        let subnet = "--subnet=198.19.199.0/24";
        output_of(docker.client().args(["network", "create", subnet, "own"]))?;
        Ok(docker)
    }

    fn host(&self) -> String {
        format!("unix://{}", self.directory.path().join("socket").display())
    }

    fn client(&self) -> Command {
        let mut client = Command::new("docker");
        client.env("DOCKER_HOST", self.host());
        client
    }

    /// From the machine's docker, where `images/build` has put it.
    fn load_image(&self) -> anyhow::Result<()> {
        let mut save = Command::new("docker")
            .args(["save", BASE])
            .stdout(Stdio::piped())
            .spawn()?;
        let image = save.stdout.take().context("no image")?;
        let loaded = self.client().arg("load").stdin(image).output()?;
        let said = String::from_utf8_lossy(&loaded.stderr);
        ensure!(save.wait()?.success() && loaded.status.success(), "{said}");
        Ok(())
    }

    /// Kills the daemon, which its containers may or may not notice.
    fn kill(&mut self) -> anyhow::Result<()> {
        let written = self.directory.path().join("exec/containerd/containerd.pid");
        let id = fs::read_to_string(&written)?.trim().parse();
        let containerd = id.ok().and_then(Pid::from_raw).context("no containerd")?;
        self.daemon.kill()?;
        self.daemon.wait()?;
        // The kernel ends it with its parent. The next daemon must not take it for a living one,
        // which it would until somebody has buried it.
        wait_for_exit(containerd)?;
        fs::remove_file(written).context("forget a containerd")
    }

    fn start_again(&mut self, live_restore: LiveRestore) -> anyhow::Result<()> {
        self.daemon = daemon(&self.namespace, &self.directory, live_restore)?;
        Ok(())
    }

    /// Ends it as its service would be, and starts it again with another setting.
    fn restart(&mut self, live_restore: LiveRestore) -> anyhow::Result<()> {
        self.stop()?;
        self.start_again(live_restore)
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        if self.daemon.try_wait()?.is_none() {
            kill_process(Pid::from_child(&self.daemon), Signal::TERM)?;
            self.daemon.wait()?;
        }
        Ok(())
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        // A daemon that is there takes its containers and its containerd with it.
        let _ = self.stop();
        let _ = self.start_again(LiveRestore::Off);
        let _ = self.stop();
    }
}

/// Starts a daemon and waits until it says that it is ready, as it would to systemd.
fn daemon(
    namespace: &Namespace,
    directory: &TempDir,
    live_restore: LiveRestore,
) -> anyhow::Result<Child> {
    let path = |name: &str| directory.path().join(name);
    // What a daemon that was killed has left: the next one would not start over it.
    let _ = fs::remove_file(path("pid"));
    let notify = path("notify");
    let _ = fs::remove_file(&notify);
    let notified = UnixDatagram::bind(&notify)?;
    notified.set_read_timeout(Some(PATIENCE))?;
    fs::write(path("settings.json"), "{}")?;
    let option = |name: &str, value: PathBuf| format!("--{name}={}", value.display());
    let log = fs::File::options()
        .create(true)
        .append(true)
        .open(path("log"))?;
    // Not `ip netns exec`, which would hide the control groups.
    let child = Command::new("nsenter")
        .arg(format!("--net=/run/netns/{}", namespace.name()))
        .arg("dockerd")
        .env("NOTIFY_SOCKET", &notify)
        .arg(option("data-root", path("data")))
        .arg(option("exec-root", path("exec")))
        .arg(option("pidfile", path("pid")))
        .arg(option("config-file", path("settings.json")))
        .arg(format!("--host=unix://{}", path("socket").display()))
        .args(["--bridge=none", "--iptables=false", "--ip-masq=false"])
        .args((live_restore == LiveRestore::On).then_some("--live-restore"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("start a docker of our own")?;
    let mut word = [0; 512];
    loop {
        let length = notified.recv(&mut word);
        let said = || fs::read_to_string(path("log")).unwrap_or_default();
        let length = length.with_context(|| format!("our docker is never ready: {}", said()))?;
        if String::from_utf8_lossy(word.get(..length).unwrap_or_default()).contains("READY=1") {
            return Ok(child);
        }
    }
}

/// A guest that is refused something before the daemon is killed, while it is gone, and after.
const GUEST: &str = "curl -sS https://first.test/; ./meanwhile
    curl -sS https://second.test/; ./meanwhile
    curl -sS https://third.test/; exit 6";

/// A run that has got as far as its first refusal when the daemon is killed, and to its second since.
fn run_and_kill(docker: &mut Docker, stage: &Stage<'_>) -> anyhow::Result<Running> {
    let mut command = stage.collector();
    command
        .env("DOCKER_HOST", docker.host())
        .args(["run", "--engine=docker", "--allow=allowed.test"])
        .arg("--workspace")
        .arg(stage.files.workspace())
        .args([
            "--engine-arg=--network=own",
            BASE,
            "--",
            "bash",
            "-c",
            GUEST,
        ]);
    let running = Running::start(&mut command)?;
    stage.said()?;
    let run = stage.run_id()?;
    stage.journaled(&run, "first.test")?;
    docker.kill()?;
    stage.go_on()?;
    stage.said()?;
    stage.journaled(&run, "second.test")?;
    Ok(running)
}

fn killed(lab: &Lab) -> anyhow::Result<()> {
    let mut docker = Docker::start()?;
    docker.restart(LiveRestore::On)?;
    restored(lab, &mut docker).context("with live restore")?;
    never_back(lab, &mut docker).context("without a daemon to the end")?;
    docker.start_again(LiveRestore::Off)?;
    not_restored(lab, &mut docker).context("without live restore")
}

/// The container goes on, and its record is whole.
fn restored(lab: &Lab, docker: &mut Docker) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let running = run_and_kill(docker, &stage)?;
    docker.start_again(LiveRestore::On)?;
    stage.go_on()?;
    says(&stage, running, "complete exited 6 3 -").map(drop)
}

/// Nobody can say how the container ended but process 1, who does.
fn never_back(lab: &Lab, docker: &mut Docker) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let running = run_and_kill(docker, &stage)?;
    stage.go_on()?;
    let said = says(&stage, running, "complete exited 6 3 -")?;
    ensure!(said.contains("could not be removed"), "{said}");
    Ok(())
}

/// The daemon that comes back stops what another has started, which process 1 tells to the end.
fn not_restored(lab: &Lab, docker: &mut Docker) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let running = run_and_kill(docker, &stage)?;
    docker.start_again(LiveRestore::Off)?;
    says(&stage, running, "complete stopped 143 2 -").map(drop)
}

/// What the line says, and that the launcher's exit code is no other. Returns what that said besides.
fn says(stage: &Stage<'_>, running: Running, wanted: &str) -> anyhow::Result<String> {
    let Finished { code, stderr, .. } = running.finish()?;
    let line = stage.files.session_line()?;
    let line = line.with_context(|| format!("no line: {stderr}"))?;
    let places = [
        "/egress_channel/state",
        "/end_reason",
        "/exit_code",
        "/egress_denied",
        "/egress_denied_at_least",
    ];
    record::says(&line, &places, wanted).with_context(|| stderr.clone())?;
    ensure!(
        line.get("exit_code") == Some(&Value::from(code)),
        "the launcher ended with {code}: {line}"
    );
    Ok(stderr)
}
