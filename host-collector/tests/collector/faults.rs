//! Disks, crowds and power cuts: the log loses nothing that it has, and no run fails for it.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use host_collector::{
    log::{Entries, Kind, Limits, Log, verify},
    session::{Launched, Session},
};

use crate::engine::{Done, Host, ended};

fn session(run_id: &str, bytes: usize) -> Session {
    Session {
        v: Some(2),
        run_id: Some(run_id.into()),
        launch: Launched {
            command: vec!["x".repeat(bytes)],
            ..Launched::default()
        },
        ..Session::default()
    }
}

fn runs(dir: &Path) -> BTreeSet<String> {
    Entries::open(dir)
        .filter_map(|entry| entry.session.run_id)
        .collect()
}

fn kinds(dir: &Path) -> Vec<Kind> {
    let report = verify(dir, &mut |_, _| {});
    report
        .findings
        .shown()
        .iter()
        .map(|finding| finding.kind)
        .collect()
}

#[test]
fn two_hundred_collectors_at_once_lose_no_run_over_a_rotation() {
    let host = Host::new();
    host.container("exit 7", &ended(7));
    let audit = host.path("audit");
    // Nearly full, so that the file is rotated among them.
    let log = Log::open(&audit, Limits::default()).unwrap();
    for n in 0..133 {
        log.append(&session(&format!("before-{n}"), 62_000))
            .unwrap();
    }
    let argument = "y".repeat(4000);
    let arguments = ["run", "--network", "none", "img", "--", argument.as_str()];
    let crowd: Vec<_> = (0..200)
        .map(|_| {
            let mut collector = host.collector(&arguments);
            collector
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for collector in crowd {
        let output = collector.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(7), "{said}");
        assert!(!said.contains("not in the session log"), "{said}");
    }
    assert!(audit.join("sessions.jsonl.1").exists());
    assert_eq!(runs(&audit).len(), 333);
    assert_eq!(kinds(&audit), []);
}

#[test]
fn a_power_cut_at_any_byte_costs_the_line_that_was_written_and_is_told() {
    let before = tempfile::tempdir().unwrap();
    Log::open(before.path(), Limits::default())
        .unwrap()
        .append(&session("1", 9))
        .unwrap();
    let mark = fs::read(before.path().join("sessions.lock")).unwrap();
    let first = fs::read(before.path().join("sessions.jsonl")).unwrap();
    let log = Log::open(before.path(), Limits::default()).unwrap();
    log.append(&session("2", 9)).unwrap();
    let both = fs::read(before.path().join("sessions.jsonl")).unwrap();
    for cut in first.len()..=both.len() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("sessions.jsonl"), &both[..cut]).unwrap();
        // The mark is made when the line is on the disk, so it is still that of the line before.
        fs::write(dir.path().join("sessions.lock"), &mark).unwrap();
        let (nothing, whole) = (cut == first.len(), cut + 1 >= both.len());
        let torn = !nothing && cut < both.len();
        assert_eq!(
            kinds(dir.path()),
            vec![Kind::Torn; usize::from(torn)],
            "cut at {cut}"
        );
        let log = Log::open(dir.path(), Limits::default()).unwrap();
        log.append(&session("3", 9)).unwrap();
        let expected: &[&str] = if whole { &["1", "2", "3"] } else { &["1", "3"] };
        assert_eq!(
            runs(dir.path()),
            expected.iter().map(|run| (*run).to_owned()).collect(),
            "cut at {cut}"
        );
        let half = !nothing && !whole;
        assert_eq!(
            kinds(dir.path()),
            vec![Kind::Half; usize::from(half)],
            "cut at {cut}"
        );
    }
}

/// Runs `script` where this process may mount, in namespaces of its own. `$COLLECTOR` is a run whose
/// container ends with 7, `$VERIFY` checks its log.
fn with_mounts(host: &Host, script: &str) -> Done {
    fs::create_dir_all(host.path("audit")).unwrap();
    let collector = env!("CARGO_BIN_EXE_host-collector");
    let mut shell = Command::new("unshare");
    shell.args(["--user", "--map-root-user", "--mount", "sh", "-euc", script]);
    shell
        .env(
            "PATH",
            format!(
                "{}:/usr/sbin:/usr/bin:/sbin:/bin",
                host.path("bin").display()
            ),
        )
        .env("XDG_RUNTIME_DIR", host.path("run"))
        .env("SANDBOX_AUDIT_DIR", host.path("audit"))
        .env("AUDIT", host.path("audit"))
        .env("COLLECTOR", format!("{collector} run --network none img"))
        .env("VERIFY", format!("{collector} verify"))
        .stdin(Stdio::null());
    Done::of(shell.output().unwrap())
}

#[test]
fn a_full_disk_costs_the_line_and_neither_the_run_nor_what_was_written() {
    let host = Host::new();
    host.container("exit 7", &ended(7));
    let done = with_mounts(
        &host,
        r#"mount -t tmpfs -o size=64k tmpfs "$AUDIT"
        $COLLECTOR || [ $? = 7 ]
        before=$(cat "$AUDIT/sessions.jsonl")
        # All but a few bytes of the last page are taken, so that a line fits in part.
        cat /dev/zero >"$AUDIT/ballast" 2>/dev/null || :
        for n in 1 2 3 4 5 6 7 8 9 10 11 12; do
            $COLLECTOR 2>>"$AUDIT/../said" || [ $? = 7 ]
        done
        # Nothing of what was there has changed, and nothing half is behind it.
        case "$(cat "$AUDIT/sessions.jsonl")" in "$before"*) ;; *) echo lost ;; esac
        tail -c 1 "$AUDIT/sessions.jsonl" | od -An -c
        rm "$AUDIT/ballast"
        $COLLECTOR || [ $? = 7 ]
        wc -l <"$AUDIT/sessions.jsonl"
        $VERIFY"#,
    );
    assert_eq!(done.code, 0, "{done:?}");
    assert!(
        done.stdout.contains("\\n") && !done.stdout.contains("lost"),
        "{done:?}"
    );
    assert!(done.stdout.ends_with("sound\n"), "{done:?}");
    let said = fs::read_to_string(host.path("said")).unwrap();
    assert!(
        said.contains("this run is not in the session log: append to "),
        "{said}"
    );
}

#[test]
fn a_directory_that_cannot_be_written_costs_the_line_and_not_the_run() {
    let host = Host::new();
    host.container("exit 7", &ended(7));
    let done = with_mounts(
        &host,
        r#"mount -t tmpfs -o size=64k tmpfs "$AUDIT"
        $COLLECTOR 2>/dev/null || [ $? = 7 ]
        mount -o remount,ro "$AUDIT"
        $COLLECTOR || echo "code $?"
        $VERIFY"#,
    );
    assert_eq!(done.code, 0, "{done:?}");
    assert!(
        done.stdout.starts_with("code 7\n") && done.stdout.ends_with("sound\n"),
        "{done:?}"
    );
    let said: Vec<_> = done
        .stderr
        .lines()
        .filter(|line| line.contains("not in the session log"))
        .collect();
    assert_eq!(said.len(), 1, "{done:?}");
}

#[test]
fn something_else_in_the_log_s_place_costs_the_line_and_not_the_run() {
    for file in ["sessions.jsonl", "sessions.lock"] {
        let host = Host::new();
        host.container("exit 7", &ended(7));
        fs::create_dir_all(host.path("audit").join(file)).unwrap();
        let done = host.does(&["run", "--network", "none", "img"]);
        assert_eq!(done.code, 7, "{done:?}");
        assert!(
            done.stderr.contains("not in the session log: open ") && done.stderr.contains(file),
            "{done:?}"
        );
    }
}
