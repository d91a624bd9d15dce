//! What building a policy and deciding cost, by the number of entries: building may grow with
//! them, deciding may not.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use policy::{Destination, Policy};

const SIZES: [usize; 3] = [10, 1_000, 100_000];

/// Names of about the length of real ones, some of them wildcards and some with ports.
fn list(size: usize) -> String {
    let entry = |i: usize| {
        let (before, after) = match i % 10 {
            0 => ("*.", ""),
            1 => ("", ":8443"),
            _ => ("", ""),
        };
        format!("{before}host{i}.project{}.example.com{after}\n", i % 97)
    };
    (0..size).map(entry).collect()
}

fn destination(host: &str, port: u16) -> Destination {
    match Destination::parse(host, port) {
        Ok(destination) => destination,
        Err(error) => unreachable!("{host}: {error}"),
    }
}

fn policy(size: usize) -> Policy {
    match Policy::parse(&list(size)) {
        Ok(policy) => policy,
        Err(error) => unreachable!("{error}"),
    }
}

fn build(c: &mut Criterion) {
    let mut group = c.benchmark_group("build");
    for size in SIZES {
        let list = list(size);
        group.throughput(Throughput::Elements(size as u64));
        group.bench_with_input(BenchmarkId::from_parameter(size), &list, |b, list| {
            b.iter(|| Policy::parse(black_box(list)));
        });
    }
    group.finish();
}

fn decide(c: &mut Criterion) {
    for (name, host, port) in [
        ("hit", "host2.project2.example.com", 443),
        ("hit_wildcard", "a.b.host0.project0.example.com", 443),
        ("miss", "unrelated.example.net", 443),
        ("miss_deep", "a.b.c.d.e.f.g.h.unrelated.example.net", 443),
        ("miss_address", "203.0.113.7", 443),
        ("miss_port", "host2.project2.example.com", 22),
        ("miss_apex", "host0.project0.example.com", 443),
        ("miss_alike", "host2.projects2.example.com", 443),
    ] {
        let mut group = c.benchmark_group(name);
        let destination = destination(host, port);
        for size in SIZES {
            let policy = policy(size);
            group.bench_function(BenchmarkId::from_parameter(size), |b| {
                b.iter(|| policy.decide(black_box(&destination)));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, build, decide);
criterion_main!(benches);
