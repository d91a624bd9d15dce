//! Everything that happens before a launch, cheapest and surest first: what is wrong with the
//! request is said before anything is looked up, and nothing is made before all is known.

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use policy::Policy;
use report::Printable;

use super::{
    allow::allowlist,
    bundle::bundle,
    error::{ConfigError, RunError, SetUpError},
    identity::{Owner, identity},
    publish::ingress,
    variables::variables,
};
use crate::{
    channel::Channel,
    cli::{Enforce, NetworkMode, RunArgs},
    engine::{ENTRYPOINT, Engine, Guard, Launch, Network, WORKSPACE, check_arguments},
    environment::Environment,
    run_dir::RunDir,
    run_id::RunId,
    session::{Launched, PolicyIdentity},
};

/// A run that can be launched.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) engine: Engine,
    pub(crate) launch: Launch,
    /// Waits for the container's reports, under an allowlist.
    pub(crate) channel: Option<Channel>,
    /// Goes when the run does.
    pub(crate) run_dir: RunDir,
    /// What is odd about the allowlist.
    pub(crate) warnings: Vec<String>,
    /// What the log will say of the launch.
    pub(crate) record: Launched,
}

/// Checks, looks up and makes what a run needs.
pub(crate) async fn prepare(
    args: &RunArgs,
    environment: &Environment,
) -> Result<Prepared, RunError> {
    let request = Request::check(args, environment).await?;

    let engine = Engine::find(args.engine, environment)
        .await
        .map_err(SetUpError::from)?;
    let image = engine.image(&args.image).await.map_err(SetUpError::from)?;
    let command = image.argv(&args.command);
    if command.is_empty() {
        return Err(ConfigError::NoCommand(Printable::new(&args.image)).into());
    }
    let allowlist = request.policy.is_some();
    // An image that starts with our entrypoint has it; of another one it is seldom known.
    if allowlist && !image.is_ours() {
        let found = engine
            .has_file(&args.image, ENTRYPOINT)
            .await
            .map_err(SetUpError::from)?;
        if !found {
            return Err(SetUpError::NoEntrypoint {
                image: Printable::new(&args.image),
            }
            .into());
        }
    }
    let owner = request.workspace.as_ref().map(|workspace| workspace.owner);
    let identity = identity(args.user.as_deref(), caller(), owner, &image, allowlist)
        .map_err(ConfigError::from)?;

    let run_id = RunId::random().map_err(SetUpError::from)?;
    let run_dir = RunDir::create(&environment.runtime_dir(), &run_id).map_err(SetUpError::from)?;
    let (network, channel) = network(args, request.policy.as_ref(), &run_dir)?;
    let warnings = request
        .policy
        .iter()
        .flat_map(Policy::warnings)
        .map(ToString::to_string)
        .collect();
    let record = request.record(args, &engine, command.clone());
    let launch = Launch {
        run_id,
        engine: engine.kind(),
        rootless: caller().uid != 0,
        image: args.image.clone(),
        // Where the image's own entrypoint runs, the engine puts it in front.
        command: if allowlist {
            command
        } else {
            args.command.clone()
        },
        cidfile: run_dir.cidfile(),
        interactive: args.interactive,
        tty: args.tty,
        name: args.name.clone(),
        network,
        identity,
        workspace: request.workspace.map(|workspace| workspace.path),
        workdir: record.workdir.clone(),
        env: request.variables,
        host_ca: request.bundle,
        publish: args.publish.clone(),
        ingress: request.ingress,
        runtime: args.runtime.clone(),
        engine_args: args.engine_arg.clone(),
    };
    Ok(Prepared {
        engine,
        launch,
        channel,
        run_dir,
        warnings,
        record,
    })
}

/// What was asked for, checked without the engine.
struct Request {
    policy: Option<Policy>,
    workspace: Option<Workspace>,
    variables: Vec<String>,
    bundle: Option<String>,
    ingress: Vec<String>,
}

struct Workspace {
    path: String,
    owner: Owner,
}

impl Request {
    async fn check(args: &RunArgs, environment: &Environment) -> Result<Self, ConfigError> {
        let is_allowlist = args.network == NetworkMode::Allowlist;
        if !is_allowlist && !args.allow.is_empty() {
            return Err(ConfigError::UnusedList(args.network.as_str()));
        }
        if args.enforce == Enforce::Address {
            return Err(ConfigError::Address);
        }
        if args.tty && !rustix::termios::isatty(rustix::stdio::stdin()) {
            return Err(ConfigError::NoTerminal);
        }
        check_arguments(&args.engine_arg, is_allowlist)?;
        let variables = variables(&args.env, environment)?;
        let ingress = args
            .publish
            .iter()
            .map(|port| ingress(port))
            .collect::<Result<_, _>>()?;
        let workspace = args
            .workspace
            .as_deref()
            .map(Workspace::check)
            .transpose()?;
        let bundle = match &args.host_ca {
            None => None,
            Some(named) => Some(utf8(bundle(named.as_deref(), environment)?)?),
        };
        let policy = if is_allowlist {
            Some(allowlist(&args.allow, environment).await?)
        } else {
            None
        };
        Ok(Self {
            policy,
            workspace,
            variables,
            bundle,
            ingress,
        })
    }

    fn record(&self, args: &RunArgs, engine: &Engine, command: Vec<String>) -> Launched {
        let workdir = args
            .workdir
            .clone()
            .or_else(|| self.workspace.as_ref().map(|_| WORKSPACE.to_owned()));
        let policy = self.policy.as_ref();
        Launched {
            image: args.image.clone(),
            workspace: self
                .workspace
                .as_ref()
                .map(|workspace| workspace.path.clone()),
            workdir,
            agent: args.agent.clone(),
            branch: args.branch.clone(),
            command,
            engine: Some(engine.kind().as_str().to_owned()),
            runtime: args.runtime.clone(),
            network: Some(args.network.as_str().to_owned()),
            egress_enforcement_requested: policy.map(|_| "name".to_owned()),
            egress_allow: policy.map(Policy::entries),
            egress_policy: policy.map(|policy| PolicyIdentity {
                digest: policy.digest().to_string(),
                generation: 1,
            }),
            env_names: Some(self.variables.clone()),
            ..Launched::default()
        }
    }
}

impl Workspace {
    fn check(path: &Path) -> Result<Self, ConfigError> {
        let wrong = |source| ConfigError::Workspace {
            path: path.to_owned(),
            source,
        };
        let real = path.canonicalize().map_err(wrong)?;
        let found = real.metadata().map_err(wrong)?;
        if !found.is_dir() {
            return Err(wrong(io::ErrorKind::NotADirectory.into()));
        }
        Ok(Self {
            path: utf8(real)?,
            owner: Owner {
                uid: found.uid(),
                gid: found.gid(),
            },
        })
    }
}

/// The network, and the channel over which the container will report, where it has an allowlist.
fn network(
    args: &RunArgs,
    policy: Option<&Policy>,
    run_dir: &RunDir,
) -> Result<(Network, Option<Channel>), SetUpError> {
    let Some(policy) = policy else {
        let network = if args.network == NetworkMode::None {
            Network::None
        } else {
            Network::Default
        };
        return Ok((network, None));
    };
    let channel = Channel::create(run_dir.path(), Some(policy.digest().to_string()))?;
    let guard = Guard {
        channel: channel.directory().to_owned(),
        allow: policy.entries().join(","),
        nonce: channel.nonce().clone(),
        report: args.report.as_str(),
    };
    Ok((Network::Allowlist(guard), Some(channel)))
}

fn caller() -> Owner {
    Owner {
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
    }
}

/// The engine's arguments and the log hold text.
fn utf8(path: PathBuf) -> Result<String, ConfigError> {
    path.into_os_string()
        .into_string()
        .map_err(|path| ConfigError::Workspace {
            path: path.into(),
            source: io::Error::new(io::ErrorKind::InvalidFilename, "the name is not UTF-8"),
        })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Verb};

    async fn check(arguments: &[&str]) -> Result<Request, String> {
        let cli = Cli::try_parse_from(["host-collector", "run"].iter().chain(arguments)).unwrap();
        let Verb::Run(args) = cli.verb else {
            unreachable!()
        };
        let environment = Environment::of([("TOKEN", "x")]);
        Request::check(&args, &environment)
            .await
            .map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_request_that_makes_no_sense_is_refused_before_an_engine_is_looked_for() {
        for (arguments, part) in [
            (&["img"][..], "nothing is allowed"),
            (
                &["--network", "none", "--allow", "a.example", "img"],
                "no effect with --network none",
            ),
            (
                &["--enforce", "address", "--allow", "a.example", "img"],
                "not available yet",
            ),
            (
                &["--workspace", "/nowhere", "--allow", "a.example", "img"],
                "--workspace /nowhere",
            ),
            (
                &["--workspace", "/dev/null", "--allow", "a.example", "img"],
                "name a directory",
            ),
            (
                &["--env", "A=b", "--allow", "a.example", "img"],
                "name only",
            ),
            (
                &["--publish", "x", "--allow", "a.example", "img"],
                "for example 8080:80",
            ),
            (
                &["--engine-arg=--privileged", "--allow", "a.example", "img"],
                "leave it out",
            ),
            (
                &["--host-ca=/nowhere", "--allow", "a.example", "img"],
                "/nowhere",
            ),
        ] {
            let line = check(arguments)
                .await
                .err()
                .unwrap_or_else(|| panic!("{arguments:?} passed"));
            assert!(line.contains(part) && !line.contains('\n'), "{line}");
        }
    }

    #[tokio::test]
    async fn the_workspace_is_known_by_its_real_path_and_owner() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        let request = check(&[
            "--network",
            "none",
            "--workspace",
            link.to_str().unwrap(),
            "img",
        ])
        .await
        .unwrap();
        let workspace = request.workspace.unwrap();
        assert_eq!(
            workspace.path,
            dir.path().canonicalize().unwrap().to_str().unwrap()
        );
        assert_eq!(workspace.owner, caller());
    }

    #[tokio::test]
    async fn without_an_allowlist_there_is_no_policy() {
        assert!(
            check(&["--network", "default", "img"])
                .await
                .unwrap()
                .policy
                .is_none()
        );
        assert!(
            check(&["--allow", "a.example", "img"])
                .await
                .unwrap()
                .policy
                .is_some()
        );
    }
}
