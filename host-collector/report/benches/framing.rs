//! What a report costs its sender and its reader: encoded, found in a stream, understood, made
//! harmless, and added to an account. And what a reader spends on what is no report.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot be set up must stop"
)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use policy::DenyReason;
use sandbox_egress_report::{
    Account, Body, Denied, FrameReader, Ledger, MAX_FRAME, Message, Printable, Report, Seed,
    Target, Transport, encode,
};

fn denied(host: &str) -> Denied {
    Denied {
        target: Target {
            host: Some(Printable::new(host)),
            address: None,
            port: Some(443),
        },
        proto: Transport::Tcp,
        reason: DenyReason::NotAllowed,
        count: 3,
        first: 120,
        last: 2_400,
        uid: None,
    }
}

fn message(seq: u64) -> Message {
    Message {
        body: Body::Denied(denied(&format!("host{seq}.project.example.com"))),
        seq,
        t: seq,
    }
}

fn sending(c: &mut Criterion) {
    let report = message(7);
    let mut group = c.benchmark_group("send");
    group.throughput(Throughput::Elements(1));
    group.bench_function("encode", |b| {
        b.iter(|| encode(black_box(&report), MAX_FRAME).unwrap());
    });
    let known: Vec<_> = (0..64).map(|n| denied(&format!("{n}.example"))).collect();
    let mut ledger = Ledger::new(Seed([7; 16]), 1_024);
    group.bench_function("count, a target that is known", |b| {
        let mut next = known.iter().cycle();
        b.iter(|| ledger.deny(next.next().unwrap().clone()));
    });
    group.finish();
}

fn reading(c: &mut Criterion) {
    let stream: Vec<u8> = (1..=REPORTS)
        .flat_map(|seq| encode(&message(seq), MAX_FRAME).unwrap())
        .collect();
    let deep = [vec![b'['; 8 * 1024], vec![b'\n']].concat();
    let mut group = c.benchmark_group("read");
    group.throughput(Throughput::Elements(REPORTS));
    group.bench_function("frames", |b| b.iter(|| lines(black_box(&stream), |_| ())));
    group.bench_function("reports, as they are journalled", |b| {
        b.iter(|| {
            let mut length = 0;
            lines(black_box(&stream), |line| {
                length += Report::read(line).unwrap().journal_line().len();
            });
            length
        });
    });
    group.bench_function("reports, into an account", |b| {
        b.iter(|| {
            let mut account = Account::new(Seed([7; 16]));
            lines(black_box(&stream), |line| {
                account.apply(&Report::read(line).unwrap().message);
            });
            account
        });
    });
    group.throughput(Throughput::Bytes(deep.len() as u64));
    group.bench_function("a line that is too deep", |b| {
        b.iter(|| {
            lines(black_box(&deep), |line| {
                assert!(Report::read(line).is_err());
            });
        });
    });
    group.finish();
}

/// In pieces of the size that a collector reads.
fn lines(stream: &[u8], mut each: impl FnMut(&[u8])) {
    let mut reader = FrameReader::new(MAX_FRAME);
    for piece in stream.chunks(16 * 1024) {
        reader.push(piece);
        while let Some(line) = reader.next_line().unwrap() {
            each(line);
        }
    }
}

const REPORTS: u64 = 1_000;

criterion_group!(benches, sending, reading);
criterion_main!(benches);
