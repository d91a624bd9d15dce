//! What a launcher that knows nothing of us may ask of PID 1: under the names, by the variables, and
//! with the images that such launchers have.

use anyhow::ensure;
use sandbox_egress_tests::{
    contained::{BASE, Lab},
    process::Finished,
};

use crate::{
    LabTest,
    by_hand::{allowing, engine_run, engine_run_of, finish, is_one_line},
    image::Image,
};

pub(crate) const TESTS: [(&str, LabTest); 10] = [
    ("each-name-of-the-entrypoint-does-the-same", names),
    ("one-name-below-the-other-does-the-same", nested),
    ("the-guest-may-be-named-in-every-way", run_as),
    (
        "a-container-of-the-guest-s-own-user-is-supervised",
        own_user,
    ),
    (
        "without-a-list-the-guest-has-no-more-power-than-with-one",
        unrestricted,
    ),
    (
        "another-user-s-container-is-refused-with-the-remedy",
        wrong_user,
    ),
    ("without-a-command-there-is-an-error", no_command),
    ("a-collector-is-required-tried-for-or-left-out", reports),
    ("a-record-of-executions-is-refused", exec_record),
    (
        "nothing-that-was-said-to-process-1-reaches-the-guest",
        stripped,
    ),
];

/// Ends with `code` and has said all of `words`, on whichever stream.
pub(crate) fn ends(finished: &Finished, code: i32, words: &[&str]) -> anyhow::Result<()> {
    let Finished { stdout, stderr, .. } = finished;
    ensure!(
        finished.code == code,
        "{}, not {code}: {stdout}{stderr}",
        finished.code
    );
    for word in words {
        ensure!(
            stdout.contains(word) || stderr.contains(word),
            "nothing of {word:?}: {stdout}{stderr}"
        );
    }
    Ok(())
}

const ASK: [&str; 3] = [
    "sh",
    "-c",
    "id -u; curl -sS http://allowed.test/ && curl -sSf http://denied.test/",
];

/// As `ENTRYPOINT` or in its place, found by name or by path.
fn names(lab: &Lab) -> anyhow::Result<()> {
    for name in [
        "sandbox-init",
        "sandbox-firewall",
        "/usr/local/bin/sandbox-init",
        "sandbox-entrypoint",
    ] {
        lab.internet().reset()?;
        let entrypoint = format!("--entrypoint={name}");
        let options = [&*entrypoint, &allowing(lab, "allowed.test")];
        let finished = finish(engine_run(lab, &options, &ASK))?;
        ends(&finished, 22, &["1000\n", "served allowed.test:80"])?;
        let reached = lab.internet().account()?.reached;
        ensure!(
            reached.iter().eq(["allowed.test:80/tcp"]),
            "{name}: {reached:?}"
        );
    }
    Ok(())
}

/// An image whose init starts its firewall, which starts the command: the first of them does
/// everything, and the second finds nothing left to do.
fn nested(lab: &Lab) -> anyhow::Result<()> {
    let image = Image::with_both_names(lab)?;
    let finished = finish(engine_run_of(
        lab,
        &image.name,
        &[&allowing(lab, "allowed.test")],
        &ASK,
    ))?;
    ends(&finished, 22, &["1000\n", "served allowed.test:80"])
}

/// By name, by number, and by two numbers, with an entry in the image's files and without.
fn run_as(lab: &Lab) -> anyhow::Result<()> {
    let image = Image::with_groups(lab)?;
    let ask = ["sh", "-c", "echo $(id -u) $(id -g) $(id -G) at $HOME"];
    for (user, found) in [
        ("sandbox", "1000 1000 1000 60 100 at /home/sandbox\n"),
        ("1000", "1000 1000 1000 60 100 at /home/sandbox\n"),
        ("1000:7", "1000 7 7 60 100 at /home/sandbox\n"),
        ("4242", "4242 4242 4242 at /\n"),
        ("4242:60", "4242 60 60 at /\n"),
    ] {
        for allow in [vec![], vec![allowing(lab, "allowed.test")]] {
            let user = format!("--env=SANDBOX_RUN_AS={user}");
            let mut options = vec![&*user];
            options.extend(allow.iter().map(String::as_str));
            let finished = finish(engine_run_of(lab, &image.name, &options, &ask))?;
            ends(&finished, 0, &[])?;
            ensure!(finished.stdout == found, "{user} is {}", finished.stdout);
        }
    }
    Ok(())
}

/// What a guest can have, and what it finds of process 1.
const POWERS: &str = "grep -E '^(Uid|Cap|NoNewPrivs)' /proc/self/status
    cat /proc/1/environ /proc/1/maps; ls /proc/1/fd; exit 3";
const POWERLESS: [&str; 6] = [
    "Uid:\t1000\t1000\t1000\t1000\n",
    "CapInh:\t0000000000000000\n",
    "CapPrm:\t0000000000000000\n",
    "CapEff:\t0000000000000000\n",
    "CapAmb:\t0000000000000000\n",
    "NoNewPrivs:\t1\n",
];
const CLOSED: [&str; 3] = [
    "cat: /proc/1/environ: Permission denied",
    "cat: /proc/1/maps: Permission denied",
    "/proc/1/fd': Permission denied",
];

/// Whoever lets the engine change users needs no capability of ours, and gets none. Process 1 has
/// the guest's own user then, and is closed to it all the same.
fn own_user(lab: &Lab) -> anyhow::Result<()> {
    let mut command = lab.command(["run", "--rm", "--user=1000:1000"]);
    command
        .args(["--cap-drop=ALL", "--env=SANDBOX_RUN_AS=sandbox"])
        .args(lab.engine_arguments())
        .args([BASE, "sh", "-c", POWERS]);
    ends(&finish(command)?, 3, &[&POWERLESS[..], &CLOSED].concat())
}

/// Who is not kept to a list has no more power over the container than who is.
fn unrestricted(lab: &Lab) -> anyhow::Result<()> {
    for options in [&[][..], &["--init"]] {
        let finished = finish(engine_run(lab, options, &["sh", "-c", POWERS]))?;
        ends(&finished, 3, &[&POWERLESS[..], &CLOSED].concat())?;
        ends(&finished, 3, &["CapBnd:\t0000000000000000\n"])?;
    }
    Ok(())
}

fn wrong_user(lab: &Lab) -> anyhow::Result<()> {
    let allow = allowing(lab, "allowed.test");
    for (user, allow, naming) in [
        (
            "--user=4242:4242",
            None,
            "lacks SETUID, SETGID, SETPCAP, KILL",
        ),
        ("--user=1000:1000", Some(allow), "SANDBOX_RUN_AS"),
    ] {
        let mut command = lab.command(["run", "--rm", "--cap-drop=ALL", user]);
        command
            .arg("--env=SANDBOX_RUN_AS=sandbox")
            .args(lab.engine_arguments())
            .args(allow)
            .args([BASE, "echo", "started"]);
        let finished = finish(command)?;
        ends(&finished, 125, &[naming, "as root"])?;
        ensure!(
            finished.stdout.is_empty() && is_one_line(&finished.stderr),
            "{user}: {finished:?}"
        );
    }
    Ok(())
}

/// Giving an entrypoint takes an image's command away.
fn no_command(lab: &Lab) -> anyhow::Result<()> {
    for allow in [vec![], vec![allowing(lab, "allowed.test")]] {
        let mut options = vec!["--entrypoint=sandbox-init"];
        options.extend(allow.iter().map(String::as_str));
        let finished = finish(engine_run(lab, &options, &[]))?;
        ends(&finished, 78, &["command: none was given"])?;
    }
    Ok(())
}

fn reports(lab: &Lab) -> anyhow::Result<()> {
    let allow = allowing(lab, "allowed.test");
    for (variable, code, said) in [
        ("SANDBOX_REPORT=off", 0, "started"),
        ("SANDBOX_REPORT=best-effort", 0, "started"),
        ("SANDBOX_REPORT=", 0, "started"),
        ("SANDBOX_REPORT=required", 125, "report.sock"),
        // Whoever was promised a collector is not left without.
        ("SANDBOX_REPORT_NONCE=0123456789abcdef", 125, "report.sock"),
        (
            "SANDBOX_REPORT_SOCKET=/run/sandbox-egress/host/x",
            125,
            "host/x",
        ),
        ("SANDBOX_REPORT=perhaps", 78, "SANDBOX_REPORT"),
    ] {
        let variable = format!("--env={variable}");
        let options = [&*variable, &allow];
        let finished = finish(engine_run(lab, &options, &["echo", "started"]))?;
        ends(&finished, code, &[said])?;
        ensure!(
            (code == 0) == finished.stdout.contains("started"),
            "{variable}"
        );
    }
    Ok(())
}

fn exec_record(lab: &Lab) -> anyhow::Result<()> {
    let allow = allowing(lab, "allowed.test");
    for options in [vec![], vec![&*allow]] {
        let all = [&["--env=SANDBOX_EXEC_RECORD=1"], &*options].concat();
        let finished = finish(engine_run(lab, &all, &["echo", "started"]))?;
        ends(&finished, 78, &["SANDBOX_EXEC_RECORD"])?;
        ensure!(finished.stdout.is_empty(), "{finished:?}");
    }
    Ok(())
}

/// Every variable of the contract, and one that is none.
fn stripped(lab: &Lab) -> anyhow::Result<()> {
    let allow = allowing(lab, "allowed.test");
    let said = [
        "--env=SANDBOX_PROXY_PORT=3333",
        "--env=SANDBOX_INGRESS_PORTS=tcp:8000,udp:6000-6010",
        "--env=SANDBOX_UMASK=0077",
        "--env=SANDBOX_ENFORCE=name",
        "--env=SANDBOX_REPORT=off",
        "--env=SANDBOX_REPORT_SOCKET=/x/y/z",
        "--env=SANDBOX_REPORT_NONCE=secret",
        "--env=SANDBOX_RUN_ID=0123",
        "--env=SANDBOX_EXEC_RECORD=off",
        "--env=SANDBOX_OF_ANOTHER_LAUNCHER=secret",
        "--env=OWN=kept",
    ];
    let look = "env; umask; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'";
    for allow in [None, Some(&*allow)] {
        let options: Vec<_> = said.into_iter().chain(allow).collect();
        let finished = finish(engine_run(lab, &options, &["bash", "-c", look]))?;
        ends(
            &finished,
            0,
            &["OWN=kept\n", "0077\n", "HOME=/home/sandbox\n"],
        )?;
        ensure!(!finished.stdout.contains("SANDBOX_"), "{}", finished.stdout);
        let told = finished
            .stdout
            .contains("HTTPS_PROXY=http://127.0.0.1:3333\n");
        ensure!(told == allow.is_some(), "{}", finished.stdout);
    }
    Ok(())
}
