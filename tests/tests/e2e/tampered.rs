//! What the host's root does to the rules of a container, and what comes of it. The guest cannot: no
//! case is about that.

use std::process::Command;

use anyhow::{Context, ensure};
use sandbox_egress_tests::{
    case::Network,
    contained::{BASE, Engine, Files, Lab},
    process::output_of,
    terminal::OnTerminal,
};
use serde_json::Value;

use crate::LabTest;

pub(crate) const TESTS: [(&str, LabTest); 8] = [
    ("rules-that-are-flushed-are-loaded-again", flushed),
    ("a-table-that-is-deleted-is-loaded-again", deleted),
    ("a-rule-that-is-added-is-taken-out-again", rule_added),
    ("an-address-that-is-added-is-taken-out-again", address_added),
    ("whoever-goes-on-flushing-ends-the-guest", flooded),
    ("what-the-engine-changes-is-no-alarm", engine_changes),
    (
        "where-addresses-decide-what-was-open-is-open-again",
        flushed_by_address,
    ),
    (
        "rules-of-iptables-that-are-flushed-are-loaded-again",
        flushed_iptables,
    ),
];

/// A guest that is refused one packet, waits for a line, and is refused another.
const TRIES: &str = "try() { bash -c 'echo >/dev/tcp/{v4}.66/9' 2>&1; }
try; echo re''ady; read line; try; echo d''one; exit 3";

/// A run whose guest is ready.
struct Stage {
    files: Files,
    program: OnTerminal,
    /// The id of process 1 on the host.
    pid: String,
}

impl Stage {
    fn start(lab: &Lab, guest: &str) -> anyhow::Result<Self> {
        Self::start_with(lab, guest, &[])
    }

    fn start_with(lab: &Lab, guest: &str, arguments: &[&str]) -> anyhow::Result<Self> {
        let files = lab.files()?;
        lab.internet().reset()?;
        let subnet = lab.internet().subnet();
        let allow = [format!(
            "allowed.test:443,allowed.test:22/tcp@{}",
            subnet.v4_net()
        )];
        let mut command = lab.collector(&files, Network::Allowlist, &allow);
        command.args(arguments);
        command.args(["-it", BASE, "--", "bash", "-c", &subnet.fill(guest)]);
        let mut program = OnTerminal::start(&command, 33, 97)?;
        program.wait_for("ready")?;
        let container = lab.container()?;
        let pid = output_of(&mut lab.engine().command([
            "inspect",
            "--format={{.State.Pid}}",
            &container,
        ]))?;
        Ok(Self {
            files,
            program,
            pid: pid.trim().to_owned(),
        })
    }

    /// Runs a script of the host's root, in which `nft` works on the container's rules and
    /// `restored` waits until they are ours again, or process 1 is `gone`.
    fn as_root(&self, script: &str) -> anyhow::Result<()> {
        let functions = "
            inside() { nsenter --target $pid --net \"$@\"; }
            nft() { inside /usr/sbin/nft \"$@\"; }
            gone() { test ! -d /proc/$pid; }
            restored() {
                until gone || { nft list chain inet sandbox_egress output 2>/dev/null | grep -q denied_packets &&
                    nft list chain inet sandbox_egress refuse | grep -q prohibited &&
                    ! nft list table inet sandbox_egress | grep -q 192.0.2.1; }
                do sleep 0.02; done
            }";
        let mut shell = Command::new("timeout");
        shell.args(["60", "bash", "-ec"]);
        shell.arg(format!("pid={}\n{functions}\n{script}", self.pid));
        output_of(&mut shell).map(drop)
    }

    /// Lets the guest go on, and returns its session line.
    fn finish(mut self) -> anyhow::Result<(i32, Value)> {
        // The guest may be gone.
        let _ = self.program.send(b"\n");
        let (code, shown) = self.program.finish()?;
        let line = self.files.session_line()?;
        Ok((code, line.with_context(|| format!("no line: {shown}"))?))
    }
}

/// The gaps of a line, each as `kind whole|open detail`.
fn gaps(line: &Value) -> Vec<String> {
    let gaps = line
        .pointer("/egress_channel/gaps")
        .and_then(Value::as_array);
    let text = |gap: &Value, key: &str| gap.get(key).and_then(Value::as_str).map(str::to_owned);
    gaps.into_iter()
        .flatten()
        .map(|gap| {
            let state = if gap.get("to_ms").is_some_and(Value::is_number) {
                "whole"
            } else {
                "open"
            };
            let [kind, detail] = ["kind", "detail"].map(|key| text(gap, key).unwrap_or_default());
            format!("{kind} {state} {detail}")
        })
        .collect()
}

/// What was open is, and nothing else: of both who tries after the flush.
fn flushed_by_address(lab: &Lab) -> anyhow::Result<()> {
    let guest = "try() { bash -c 'echo >/dev/tcp/{v4}.66/9' 2>&1; }
        reach() { bash -c 'exec 3<>/dev/tcp/{v4}.10/22'; }
        try; reach; echo re''ady; read line; try; reach";
    let run = Stage::start_with(lab, guest, &["--enforce=address"])?;
    run.as_root("nft flush ruleset; restored")?;
    let (code, line) = run.finish()?;
    ensure!(code == 0, "{code}: {line}");
    ensure!(
        line.pointer("/egress_enforcement") == Some(&"address".into()),
        "{line}"
    );
    let gaps = gaps(&line);
    let told = |gap: &String| gap.starts_with("tamper whole the rules were changed by `nft`");
    ensure!(gaps.len() == 1 && gaps.iter().all(told), "{gaps:#?}");
    let denied = line.pointer("/egress_denied_by_reason/packet");
    ensure!(denied == Some(&2.into()), "{line}");
    let reached = lab.internet().account()?.reached;
    ensure!(reached.iter().eq(&["allowed.test:22/tcp"]), "{reached:?}");
    Ok(())
}

/// Of them the kernel tells nobody: they are looked at.
fn flushed_iptables(lab: &Lab) -> anyhow::Result<()> {
    let arguments = [
        "--engine-arg=--volume=/dev/null:/usr/sbin/nft:ro",
        "--engine-arg=--cap-add=NET_RAW",
    ];
    let run = Stage::start_with(lab, TRIES, &arguments)?;
    run.as_root(
        "inside iptables-legacy-save | grep -q 'A OUTPUT -j sandbox_output'
         inside iptables-legacy -F OUTPUT
         inside iptables-legacy -P OUTPUT ACCEPT
         until inside iptables-legacy-save | grep -q 'A OUTPUT -j sandbox_output'; do sleep 0.02; done
         inside iptables-legacy-save -t filter | grep -q 'OUTPUT DROP'",
    )?;
    let (code, line) = run.finish()?;
    ensure!(code == 3, "{code}: {line}");
    let gaps = gaps(&line);
    let told = |gap: &String| {
        gap.starts_with("tamper whole the rules were changed by somebody")
            && gap.ends_with("loaded again")
    };
    ensure!(gaps.len() == 1 && gaps.iter().all(told), "{gaps:#?}");
    let denied = line.pointer("/egress_denied_by_reason/packet");
    ensure!(denied == Some(&2.into()), "{line}");
    let reached = lab.internet().account()?.reached;
    ensure!(reached.is_empty(), "{reached:?} was reached");
    Ok(())
}

/// Refused before and after, counted, and the interval between told with its author.
fn is_mended(lab: &Lab, script: &str) -> anyhow::Result<()> {
    let run = Stage::start(lab, TRIES)?;
    run.as_root(script)?;
    let (code, line) = run.finish()?;
    ensure!(code == 3, "{code}: {line}");
    let state = line.pointer("/egress_channel/state");
    ensure!(state == Some(&"gap".into()), "{line}");
    let gaps = gaps(&line);
    let told = |gap: &String| gap.starts_with("tamper whole the rules were changed by `nft`");
    ensure!(gaps.len() == 1 && gaps.iter().all(told), "{gaps:#?}");
    let denied = line.pointer("/egress_denied_by_reason/packet");
    ensure!(denied == Some(&2.into()), "{line}");
    let reached = lab.internet().account()?.reached;
    ensure!(reached.is_empty(), "{reached:?} was reached");
    Ok(())
}

fn flushed(lab: &Lab) -> anyhow::Result<()> {
    is_mended(lab, "nft flush ruleset; restored")
}

fn deleted(lab: &Lab) -> anyhow::Result<()> {
    is_mended(lab, "nft delete table inet sandbox_egress; restored")
}

fn rule_added(lab: &Lab) -> anyhow::Result<()> {
    is_mended(
        lab,
        "nft insert rule inet sandbox_egress output ip daddr != 192.0.2.1 accept; restored",
    )
}

fn address_added(lab: &Lab) -> anyhow::Result<()> {
    is_mended(
        lab,
        "nft add element inet sandbox_egress allow4 '{ 192.0.2.1 . 9 timeout 1h }'; restored",
    )
}

/// No number of reloads is enough for somebody who does not stop: then there is no guest.
fn flooded(lab: &Lab) -> anyhow::Result<()> {
    let run = Stage::start(lab, TRIES)?;
    run.as_root(
        // Two of them may be noticed as one, so that no number of them is enough to tell.
        "until gone; do
             nft flush ruleset || break
             restored
         done",
    )?;
    let (code, line) = run.finish()?;
    ensure!(code == 137, "{code}: {line}");
    // Where there are no rules any more, there are no counters to be read either, which is told too.
    let mut gaps = gaps(&line);
    gaps.retain(|gap| gap.starts_with("tamper "));
    let (last, others) = gaps.split_last().context("no gap")?;
    ensure!(
        last.starts_with("tamper open ") && last.ends_with("the guest was ended"),
        "{last}"
    );
    ensure!(others.len() == 8, "{gaps:#?}");
    let signal = line.get("signal");
    ensure!(signal == Some(&9.into()), "{line}");
    Ok(())
}

/// Another network, another resolver's rules, a proxy that is started again: none of it is tampering.
fn engine_changes(lab: &Lab) -> anyhow::Result<()> {
    let run = Stage::start(
        lab,
        "getent hosts allowed.test; echo re''ady; read line; getent hosts allowed.test; exit 3",
    )?;
    if lab.engine() == Engine::Docker {
        let container = lab.container()?;
        for verb in ["connect", "disconnect"] {
            let mut command = lab
                .engine()
                .command(["network", verb, "bridge", &container]);
            output_of(&mut command)?;
        }
    }
    run.as_root(
        "nft add table ip nat
         nft add chain ip nat OUTPUT '{ type nat hook output priority -100; }'
         nft add rule ip nat OUTPUT ip daddr 127.0.0.11 udp dport 53 dnat to 127.0.0.11:4000
         nft delete table ip nat",
    )?;
    let (code, line) = run.finish()?;
    ensure!(code == 3, "{code}: {line}");
    let state = line.pointer("/egress_channel/state");
    ensure!(state == Some(&"complete".into()), "{line}");
    Ok(())
}
