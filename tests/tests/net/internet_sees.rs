//! The measuring instrument itself: what nobody guards does reach the fake internet and is seen
//! there. Without this, “nothing arrived” would prove nothing.

use std::{collections::BTreeSet, process::Command};

use anyhow::ensure;
use libtest_mimic::Trial;
use sandbox_egress_tests::{
    internet::{Internet, Subnet},
    namespace::Namespace,
    process::output_of,
};

/// What an unguarded guest runs, and what the internet must have seen of it.
const ATTEMPTS: [(&str, &str, &[&str], &[&str]); 7] = [
    (
        "tls",
        "curl -sS --cacert $CA --resolve allowed.test:443:{v4}.10 https://allowed.test/x",
        &["allowed.test:443/tcp"],
        &["allowed.test:443 GET https://allowed.test/x"],
    ),
    (
        "http over v6",
        "curl -sS --resolve 'denied.test:80:[{v6}::66]' http://denied.test/",
        &["denied.test:80/tcp"],
        &["denied.test:80 GET http://denied.test/"],
    ),
    (
        "another SNI than Host",
        "curl -sS --cacert $CA --resolve allowed.test:443:{v4}.10 -H 'Host: denied.test' https://allowed.test/",
        &["allowed.test:443/tcp"],
        &["allowed.test:443 GET https://denied.test/ sni=allowed.test"],
    ),
    (
        "a bare connection",
        "bash -c 'exec 3<>/dev/tcp/{v4}.30/22; head -n 1 <&3'",
        &["git.test:22/tcp"],
        &["git.test:22 tcp"],
    ),
    (
        "a closed port",
        "! curl -sS http://{v4}.20/",
        &["down.test:80/tcp"],
        &[],
    ),
    (
        "datagrams of both families",
        "bash -c 'echo x >/dev/udp/{v4}.66/443; echo x >/dev/udp/{v6}::66/9'",
        &["denied.test:443/udp", "denied.test:9/udp"],
        &[],
    ),
    (
        "echo requests",
        // Not ping, which waits for its answer and is not on every machine.
        r#"/usr/bin/python3 -c 'from socket import *
socket(AF_INET, SOCK_RAW, IPPROTO_ICMP).sendto(bytes.fromhex("0800f7ff00000000"), ("{v4}.66", 0))
socket(AF_INET6, SOCK_RAW, IPPROTO_ICMPV6).sendto(bytes.fromhex("8000000000000000"), ("{v6}::66", 0))'"#,
        &["denied.test/icmp", "denied.test/ipv6-icmp"],
        &[],
    ),
];

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |(name, script, reached, requests): (&str, &'static str, _, _)| {
        Trial::test(
            format!("the_internet_sees::{}", name.replace(' ', "_")),
            move || Ok(see(script, reached, requests)?),
        )
    };
    ATTEMPTS.into_iter().map(trial).collect()
}

fn see(script: &str, reached: &[&str], requests: &[&str]) -> anyhow::Result<()> {
    let internet = Internet::start(Subnet::new(1))?;
    let guest = Namespace::create("guest")?;
    internet.plug_guest(&guest, 200)?;
    let certificate = tempfile::NamedTempFile::new()?;
    std::fs::write(certificate.path(), internet.root_certificate())?;
    let script = internet.subnet().fill(script);
    let mut shell: Command = guest.command("sh");
    output_of(shell.args(["-ec", &script]).env("CA", certificate.path()))?;
    let account = internet.account()?;
    let wanted: BTreeSet<_> = reached.iter().map(|place| (*place).to_owned()).collect();
    ensure!(account.reached == wanted, "{account:#?}");
    ensure!(account.requests == requests, "{account:#?}");
    internet.reset()?;
    ensure!(internet.account()?.reached.is_empty(), "a reset forgets");
    Ok(())
}
