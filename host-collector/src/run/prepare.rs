//! Everything that happens before a launch: nothing is made before all is known.

use report::Printable;

use super::{
    error::{ConfigError, RunError, SetUpError},
    identity::identity,
    list::hand_over,
    request::{Request, caller},
};
use crate::{
    channel::{Channel, Terms},
    cli::{NetworkMode, RunArgs},
    engine::{ENTRYPOINT, Engine, EngineKind, Guard, Identity, Image, Launch, Network},
    environment::Environment,
    run_dir::RunDir,
    run_id::RunId,
    session::Launched,
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
    let (engine, image) = look_up(args, &request, environment).await?;
    let command = image.argv(&args.command);
    if command.is_empty() {
        return Err(ConfigError::NoCommand(Printable::new(&args.image)).into());
    }
    let (asked, owner) = (args.user.as_deref(), request.workspace_owner());
    let identity = identity(asked, caller(), owner, &image, request.policy.is_some())
        .map_err(ConfigError::from)?;

    let place = Place::make(args, &request, environment)?;
    let warnings = request.warnings();
    let record = request.record(args, engine.kind(), command.clone());
    let (launch, channel, run_dir) = place.launch(args, request, engine.kind(), identity, command);
    Ok(Prepared {
        engine,
        launch,
        channel,
        run_dir,
        warnings,
        record,
    })
}

/// The engine, and the image in it, which under an allowlist must have what enforces that.
async fn look_up(
    args: &RunArgs,
    request: &Request,
    environment: &Environment,
) -> Result<(Engine, Image), SetUpError> {
    let engine = Engine::find(args.engine, environment).await?;
    let image = engine.image(&args.image).await?;
    // An image that starts with our entrypoint has it; of another one that is not known yet.
    let is_known = request.policy.is_none() || image.is_ours();
    if is_known || engine.has_file(&args.image, ENTRYPOINT).await? {
        return Ok((engine, image));
    }
    Err(SetUpError::NoEntrypoint {
        image: Printable::new(&args.image),
    })
}

/// Where a run takes place: its name, its directory, its network and the channel for that.
struct Place {
    run_id: RunId,
    run_dir: RunDir,
    network: Network,
    channel: Option<Channel>,
}

impl Place {
    fn make(
        args: &RunArgs,
        request: &Request,
        environment: &Environment,
    ) -> Result<Self, SetUpError> {
        let run_id = RunId::random()?;
        let run_dir = RunDir::create(&environment.runtime_dir(), &run_id)?;
        let Some(policy) = &request.policy else {
            let network = if args.network == NetworkMode::None {
                Network::None
            } else {
                Network::Default
            };
            return Ok(Self {
                run_id,
                run_dir,
                network,
                channel: None,
            });
        };
        let terms = Terms::random(Some(policy.digest().to_string()))?;
        let channel = Channel::open(run_dir.path(), terms)?;
        let network = Network::Allowlist(Guard {
            channel: channel.directory(),
            allow: hand_over(policy, &channel.directory())?,
            nonce: channel.nonce().clone(),
            report: args.report.as_str(),
        });
        Ok(Self {
            run_id,
            run_dir,
            network,
            channel: Some(channel),
        })
    }

    fn launch(
        self,
        args: &RunArgs,
        request: Request,
        engine: EngineKind,
        identity: Identity,
        command: Vec<String>,
    ) -> (Launch, Option<Channel>, RunDir) {
        let Self {
            run_id,
            run_dir,
            network,
            channel,
        } = self;
        let launch = Launch {
            run_id,
            engine,
            rootless: caller().uid != 0,
            image: args.image.clone(),
            // Where the image's own entrypoint runs, the engine puts it in front.
            command: if channel.is_some() {
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
            workdir: request.workdir(args),
            workspace: request.workspace.map(|workspace| workspace.path),
            env: request.variables,
            host_ca: request.bundle,
            publish: args.publish.clone(),
            ingress: request.ingress,
            runtime: args.runtime.clone(),
            engine_args: args.engine_arg.clone(),
        };
        (launch, channel, run_dir)
    }
}
