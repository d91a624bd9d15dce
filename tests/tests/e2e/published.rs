//! Who may come in where a port is published: whoever is outside of the container's own bridge, by
//! whichever way the engine has of bringing him there; and no neighbour.

use std::{
    io::Read as _,
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};
use sandbox_egress_tests::{
    contained::{BASE, Engine, Lab, Stage},
    namespace::{Namespace, unique},
    process::output_of,
};
use serde_json::Value;

use crate::LabTest;

pub(crate) const TESTS: [(&str, LabTest); 2] = [
    (
        "a-published-port-is-open-from-outside-and-not-to-neighbours",
        by_name,
    ),
    (
        "a-published-port-is-open-from-outside-where-addresses-decide",
        by_address,
    ),
];

/// Serves as many as come from outside, and says where it can be found.
const GUEST: &str = r"
from socket import create_server, gethostbyname, gethostname
server = create_server(('', 8000))
with open('address', 'w') as file:
    file.write(gethostbyname(gethostname()))
with open('said', 'w') as said:
    said.write('listening\n')
for _ in range(3):
    connection, _ = server.accept()
    connection.sendall(b'in')
    connection.close()
";

/// Where a neighbour is, and what it gets of two ports of the guest's, the published one first.
const NEIGHBOUR: &str = r"
import socket, sys
print(socket.gethostbyname(socket.gethostname()))
for port in 8000, 8001:
    try:
        print(port, socket.create_connection((sys.argv[1], port), 20).recv(2))
    except ConnectionRefusedError:
        print(port, 'refused')
";

fn by_name(lab: &Lab) -> anyhow::Result<()> {
    check(lab, "name")
}

fn by_address(lab: &Lab) -> anyhow::Result<()> {
    check(lab, "address")
}

fn check(lab: &Lab, enforce: &str) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let (inner, outer) = (Outside::create(lab.engine())?, "127.0.0.1");
    let [near, far] = [outer, inner.host()].map(free_port);
    let (near, far) = (near?, far?);
    let mut command = stage.collector();
    command.args(["run", "--detach", "--network=allowlist", "--engine"]);
    command.args([lab.engine().as_str(), "--allow=allowed.test"]);
    command.arg(format!("--enforce={enforce}"));
    command.arg("--workspace").arg(stage.files.workspace());
    command.arg(format!("--publish={outer}:{near}:8000"));
    command.arg(format!("--publish={}:{far}:8000", inner.host()));
    // On the engine's own network: that of the lab leads to this machine on purpose nowhere.
    command.arg(format!("--engine-arg={}", label(lab)?));
    let run = output_of(command.args([BASE, "--", "python3", "-c", GUEST]))?;
    stage.said()?;
    let address = std::fs::read_to_string(stage.files.workspace().join("address"))?;

    let mut neighbour = lab
        .engine()
        .command(["run", "--rm", "--entrypoint=python3"]);
    let got = output_of(neighbour.args([BASE, "-c", NEIGHBOUR, &address]))?;
    let (neighbour, got) = got.split_once('\n').context("no neighbour")?;
    ensure!(
        got == "8000 refused\n8001 refused\n",
        "a neighbour got {got}"
    );
    let from_here = |host: &str, port| -> anyhow::Result<String> {
        let mut text = String::new();
        let mut stream = TcpStream::connect((host, port))?;
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let got = [
        from_here(outer, near).context("come in by loopback")?,
        from_here(inner.host(), far).context("come in from this machine")?,
        inner.dial(far).context("come in from another")?,
    ];
    ensure!(got == ["in", "in", "in"], "{got:?}");

    let line: Value = stage.finish(run.trim())?;
    let at = |place: &str| line.pointer(place).cloned().unwrap_or_default();
    let ended = (at("/egress_channel/state"), at("/exit_code"));
    ensure!(ended == ("complete".into(), 0.into()), "{ended:?}: {line}");
    // Who came in is nothing that went out; who did not is told with whence.
    let denied = (at("/egress_denied"), at("/egress_denied_by_reason/ingress"));
    ensure!(denied == (2.into(), 2.into()), "{denied:?}: {line}");
    let told = at("/egress_denied_hosts");
    let told = told.as_array().into_iter().flatten();
    let told: Vec<_> = told
        .filter_map(|denied| denied.get("address")?.as_str())
        .collect();
    ensure!(
        told == [neighbour, neighbour],
        "{told:?}, not {neighbour} twice"
    );
    Ok(())
}

/// By which the lab knows its container.
fn label(lab: &Lab) -> anyhow::Result<String> {
    let mut arguments = lab.engine_arguments().into_iter();
    let label = arguments.find(|argument| argument.starts_with("--label="));
    label.context("containers of the lab have no label")
}

/// One that nobody listens at, as far as that can be said.
fn free_port(host: &str) -> anyhow::Result<u16> {
    Ok(TcpListener::bind((host, 0))?.local_addr()?.port())
}

/// Another machine, which this one has a network with.
struct Outside {
    machine: Namespace,
    link: String,
    net: String,
    is_let_through: bool,
}

impl Outside {
    fn create(engine: Engine) -> anyhow::Result<Self> {
        let machine = Namespace::create("outside")?;
        let (link, peer) = (format!("o{}", unique()), machine.name());
        // Tests that run at once have one each, of a block that is for tests alone (RFC 2544).
        let number = link
            .bytes()
            .fold(0_u32, |sum, byte| sum * 31 % 9973 + u32::from(byte));
        let net = format!("198.19.{}", number % 250);
        ip(&format!(
            "link add {link} type veth peer name eth0 netns {peer}"
        ))?;
        ip(&format!("addr add {net}.1/24 dev {link}"))?;
        ip(&format!("link set {link} up"))?;
        machine.ip(&format!("addr add {net}.2/24 dev eth0"))?;
        machine.ip("link set eth0 up")?;
        let net = format!("{net}.1");
        let outside = Self {
            machine,
            link,
            net,
            // A docker beside podman has this machine forward what docker's own rules name, and no
            // more. That is the machine's firewall, which is not what is tried here.
            is_let_through: engine == Engine::Podman,
        };
        outside.let_through("--insert")?;
        Ok(outside)
    }

    /// Has this machine forward what comes from there, or no longer.
    fn let_through(&self, whether: &str) -> anyhow::Result<()> {
        for way in ["--in-interface", "--out-interface"] {
            let rule = [whether, "FORWARD", way, &self.link, "--jump", "ACCEPT"];
            if self.is_let_through {
                let mut iptables = Command::new("iptables");
                output_of(iptables.arg("--wait").args(rule).stderr(Stdio::piped()))?;
            }
        }
        Ok(())
    }

    /// What this machine is called there.
    fn host(&self) -> &str {
        &self.net
    }

    /// What it gets of a port of this machine.
    fn dial(&self, port: u16) -> anyhow::Result<String> {
        let script = "import socket, sys
to = sys.argv[1], int(sys.argv[2])
print(end=socket.create_connection(to, 20).recv(2).decode())";
        let mut python = self.machine.command("/usr/bin/python3");
        python.args(["-c", script, self.host(), &port.to_string()]);
        output_of(&mut python)
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.let_through("--delete");
        // It may have gone with the machine.
        let _ = ip(&format!("link delete {}", self.link));
    }
}

fn ip(arguments: &str) -> anyhow::Result<()> {
    let mut ip = Command::new("ip");
    ip.args(arguments.split(' ')).stderr(Stdio::piped());
    output_of(&mut ip).map(drop)
}
