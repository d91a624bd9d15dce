//! Everything that happens before a launch: nothing is made before all is known.

use std::{fs, path};

use jiff::Timestamp;
use report::Printable;

use super::{
    error::{ConfigError, RunError, SetUpError},
    identity::identity,
    list::hand_over,
    request::{Request, caller},
};
use crate::{
    attend::{Launcher, NoRun, Registration, engine_environment},
    channel::{Terms, Transport, directory},
    cli::{NetworkMode, ReportMode, RunArgs},
    engine::{ClientOutput, ENTRYPOINT, Engine, Guard, Identity, Image, Launch, Network},
    environment::{Environment, host_name},
    run_dir::RunDir,
    run_id::RunId,
};

/// A run that can be launched.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) engine: Engine,
    pub(crate) launch: Launch,
    /// Goes when the run does.
    pub(crate) run_dir: RunDir,
    /// What is odd about the allowlist.
    pub(crate) warnings: Vec<String>,
    /// What whoever attends must know.
    pub(crate) registration: Registration,
}

/// Checks, looks up and makes what a run needs.
pub(crate) async fn prepare(
    args: &RunArgs,
    launcher: Launcher,
    patience_s: u64,
    environment: &Environment,
) -> Result<Prepared, RunError> {
    let request = Request::check(args, launcher, environment).await?;
    let (engine, image) = look_up(args, &request, environment).await?;
    let command = image.argv(&args.command);
    if command.is_empty() {
        return Err(ConfigError::NoCommand(Printable::new(&args.image)).into());
    }
    let (asked, owner) = (args.user.as_deref(), request.workspace_owner());
    let identity = identity(asked, caller(), owner, &image, request.policy.is_some())
        .map_err(ConfigError::from)?;

    let transport = match args.transport {
        Transport::Auto if engine.is_remote(environment).await => Transport::Exec,
        Transport::Auto | Transport::Socket | Transport::Exec => args.transport,
    };
    let place = Place::make(args, &request, transport, environment)?;
    let warnings = request.warnings();
    let registration = Registration {
        launcher,
        patience_s,
        ..place.registration(args, &request, &engine, command.clone(), environment)
    };
    registration
        .store(place.run_dir.path())
        .map_err(SetUpError::from)?;
    let (launch, run_dir) = place.launch(args, request, &engine, identity, command);
    Ok(Prepared {
        engine,
        launch,
        run_dir,
        warnings,
        registration,
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
    Err(SetUpError::NoRun(NoRun::NoEntrypoint {
        image: Printable::new(&args.image),
    }))
}

/// Where a run takes place: its name, its directory, its network and what the channel for that is
/// held to.
struct Place {
    run_id: RunId,
    run_dir: RunDir,
    network: Network,
    terms: Option<Terms>,
}

impl Place {
    fn make(
        args: &RunArgs,
        request: &Request,
        transport: Transport,
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
                terms: None,
            });
        };
        let terms = Terms {
            transport,
            ..Terms::random(Some(policy.digest().to_string()))?
        };
        let channel = match transport {
            Transport::Exec => None,
            Transport::Auto | Transport::Socket => Some(directory(run_dir.path())),
        };
        channel.as_ref().map(fs::create_dir).transpose()?;
        let network = Network::Allowlist(Guard {
            allow: hand_over(policy, channel.as_deref())?,
            channel,
            transport,
            nonce: terms.nonce.clone(),
            enforce: args.enforce.as_str(),
            report: args.report.as_str(),
        });
        Ok(Self {
            run_id,
            run_dir,
            network,
            terms: Some(terms),
        })
    }

    fn registration(
        &self,
        args: &RunArgs,
        request: &Request,
        engine: &Engine,
        command: Vec<String>,
        environment: &Environment,
    ) -> Registration {
        let audit_dir = args.audit.audit_dir.clone();
        Registration {
            run_id: self.run_id.clone(),
            time_ms: Timestamp::now().as_millisecond(),
            engine: engine.kind(),
            program: engine.program().to_owned(),
            engine_environment: engine_environment(environment),
            image: args.image.clone(),
            terms: self.terms.clone(),
            report_is_required: args.report == ReportMode::Required,
            detached: args.detach,
            launcher: Launcher::Ours,
            patience_s: PATIENCE_S,
            // Whoever attends may be somewhere else.
            audit_dir: audit_dir
                .or_else(|| environment.audit_dir())
                .and_then(|dir| path::absolute(dir).ok()),
            host: host_name(),
            record: request.record(args, engine.kind(), command),
        }
    }

    fn launch(
        self,
        args: &RunArgs,
        request: Request,
        engine: &Engine,
        identity: Identity,
        command: Vec<String>,
    ) -> (Launch, RunDir) {
        let Self {
            run_id,
            run_dir,
            network,
            terms,
        } = self;
        let launch = Launch {
            run_id,
            engine: engine.kind(),
            rootless: caller().uid != 0,
            image: args.image.clone(),
            // Where the image's own entrypoint runs, the engine puts it in front.
            command: if terms.is_some() {
                command
            } else {
                args.command.clone()
            },
            cidfile: run_dir.cidfile(),
            output: if args.detach {
                ClientOutput::Dropped
            } else {
                ClientOutput::Kept
            },
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
        (launch, run_dir)
    }
}

/// For this program's own launches: the image is here, so an engine takes seconds at most.
pub(super) const PATIENCE_S: u64 = 300;
