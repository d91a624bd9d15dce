//! Runs that the collector launches, in ways that are no data: on a terminal, stopped from outside,
//! of images that lack something, on hosts that do.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use anyhow::{Context, ensure};
use rustix::process::{Signal, kill_process};
use sandbox_egress_tests::{
    case::Network,
    contained::{BASE, Files, Lab},
    process::{Finished, Running, output_of},
    programs::public_directory,
    record,
    terminal::OnTerminal,
};
use serde_json::{Value, json};

use crate::{LabTest, image::Image, on_terminal};

pub(crate) const TESTS: [(&str, LabTest); 15] = [
    ("a-terminal-keeps-its-size-and-its-interrupt", terminal),
    ("jobs-are-controlled-from-a-terminal", jobs),
    ("a-terminal-is-left-as-it-was", terminal_left),
    (
        "a-stop-of-the-container-reaches-the-guest",
        stopped_by_engine,
    ),
    (
        "a-signal-to-the-collector-reaches-the-guest",
        stopped_by_signal,
    ),
    (
        "the-channel-is-closed-before-the-guest-exists",
        channel_gone,
    ),
    (
        "a-proxy-that-dies-is-replaced-and-leaves-a-gap",
        proxy_killed,
    ),
    ("an-image-without-the-proxy-is-refused", without_proxy),
    (
        "an-image-without-the-proxy-is-enforced-by-address-where-that-will-do",
        by_address,
    ),
    ("an-image-without-nft-is-refused", without_nft),
    (
        "an-image-without-the-entrypoint-is-refused",
        without_entrypoint,
    ),
    ("an-image-that-is-not-there-is-named", no_image),
    ("an-engine-that-is-not-there-is-named", no_engine),
    ("a-log-that-cannot-be-written-fails-no-run", unwritable_log),
    ("a-run-is-listed-and-shown-to-its-owner-alone", listed),
];

pub(crate) fn allow(lab: &Lab) -> [String; 1] {
    [format!("allowed.test@{}", lab.internet().subnet().v4_net())]
}

fn run(lab: &Lab, files: &Files, image: &str, guest: &str) -> Command {
    let mut command = lab.collector(files, Network::Allowlist, &allow(lab));
    command.args([image, "--", "bash", "-c", guest]);
    command
}

fn start_on_terminal(lab: &Lab, files: &Files, guest: &str) -> anyhow::Result<OnTerminal> {
    let mut command = lab.collector(files, Network::Allowlist, &allow(lab));
    command.args(["-it", BASE, "--", "bash", "-c", guest]);
    OnTerminal::start(&command, 33, 97)
}

/// The channel, the end, the exit code and the refusals, as the line says them.
fn says(files: &Files, wanted: &str) -> anyhow::Result<()> {
    let line = files.session_line()?.context("no session line")?;
    let places = [
        "/egress_channel/state",
        "/end_reason",
        "/exit_code",
        "/egress_denied",
    ];
    record::says(&line, &places, wanted)
}

fn terminal(lab: &Lab) -> anyhow::Result<()> {
    let files = lab.files()?;
    let mut command = lab.collector(&files, Network::Allowlist, &allow(lab));
    command.args(["-it", BASE, "--"]).args(on_terminal::GUEST);
    on_terminal::is_kept(&command)?;
    says(&files, "complete exited 4 0")
}

fn jobs(lab: &Lab) -> anyhow::Result<()> {
    let files = lab.files()?;
    let mut command = lab.collector(&files, Network::Allowlist, &allow(lab));
    command.args(["-it", BASE, "--"]).args(on_terminal::SHELL);
    on_terminal::has_jobs(&command)?;
    // The interrupt was a job's, and nobody outside asked anything to stop.
    says(&files, "complete exited 9 0")
}

fn terminal_left(lab: &Lab) -> anyhow::Result<()> {
    let files = lab.files()?;
    let mut command = lab.collector(&files, Network::Allowlist, &allow(lab));
    command.args(["-it", BASE, "--"]).args(on_terminal::MEDDLER);
    on_terminal::is_left_as_it_was(&command)?;
    says(&files, "complete exited 3 0")
}

fn stopped_by_engine(lab: &Lab) -> anyhow::Result<()> {
    let files = lab.files()?;
    let guest = "trap 'exit 5' TERM; echo re''ady; while :; do read line; done";
    let mut program = start_on_terminal(lab, &files, guest)?;
    program.wait_for("ready")?;
    output_of(&mut lab.command(["stop", "--time=30", &lab.container()?]))?;
    let (code, shown) = program.finish()?;
    ensure!(code == 5, "{code}: {shown}");
    says(&files, "complete stopped 5 0")
}

fn stopped_by_signal(lab: &Lab) -> anyhow::Result<()> {
    let files = lab.files()?;
    let guest = "exec /usr/bin/python3 -uc '
import signal
signal.signal(signal.SIGTERM, lambda *_: exit(6))
print(\"rea\" + \"dy\")
signal.pause()'";
    // Without a terminal in the container; the collector itself may have one.
    let mut program = OnTerminal::start(&run(lab, &files, BASE, guest), 24, 80)?;
    program.wait_for("ready")?;
    kill_process(program.id()?, Signal::TERM).context("stop the collector")?;
    let (code, shown) = program.finish()?;
    ensure!(code == 6, "{code}: {shown}");
    says(&files, "complete stopped 6 0")
}

/// The rules stand while there is no proxy; the next one takes over its listeners, and decides.
fn proxy_killed(lab: &Lab) -> anyhow::Result<()> {
    let files = lab.files()?;
    let guest = "echo re''ady; read line; curl -sS https://denied.test/";
    let mut program = start_on_terminal(lab, &files, guest)?;
    program.wait_for("ready")?;
    let end_proxy = "for process in /proc/[0-9]*; do
            ! grep -qs '^sandbox-egress-$' $process/comm || kill -9 ${process#/proc/}
        done";
    let container = lab.container()?;
    output_of(&mut lab.command(["exec", &container, "sh", "-c", end_proxy]))?;
    program.send(b"\n")?;
    let (code, shown) = program.finish()?;
    ensure!(code == 56 && shown.contains("403"), "{code}: {shown}");
    let line = files.session_line()?.context("no session line")?;
    let detail = line.pointer("/egress_channel/gaps/0/detail");
    let detail = detail.and_then(Value::as_str).unwrap_or_default();
    let told = detail.starts_with("the proxy was killed by SIGKILL, and started again");
    ensure!(told, "{line}");
    says(&files, "gap exited 56 1")
}

fn channel_gone(lab: &Lab) -> anyhow::Result<()> {
    let files = lab.files()?;
    let runtime = public_directory()?;
    let mut command = lab.collector(&files, Network::Allowlist, &allow(lab));
    command.env("XDG_RUNTIME_DIR", runtime.path());
    command.args(["-it", BASE, "--", "bash", "-c", "echo re''ady; read line"]);
    let mut program = OnTerminal::start(&command, 24, 80)?;
    program.wait_for("ready")?;
    // Of the sockets of the run, one is the host's own, for verbs: no container sees it.
    let left = output_of(Command::new("find").arg(runtime.path()).args([
        "-type",
        "s",
        "-not",
        "-name",
        "control.sock",
    ]))?;
    program.send(b"\n")?;
    program.finish()?;
    ensure!(left.is_empty(), "while the guest runs there is {left}");
    let left = output_of(
        Command::new("find")
            .arg(runtime.path())
            .args(["-name", "*.jsonl"]),
    )?;
    ensure!(left.is_empty(), "after the run there is {left}");
    Ok(())
}

/// One line that names the thing, the exit code of a set-up that failed, and no session line.
fn is_refused(files: &Files, mut command: Command, naming: &[&str]) -> anyhow::Result<()> {
    let Finished {
        code,
        stdout,
        stderr,
    } = Running::start(&mut command)?.finish()?;
    ensure!(code == 125 && stdout.is_empty(), "{code}: {stdout}{stderr}");
    for name in naming {
        ensure!(stderr.contains(name), "{name} is not named: {stderr}");
    }
    ensure!(
        files.session_line()?.is_none(),
        "a session line for what was never launched"
    );
    Ok(())
}

fn without_proxy(lab: &Lab) -> anyhow::Result<()> {
    let files = lab.files()?;
    let image = Image::without_proxy(lab)?;
    is_refused(
        &files,
        run(lab, &files, &image.name, "echo started"),
        &["sandbox-egress-proxy"],
    )
}

fn by_address(lab: &Lab) -> anyhow::Result<()> {
    let files = lab.files()?;
    let image = Image::by_address(lab)?;
    let mut command = lab.collector(&files, Network::Allowlist, &allow(lab));
    let dial = |last| {
        let address = lab.internet().subnet().v4(last);
        format!("(exec 3<>/dev/tcp/{address}/443)")
    };
    let guest = format!("{} && ! {}", dial(10), dial(66));
    command.args(["--enforce", "auto", &image.name, "--", "bash", "-c", &guest]);
    let finished = Running::start(&mut command)?.finish()?;
    ensure!(finished.code == 0, "{finished:?}");
    ensure!(
        finished.stderr.contains("enforced by address"),
        "{finished:?}"
    );
    let line = files.session_line()?.context("no session line")?;
    let word = |field| line.get(field).and_then(Value::as_str);
    ensure!(word("egress_enforcement") == Some("address"), "{line}");
    ensure!(
        word("egress_enforcement_requested") == Some("auto"),
        "{line}"
    );
    ensure!(line.get("egress_denied") == Some(&json!(1)), "{line}");
    // Nobody saw what was let through, which is not the same as nothing.
    ensure!(line.get("egress_hosts").is_none(), "{line}");
    ensure!(line.get("egress_allowed").is_none(), "{line}");
    Ok(())
}

fn without_nft(lab: &Lab) -> anyhow::Result<()> {
    let files = lab.files()?;
    let image = Image::without_nft(lab)?;
    is_refused(
        &files,
        run(lab, &files, &image.name, "echo started"),
        &["nft"],
    )
}

fn without_entrypoint(lab: &Lab) -> anyhow::Result<()> {
    let files = lab.files()?;
    let image = "sandbox-egress/debian";
    is_refused(
        &files,
        run(lab, &files, image, "echo started"),
        &[image, "sandbox-entrypoint"],
    )
}

/// A registry on a port of this machine where nothing listens.
fn no_image(lab: &Lab) -> anyhow::Result<()> {
    let files = lab.files()?;
    let image = "127.0.0.1:1/no/such-image";
    is_refused(&files, run(lab, &files, image, "echo started"), &[image])
}

fn no_engine(lab: &Lab) -> anyhow::Result<()> {
    let files = lab.files()?;
    let mut command = run(lab, &files, BASE, "echo started");
    command.env("PATH", "/nonexistent");
    is_refused(&files, command, &[lab.engine().as_str()])
}

fn unwritable_log(lab: &Lab) -> anyhow::Result<()> {
    let files = lab.files()?;
    fs::write(files.audit(), "not a directory")?;
    let mut command = run(lab, &files, BASE, "exit 7");
    let Finished { code, stderr, .. } = Running::start(&mut command)?.finish()?;
    ensure!(code == 7, "{code}: {stderr}");
    ensure!(
        stderr.contains("audit"),
        "nothing is said of the log: {stderr}"
    );
    Ok(())
}

fn listed(lab: &Lab) -> anyhow::Result<()> {
    let files = lab.files()?;
    let mut command = run(lab, &files, BASE, "curl -sS https://denied.test/");
    let Finished { code, stderr, .. } = Running::start(&mut command)?.finish()?;
    ensure!(
        code == 56 && stderr.contains("denied.test"),
        "{code}: {stderr}"
    );
    let ask = |verb: &[&str]| {
        let mut command = lab.collector_verb();
        output_of(command.args(verb).arg("--audit-dir").arg(files.audit()))
    };
    let list = ask(&["list"])?;
    ensure!(list.contains(BASE), "{list}");
    let show = ask(&["show", "last"])?;
    ensure!(
        show.contains("denied.test") && show.contains("not_allowed"),
        "{show}"
    );
    let line: Value = serde_json::from_str(&ask(&["list", "--json"])?)?;
    ensure!(Some(&line) == files.session_line()?.as_ref(), "{line}");
    ensure!(
        mode(&files.audit())? == 0o700,
        "others may look into the log's directory"
    );
    ensure!(
        mode(&files.audit().join("sessions.jsonl"))? == 0o600,
        "others may read the log"
    );
    Ok(())
}

fn mode(path: &Path) -> anyhow::Result<u32> {
    let metadata = fs::metadata(path).with_context(|| format!("look at {}", path.display()))?;
    Ok(metadata.permissions().mode() & 0o777)
}
