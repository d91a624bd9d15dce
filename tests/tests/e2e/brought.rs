//! Runs whose reports the engine takes out of the container, since no socket of this host's can be
//! in it, or nobody wants one there.

use std::{
    io,
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    process::Command,
    thread,
};

use anyhow::{Context, ensure};
use sandbox_egress_tests::{
    case::Network,
    contained::{BASE, Files, Lab, Stage},
    process::{Finished, Running, output_of},
    record,
};
use serde_json::Value;

use crate::{LabTest, attended, collected::allow, on_terminal};

pub(crate) const TESTS: [(&str, LabTest); 5] = [
    ("a-terminal-is-kept-to-the-guest", terminal),
    ("a-break-of-the-channel-loses-no-report", broken),
    ("an-order-that-a-break-swallows-is-said-again", ordered),
    (
        "an-end-that-a-killed-collector-has-not-said-is-said-by-the-next",
        ended,
    ),
    (
        "a-run-whose-collector-was-killed-loses-no-report",
        recovered,
    ),
];

/// Those that need an engine whose client is a program of another place.
pub(crate) const REMOTE: [(&str, LabTest); 3] = [
    (
        "an-engine-over-the-network-is-asked-for-the-reports",
        remote,
    ),
    (
        "an-engine-that-sees-other-files-is-asked-for-the-reports",
        elsewhere,
    ),
    (
        "another-launcher-is-told-of-an-engine-that-sees-other-files",
        prepared_elsewhere,
    ),
];

/// Is refused once, and ends with 7 where it sees no socket of the host's.
const UNSEEN: &str = "curl -s https://denied.test/; [ ! -e /run/sandbox-egress/host ]; exit 7";
const THROUGH_ENGINE: [&str; 2] = ["--transport", "exec"];

/// The channel, what was refused, and the end, as a line says them.
fn says(line: &Value, wanted: &str) -> anyhow::Result<()> {
    let places = [
        "/egress_channel/state",
        "/egress_channel/transport",
        "/egress_channel/resumed",
        "/egress_denied",
        "/exit_code",
    ];
    record::says(line, &places, wanted)
}

fn terminal(lab: &Lab) -> anyhow::Result<()> {
    let files = lab.files()?;
    let mut command = lab.collector(&files, Network::Allowlist, &allow(lab));
    command.args(["--transport", "exec", "-it", BASE, "--"]);
    command.args(on_terminal::GUEST);
    on_terminal::is_kept(&command)?;
    let line = files.session_line()?.context("no session line")?;
    says(&line, "complete exec - 0 4")
}

/// The process in the container that brings the channel is killed by root, as nobody else could.
fn broken(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?.with(&THROUGH_ENGINE);
    let mut command = stage.launch(&["run"]);
    let guest = "curl -s https://denied.test/; echo >said; read line <go
        curl -s https://denied.test/; exit 3";
    command.args([BASE, "--", "bash", "-c", guest]);
    let running = Running::start(&mut command)?;
    stage.said()?;
    let (run, container) = (stage.run_id()?, lab.container()?);
    signal_stream(lab, &container, "KILL")?;
    stage.stored(&run, "admitted.json", "\"resumed\":1")?;
    stage.go_on()?;
    let Finished { code, stderr, .. } = running.finish()?;
    ensure!(code == 3, "{code}: {stderr}");
    let line = stage.files.session_line()?.context("no session line")?;
    says(&line, "complete exec 1 2 3")
}

/// The process in the container that brings the channel gets a signal from root, since from nobody
/// else it could.
fn signal_stream(lab: &Lab, container: &str, signal: &str) -> anyhow::Result<()> {
    let find = "$(grep -lz '^stream$' /proc/[0-9]*/cmdline | cut -d / -f 3)";
    let kill = format!("kill -{signal} {find}");
    let mut exec = lab.command(["exec", "--user=0:0", container]);
    output_of(exec.args(["bash", "-c", &kill])).map(drop)
}

/// A list that was on its way when the channel broke comes into force on the next one.
fn ordered(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?.with(&THROUGH_ENGINE);
    let mut command = stage.launch(&["run"]);
    command.args([
        BASE,
        "--",
        "bash",
        "-c",
        "echo >said; read line <go; exit 3",
    ]);
    let running = Running::start(&mut command)?;
    stage.said()?;
    let (run, container) = (stage.run_id()?, lab.container()?);
    signal_stream(lab, &container, "STOP")?;
    let mut allow = stage.collector();
    let said = Running::start(allow.args(["allow", &run, "more.test"]))?.finish()?;
    ensure!(
        said.code != 0 && said.stderr.contains("did not confirm generation 2"),
        "{said:?}"
    );
    signal_stream(lab, &container, "KILL")?;
    stage.journaled(&run, "\"outcome\":\"in_force\"")?;
    stage.go_on()?;
    let Finished { code, stderr, .. } = running.finish()?;
    ensure!(code == 3, "{code}: {stderr}");
    let line = stage.files.session_line()?.context("no session line")?;
    ensure!(
        line.pointer("/egress_policy/generation") == Some(&2.into()),
        "{line}"
    );
    says(&line, "complete exec 1 0 3")
}

/// `stop` is asked for while nothing reaches the container, and who was to say so is killed. The verb
/// has another take the run over.
fn ended(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?.with(&THROUGH_ENGINE);
    let guest = "trap 'exit 5' TERM; echo >said; read line <go";
    let mut collector = attended::unheard(&stage, guest)?;
    let (run, container) = (stage.run_id()?, lab.container()?);
    signal_stream(lab, &container, "STOP")?;
    let mut stop = stage.collector();
    let stopping = Running::start(stop.args(["stop", "--json", &run]))?;
    stage.stored(&run, "stop", "10000")?;
    collector.kill()?;
    collector.wait()?;
    signal_stream(lab, &container, "KILL")?;
    let Finished {
        code,
        stdout,
        stderr,
    } = stopping.finish()?;
    ensure!(code == 0, "{code}: {stderr}");
    let line: Value = serde_json::from_str(&stdout)?;
    ensure!(
        line.pointer("/end_reason") == Some(&"stopped".into()),
        "{line}"
    );
    says(&line, "complete exec 1 0 5")
}

fn recovered(lab: &Lab) -> anyhow::Result<()> {
    let line = attended::recovered(&Stage::set(lab)?.with(&THROUGH_ENGINE))?;
    says(&line, "complete exec 1 4 3")
}

/// The engine's client speaks TCP, so that nothing of this host seems to be mountable.
fn remote(lab: &Lab) -> anyhow::Result<()> {
    let address = relay("/var/run/docker.sock")?;
    let files = lab.files()?;
    let mut command = lab.collector(&files, Network::Allowlist, &allow(lab));
    command.env("DOCKER_HOST", format!("tcp://{address}"));
    command.args([BASE, "--", "bash", "-c", UNSEEN]);
    let Finished { code, stderr, .. } = Running::start(&mut command)?.finish()?;
    ensure!(code == 7, "{code}: {stderr}");
    let line = files.session_line()?.context("no session line")?;
    says(&line, "complete exec - 1 7")
}

fn elsewhere(lab: &Lab) -> anyhow::Result<()> {
    let files = lab.files()?;
    let run = lab.collector(&files, Network::Allowlist, &allow(lab));
    finds_another_way(
        run,
        &files,
        "launching again, with reports through its exec",
    )
}

fn prepared_elsewhere(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let launcher = attended::example(&stage)?;
    finds_another_way(launcher, &stage.files, "reports come through its exec")
}

/// A launch whose engine mounts nothing of what it sees has a whole record all the same, and says so.
fn finds_another_way(mut launch: Command, files: &Files, said: &str) -> anyhow::Result<()> {
    let place = tempfile::tempdir()?;
    launch.args([BASE, "--", "bash", "-c", UNSEEN]);
    let hidden = &mut hidden(&launch, place.path());
    let Finished { code, stderr, .. } = Running::start(hidden)?.finish()?;
    ensure!(code == 7 && stderr.contains(said), "{code}: {stderr}");
    let line = files.session_line()?.context("no session line")?;
    says(&line, "complete exec - 1 7")
}

/// The engine's socket is here, and what it would mount is not where it looks: as where a program
/// runs in a container that the engine's socket was given to.
fn hidden(program: &Command, place: &Path) -> Command {
    let mut command = Command::new("unshare");
    let hide = r#"mount -t tmpfs none "$1" && shift && exec "$@""#;
    command.args(["--mount", "sh", "-c", hide, "sh"]);
    command.arg(place).arg(program.get_program());
    command.args(program.get_args());
    if let Some(directory) = program.get_current_dir() {
        command.current_dir(directory);
    }
    let set = program.get_envs();
    command.envs(set.filter_map(|(name, value)| Some((name, value?))));
    command.env("XDG_RUNTIME_DIR", place);
    command
}

/// Hands every connection to a port of loopback on to a socket, each half for itself, until the test
/// program ends.
fn relay(socket: &'static str) -> anyhow::Result<std::net::SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            if let Ok(service) = UnixStream::connect(socket) {
                let _ = hand_on(client, service);
            }
        }
    });
    Ok(address)
}

fn hand_on(client: TcpStream, service: UnixStream) -> io::Result<()> {
    let (mut from, mut to) = (client.try_clone()?, service.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    thread::spawn(move || {
        let (mut client, mut service) = (client, service);
        let _ = io::copy(&mut service, &mut client);
        let _ = client.shutdown(Shutdown::Write);
    });
    Ok(())
}
