//! Guests in containers of a real engine, launched by the real `host-collector run`, on a network
//! of the engine's that leads nowhere but to the fake internet.

mod network;

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, bail};
use serde_json::Value;
use tempfile::TempDir;

use self::network::EngineNetwork;
use crate::{
    case::{Case, GUEST_MODULE, Network, Outcome, Place},
    internet::{Internet, Site},
    namespace::unique,
    process::{Running, output_of},
    programs::{Programs, open_to, public_directory},
    schema,
};

/// The image that the cases run in.
pub const BASE: &str = "sandbox-egress/base";
/// The last part of a guest's address.
const ADDRESS: u8 = 200;

/// A container engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
}

impl Engine {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Docker, Self::Podman];

    /// Its program.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }

    /// Where cases name it.
    #[must_use]
    pub const fn place(self) -> Place {
        match self {
            Self::Docker => Place::Docker,
            Self::Podman => Place::Podman,
        }
    }

    /// A command of the engine's.
    #[must_use]
    pub fn command<const N: usize>(self, arguments: [&str; N]) -> Command {
        let mut command = Command::new(self.as_str());
        command.args(arguments);
        command
    }
}

/// An engine's network with a fake internet, for one guest at a time.
#[derive(Debug)]
pub struct Lab {
    engine: Engine,
    programs: Programs,
    network: EngineNetwork,
    internet: Internet,
    label: String,
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
        let network = EngineNetwork::create(engine)?;
        let internet = Internet::start_with(network.subnet, site)?;
        let interface = internet.plug()?;
        output_of(Command::new("ip").args([
            "link",
            "set",
            &interface,
            "master",
            &network.bridge,
            "up",
        ]))?;
        let label = format!("sandbox-egress-tests={}", unique());
        Ok(Self {
            engine,
            programs,
            network,
            internet,
            label,
        })
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// The internet that its guests see.
    #[must_use]
    pub fn internet(&self) -> &Internet {
        &self.internet
    }

    /// What an engine's `run` must be told for a container to be in this lab.
    #[must_use]
    pub fn engine_arguments(&self) -> Vec<String> {
        let subnet = self.network.subnet;
        let [resolver, _] = subnet.resolver();
        vec![
            format!("--network={}", self.network.name),
            format!("--ip={}", subnet.v4(ADDRESS)),
            format!("--ip6={}", subnet.v6(ADDRESS)),
            format!("--dns={resolver}"),
            format!("--label={}", self.label),
            "--env=SSL_CERT_FILE=/workspace/ca.pem".to_owned(),
        ]
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
        Ok(files)
    }

    /// `host-collector`, to be told what to do.
    #[must_use]
    pub fn collector_verb(&self) -> Command {
        Command::new(self.programs.path("host-collector"))
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
        self.internet.reset()?;
        let subnet = self.network.subnet;
        let files = self.files()?;
        let mut allow = case.allow(subnet);
        if case.is_long() {
            allow = vec![files.list(&allow)?];
        }
        let mut command = self.collector(&files, case.network, &allow);
        command.args(
            case.env(subnet)
                .map(|(name, value)| format!("--engine-arg=--env={name}={value}")),
        );
        command
            .args(&case.arguments)
            .args([BASE, "--"])
            .args(case.command(subnet));
        let finished = Running::start(&mut command)?.finish()?;
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
