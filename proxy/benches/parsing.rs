//! What it costs to read whom a guest names: in a `ClientHello`, a request, a question. Short and
//! long, and cut short, which an attacker can have as often as it likes.
use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sandbox_egress_proxy::parsing::{destination, question, server_name};

fn parsers(c: &mut Criterion) {
    let request = request(12);
    measure(c, "hello of openssl, TLS 1.2", SMALL, server_name);
    measure(c, "hello of chromium, post-quantum", LARGE, server_name);
    measure(c, "connect", CONNECT, destination);
    measure(c, "absolute request, 12 fields", &request, destination);
    measure(
        c,
        "absolute request, 98 fields",
        &self::request(98),
        destination,
    );
    measure(c, "question", QUESTION, question);
    let cut = |bytes: &[u8]| bytes.get(..bytes.len() - 1).map(<[u8]>::to_vec);
    let (hello, request) = (
        cut(LARGE).unwrap_or_default(),
        cut(&request).unwrap_or_default(),
    );
    c.bench_function("hello of chromium, one byte short", |b| {
        b.iter(|| server_name(black_box(&hello)));
    });
    c.bench_function("absolute request, one byte short", |b| {
        b.iter(|| destination(black_box(&request)));
    });
}

fn measure<T>(c: &mut Criterion, name: &str, bytes: &[u8], parse: fn(&[u8]) -> Option<T>) {
    assert!(parse(bytes).is_some(), "{name} is not parsed");
    let mut group = c.benchmark_group("parse");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function(name, |b| b.iter(|| parse(black_box(bytes))));
    group.finish();
}

fn request(fields: usize) -> Vec<u8> {
    let mut head = String::from("GET http://index.example.org/simple/pip/ HTTP/1.1\r\n");
    head.push_str("Host: index.example.org\r\n");
    for _ in 1..fields {
        head.push_str("X-Field: some value of a usual length\r\n");
    }
    head.push_str("\r\n");
    head.into_bytes()
}

const SMALL: &[u8] = include_bytes!("../tests/hellos/openssl-tls12.bin");
const LARGE: &[u8] = include_bytes!("../tests/hellos/chromium.bin");
const CONNECT: &[u8] = b"CONNECT files.pythonhosted.org:443 HTTP/1.1\r\n\
    Host: files.pythonhosted.org:443\r\nUser-Agent: curl/8.5.0\r\n\
    Proxy-Connection: Keep-Alive\r\n\r\n";
const QUESTION: &[u8] = b"\0\x07\x01\0\0\x01\0\0\0\0\0\x01\x05files\x0cpythonhosted\x03org\0\
    \0\x01\0\x01\0\0\x29\x04\xd0\0\0\0\0\0\0";

criterion_group!(benches, parsers);
criterion_main!(benches);
