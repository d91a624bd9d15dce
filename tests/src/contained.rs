//! Guests in containers of a real engine, launched by the real `host-collector run`, on a network
//! of the engine's that leads nowhere but to the fake internet.

mod daemon;
mod engine;
mod gvisor;
mod network;
mod rootless;
mod scene;
mod stage;

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, bail};
use serde_json::Value;
use tempfile::TempDir;

pub use self::{engine::Engine, stage::Stage};
use self::{network::EngineNetwork, rootless::Uplink, scene::Scene};
use crate::{
    case::{Case, GUEST_MODULE, Network, Outcome},
    internet::{Internet, Site, Subnet},
    namespace::unique,
    process::{Running, output_of},
    programs::{Programs, open_to, public_directory},
    schema,
};

/// The image that the cases run in.
pub const BASE: &str = "sandbox-egress/base";
/// The last part of a guest's address.
const ADDRESS: u8 = 200;

/// An engine's network with a fake internet, for one guest at a time.
#[derive(Debug)]
pub struct Lab {
    engine: Engine,
    programs: Programs,
    way: Way,
    internet: Internet,
    label: String,
    /// Where its engine's clients stand: conmon writes into the directory that it is started in.
    place: TempDir,
}

/// How containers of a lab come to its internet.
#[derive(Debug)]
enum Way {
    /// Over a network of the engine's that both are on.
    Network(EngineNetwork),
    /// Through a process that translates, from a place that is on the internet's network.
    Uplink(Uplink),
}

/// A launch's own files: its workspace and its session log.
#[derive(Debug)]
pub struct Files {
    directory: TempDir,
}

impl Lab {
    /// Makes one.
    pub fn create(engine: Engine) -> anyhow::Result<Self> {
        Self::create_with(engine, Site::default())
    }

    /// Makes one whose internet has more to serve than its own words.
    pub fn create_with(engine: Engine, site: Site) -> anyhow::Result<Self> {
        let programs = Programs::locate()?;
        let (way, internet) = if engine == Engine::Rootless {
            rootless::require()?;
            // Nothing of it is on the machine's own network, so all labs have the same addresses.
            let internet = Internet::start_with(Subnet::new(1), site)?;
            let uplink = Uplink::create(&internet, &programs)?;
            (Way::Uplink(uplink), internet)
        } else {
            let network = EngineNetwork::create(engine)?;
            let internet = Internet::start_with(network.subnet, site)?;
            network.plug(&internet)?;
            (Way::Network(network), internet)
        };
        let label = format!("sandbox-egress-tests={}", unique());
        Ok(Self {
            engine,
            programs,
            way,
            internet,
            label,
            place: public_directory()?,
        })
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// A command of the engine's, from where its containers reach the internet.
    #[must_use]
    pub fn command<const N: usize>(&self, arguments: [&str; N]) -> Command {
        match &self.way {
            Way::Network(_) => {
                let mut command = self.engine.command(arguments);
                command.current_dir(self.place.path());
                command
            }
            Way::Uplink(uplink) => {
                let mut command = uplink.command(self.engine.as_str());
                command.args(arguments);
                command
            }
        }
    }

    /// The internet that its guests see.
    #[must_use]
    pub fn internet(&self) -> &Internet {
        &self.internet
    }

    /// What an engine's `run` must be told for a container to be in this lab.
    #[must_use]
    pub fn engine_arguments(&self) -> Vec<String> {
        let mut arguments = match &self.way {
            Way::Network(network) => network.engine_arguments(),
            Way::Uplink(uplink) => uplink.engine_arguments(),
        };
        arguments.push(format!("--label={}", self.label));
        arguments.push("--env=SSL_CERT_FILE=/workspace/ca.pem".to_owned());
        arguments
    }

    /// Files for one launch.
    pub fn files(&self) -> anyhow::Result<Files> {
        let files = Files {
            directory: public_directory()?,
        };
        fs::create_dir(files.workspace())?;
        open_to(&files.workspace(), 0o777)?;
        fs::write(files.certificates(), self.internet.root_certificate())?;
        let (module, text) = GUEST_MODULE;
        fs::write(files.workspace().join(module), text)?;
        if self.engine == Engine::Rootless {
            rootless::give(files.directory.path())?;
        }
        Ok(files)
    }

    /// `host-collector`, to be told what to do.
    #[must_use]
    pub fn collector_verb(&self) -> Command {
        let collector = self.programs.path("host-collector");
        let mut command = match (self.engine.variety(), &self.way) {
            (_, Way::Uplink(uplink)) => return uplink.command(uplink.collector()),
            (Some(variety), Way::Network(_)) => variety.beside(collector),
            (None, Way::Network(_)) => Command::new(collector),
        };
        command.current_dir(self.place.path());
        command
    }

    /// `host-collector run` up to the image, in this lab and with these files.
    #[must_use]
    pub fn collector(&self, files: &Files, network: Network, allow: &[String]) -> Command {
        let mut command = self.collector_verb();
        command
            .env("SANDBOX_AUDIT_DIR", files.audit())
            .args([
                "run",
                "--engine",
                self.engine.as_str(),
                "--network",
                network.as_str(),
            ])
            .arg("--workspace")
            .arg(files.workspace());
        command.args(self.engine.options());
        for entry in allow {
            command.arg("--allow").arg(entry);
        }
        // The engine refuses addresses where there is to be no network.
        if network != Network::None {
            let arguments = self.engine_arguments();
            command.args(
                arguments
                    .iter()
                    .map(|argument| format!("--engine-arg={argument}")),
            );
        }
        command
    }

    /// Runs a case and checks it.
    pub fn check(&self, case: &Case) -> anyhow::Result<()> {
        let subnet = self.internet.subnet();
        let stage = Stage::set(self)?;
        let files = &stage.files;
        let mut allow = case.allow(subnet);
        if case.is_long() {
            allow = vec![files.list(&allow)?];
        }
        let mut command = self.collector(files, case.network, &allow);
        if !case.meanwhile.is_empty() {
            command.env("XDG_RUNTIME_DIR", stage.runtime());
        }
        command.args(
            case.env(subnet)
                .map(|(name, value)| format!("--engine-arg=--env={name}={value}")),
        );
        command
            .args(case.arguments())
            .args([BASE, "--"])
            .args(case.command(subnet));
        let running = Running::start(&mut command)?;
        let scene = Scene {
            stage: &stage,
            collector: running.pid()?,
        };
        for deeds in &case.meanwhile {
            scene.play(deeds)?;
        }
        let finished = running.finish()?;
        if let Ok(run) = stage.run_id() {
            // Its collector was killed.
            stage.finish(&run)?;
        }
        let account = self.internet.account()?;
        let outcome = Outcome {
            finished,
            line: files.session_line()?,
            account,
        };
        case.check(subnet, &outcome)
    }

    /// The id of the container that runs in this lab.
    pub fn container(&self) -> anyhow::Result<String> {
        let filter = format!("label={}", self.label);
        let ids = output_of(
            &mut self
                .engine
                .command(["ps", "--all", "--quiet", "--filter", &filter]),
        )?;
        ids.lines()
            .next()
            .map(str::to_owned)
            .context("no container is running in the lab")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Ok(container) = self.container() {
            // It hung, or its test failed: the network cannot go while it is there.
            let _ = output_of(&mut self.engine.command(["rm", "--force", &container]));
        }
    }
}

impl Files {
    /// Mounted at `/workspace`.
    #[must_use]
    pub fn workspace(&self) -> PathBuf {
        self.directory.path().join("workspace")
    }

    /// The root certificate of the internet.
    #[must_use]
    pub fn certificates(&self) -> PathBuf {
        self.workspace().join("ca.pem")
    }

    /// Writes a list that no argument could hold, and names it as an argument does.
    fn list(&self, entries: &[String]) -> anyhow::Result<String> {
        let file = self.directory.path().join("allow.txt");
        fs::write(&file, entries.join("\n")).context("write a long allowlist")?;
        Ok(format!("@{}", file.display()))
    }

    /// Where the session log goes.
    #[must_use]
    pub fn audit(&self) -> PathBuf {
        self.directory.path().join("audit")
    }

    /// The one line of the session log, where there is one.
    pub fn session_line(&self) -> anyhow::Result<Option<Value>> {
        let path = self.audit().join("sessions.jsonl");
        if !path.exists() {
            return Ok(None);
        }
        let log = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let mut lines = log.lines();
        let line = lines
            .next()
            .map(serde_json::from_str)
            .transpose()
            .context("parse a session line")?;
        if lines.next().is_some() {
            bail!("one run wrote several lines: {log}");
        }
        line.as_ref().map(schema::check).transpose()?;
        Ok(line)
    }
}
