//! What the session log costs: a line, with and without its way to the disk, and answers from a
//! history as long as one gets, 60 000 runs over six files.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot be set up must stop"
)]

use std::{
    fs::{self, File},
    hint::black_box,
    io::{BufWriter, Write as _},
    path::Path,
    process::{Command, Stdio},
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use host_collector::{
    log::{Entries, Limits, Log, verify},
    session::Session,
};
use serde_json::json;

const RUNS: usize = 60_000;
const FILES: usize = 6;
const GROUP: usize = 64;

/// A line of about the length of most, refused a few things.
fn session(n: usize) -> Session {
    let hosts: Vec<_> = (0..n % 4)
        .map(|host| {
            json!({"host": format!("h{}.project{}.example", n % 997, host), "port": 443, "proto": "tcp",
                "reason": "not_allowed", "count": 1 + n % 3, "first_ms": 120, "last_ms": 2400})
        })
        .collect();
    let denied: usize = (n % 4) * (1 + n % 3);
    let line = json!({
        "v": 2, "time": format!("2026-01-{:02}T{:02}:{:02}:00.000Z", 1 + n / 2200, n / 100 % 24, n % 60),
        "ended": "2026-01-31T12:00:01.000Z", "duration_ms": 1000, "host": "builder-7", "run_id": format!("{n:024x}"),
        "image": "sandbox-egress/base", "workspace": format!("/srv/work/project{}", n % 50), "workdir": "/workspace",
        "agent": format!("agent{}", n % 5), "branch": "main", "command": ["python3", "-m", "build", "--wheel"],
        "engine": "docker", "network": "allowlist", "network_name": "bridge", "egress_enforcement_requested": "name",
        "egress_allow": ["files.example", "index.example"], "finished": true, "exit_code": 0, "end_reason": "exited",
        "egress_enforcement": "name", "egress_channel": {"state": "complete", "transport": "socket", "gaps": []},
        "egress_denied": denied, "egress_denied_by_reason": {"not_allowed": denied}, "egress_denied_hosts": hosts,
        "egress_denied_hosts_distinct": n % 4, "egress_allowed": 3,
        "egress_hosts": [{"host": "files.example", "port": 443, "connections": 3, "failures": 0, "bytes_up": 900, "bytes_down": 91824}],
        "prev": "a".repeat(64),
    });
    serde_json::from_value(line).unwrap()
}

/// Written as files and not by appending: the chain does not matter here.
fn history(dir: &Path) {
    for generation in 0..FILES {
        let name = match generation {
            0 => "sessions.jsonl".to_owned(),
            n => format!("sessions.jsonl.{n}"),
        };
        let mut out = BufWriter::new(File::create(dir.join(name)).unwrap());
        let first = (FILES - 1 - generation) * RUNS / FILES;
        for n in first..first + RUNS / FILES {
            serde_json::to_writer(&mut out, &session(n)).unwrap();
            out.write_all(b"\n").unwrap();
        }
        out.flush().unwrap();
    }
}

fn append(c: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), Limits::default()).unwrap();
    let line = session(3);
    let mut lines: Vec<_> = (0..GROUP).map(session).collect();
    let mut group = c.benchmark_group("append");
    group.throughput(Throughput::Elements(1));
    group.bench_function("a line, to the disk", |b| {
        b.iter(|| log.append(black_box(&line)).unwrap());
    });
    if let Ok(memory) = tempfile::tempdir_in("/dev/shm") {
        let log = Log::open(memory.path(), Limits::default()).unwrap();
        group.bench_function("a line, in memory", |b| {
            b.iter(|| log.append(black_box(&line)).unwrap());
        });
    }
    group.throughput(Throughput::Elements(GROUP as u64));
    group.bench_function("64 lines, to the disk", |b| {
        b.iter(|| log.append_all(black_box(&mut lines)).unwrap());
    });
    if let Ok(memory) = tempfile::tempdir_in("/dev/shm") {
        let log = Log::open(memory.path(), Limits::default()).unwrap();
        group.bench_function("64 lines, in memory", |b| {
            b.iter(|| log.append_all(black_box(&mut lines)).unwrap());
        });
    }
    group.finish();
}

/// The whole command, from its start to its end, as a person waits for it.
fn verb(dir: &Path, arguments: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_host-collector"));
    command.args(arguments).arg("--audit-dir").arg(dir);
    let status = command
        .stdout(Stdio::null())
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(status.code().is_some_and(|code| code < 2), "{arguments:?}");
}

fn answers(c: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    history(dir.path());
    let bytes: u64 = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    let mut group = c.benchmark_group(format!("{RUNS} runs, {} MiB", bytes >> 20));
    group.sample_size(20);
    for (name, arguments) in [
        ("denials by host", &["denials", "--json"][..]),
        (
            "denials by reason",
            &["denials", "--by", "reason", "--json"],
        ),
        (
            "denials since",
            &["denials", "--since", "2026-01-20", "--by", "agent"],
        ),
        ("list the newest 50", &["list"]),
        ("suggest since", &["suggest", "--since", "2026-01-20"]),
    ] {
        group.bench_function(name, |b| b.iter(|| verb(dir.path(), arguments)));
    }
    group.bench_function("read all", |b| b.iter(|| Entries::open(dir.path()).count()));
    group.bench_function("verify", |b| {
        b.iter(|| verify(dir.path(), &mut |_, _| {}).lines);
    });
    group.finish();
}

criterion_group!(benches, append, answers);
criterion_main!(benches);
