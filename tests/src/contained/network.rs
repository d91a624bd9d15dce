//! A network of an engine's that leads nowhere but to a fake internet.

use std::{fs, process::Command, sync::Arc};

use anyhow::Context;
use serde_json::Value;
use tempfile::NamedTempFile;

use super::{ADDRESS, Engine, daemon::Daemon};
use crate::{
    internet::{Internet, Subnet},
    namespace::unique,
    process::output_of,
    programs::open_to,
};

/// A network of the engine's, with both families, whose bridge has no address on this machine: it
/// is not a way out.
#[derive(Debug)]
pub(super) struct EngineNetwork {
    engine: Engine,
    name: String,
    bridge: String,
    pub(super) subnet: Subnet,
    daemon: Option<Arc<Daemon>>,
    /// In the place of docker's, which names a resolver that this machine's kernel has and gVisor
    /// has not.
    resolv_conf: Option<NamedTempFile>,
}

impl EngineNetwork {
    /// Tries subnets until the engine takes one: others may run these tests at the same time.
    pub(super) fn create(engine: Engine) -> anyhow::Result<Self> {
        let name = format!("egress-{}", unique());
        let daemon = engine.variety().map(Daemon::shared).transpose()?;
        let ip = || ip(daemon.as_deref());
        let mut refusal = None;
        for number in 1..=250 {
            let subnet = Subnet::new(number);
            match lay(engine, &ip, &name, subnet) {
                Ok(bridge) => {
                    let resolv_conf = (engine == Engine::GvisorDocker)
                        .then(|| resolv_conf(subnet))
                        .transpose()?;
                    return Ok(Self {
                        engine,
                        name,
                        bridge,
                        subnet,
                        daemon,
                        resolv_conf,
                    });
                }
                Err(error) => refusal = Some(error),
            }
        }
        Err(refusal.context("no subnet to try")?).context("make a network of the engine's")
    }

    /// What puts a container on it.
    pub(super) fn engine_arguments(&self) -> Vec<String> {
        let [resolver, _] = self.subnet.resolver();
        let names = match &self.resolv_conf {
            Some(file) => format!("--volume={}:/etc/resolv.conf:ro", file.path().display()),
            None => format!("--dns={resolver}"),
        };
        vec![
            format!("--network={}", self.name),
            format!("--ip={}", self.subnet.v4(ADDRESS)),
            format!("--ip6={}", self.subnet.v6(ADDRESS)),
            names,
        ]
    }

    /// Puts `internet` on it.
    pub(super) fn plug(&self, internet: &Internet) -> anyhow::Result<()> {
        let daemon = self.daemon.as_deref();
        let interface = internet.plug(daemon.map(|daemon| &daemon.namespace))?;
        let mut ip = ip(daemon);
        ip.args(["link", "set", &interface, "master", &self.bridge, "up"]);
        output_of(&mut ip).map(drop)
    }
}

fn resolv_conf(subnet: Subnet) -> anyhow::Result<NamedTempFile> {
    let [resolver, _] = subnet.resolver();
    let file = NamedTempFile::with_prefix("egress-resolv-")?;
    fs::write(&file, format!("nameserver {resolver}\n"))?;
    open_to(file.path(), 0o644)?;
    Ok(file)
}

/// `ip`, where the engine has its bridges.
fn ip(daemon: Option<&Daemon>) -> Command {
    let mut ip = Command::new("ip");
    if let Some(daemon) = daemon {
        ip.args(["-n", daemon.namespace.name()]);
    }
    ip
}

impl Drop for EngineNetwork {
    fn drop(&mut self) {
        let _ = output_of(&mut self.engine.command(["network", "rm", &self.name]));
        let _ = output_of(ip(self.daemon.as_deref()).args(["link", "delete", &self.bridge]));
    }
}

/// Makes the network and returns the name of its bridge.
fn lay(
    engine: Engine,
    ip: &dyn Fn() -> Command,
    name: &str,
    subnet: Subnet,
) -> anyhow::Result<String> {
    let (v4_net, v6_net) = (subnet.v4_net(), subnet.v6_net());
    let (gateway4, gateway6) = subnet.gateway();
    let create = [
        "network", "create", "--subnet", &v4_net, "--ipv6", "--subnet", &v6_net,
    ];
    match engine {
        // Not `--internal`: later versions of docker resolve no outside names there.
        Engine::Docker | Engine::Remapped | Engine::GvisorDocker => {
            let bridge = format!("b{}", unique());
            let bridge_name = format!("com.docker.network.bridge.name={bridge}");
            let (gateway4, gateway6_text) = (gateway4.to_string(), gateway6.to_string());
            output_of(engine.command(create).args([
                "--gateway",
                &gateway4,
                "--gateway",
                &gateway6_text,
                "--opt",
                &bridge_name,
                "--opt",
                "com.docker.network.bridge.inhibit_ipv4=true",
                "--opt",
                "com.docker.network.bridge.enable_ip_masquerade=false",
                name,
            ]))?;
            // The fake internet has this address, and there is no option to leave it out.
            let address = format!("{gateway6}/64");
            output_of(ip().args(["addr", "delete", &address, "dev", &bridge]))?;
            Ok(bridge)
        }
        Engine::Podman | Engine::Rootless | Engine::GvisorPodman => {
            output_of(
                engine
                    .command(create)
                    .args(["--internal", "--disable-dns", name]),
            )?;
            let inspect = output_of(&mut engine.command(["network", "inspect", name]))?;
            let inspect: Value = serde_json::from_str(&inspect).context("read podman's answer")?;
            let bridge = inspect
                .pointer("/0/network_interface")
                .and_then(Value::as_str);
            let bridge = bridge.context("podman named no bridge")?.to_owned();
            // Podman makes it with the first container, which is too late to plug anything in.
            output_of(ip().args(["link", "add", &bridge, "type", "bridge"]))?;
            Ok(bridge)
        }
    }
}
