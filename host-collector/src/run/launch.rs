//! A launch of this program's own, over whichever way for reports there is.

use report::Printable;

use super::{
    detached,
    error::{RunError, SetUpError},
    foreground,
    prepare::{PATIENCE_S, Prepared, prepare},
    say, warn,
};
use crate::{
    attend::{Launcher, NoRun},
    channel::Transport,
    cli::RunArgs,
    engine::Engine,
    environment::Environment,
    run_dir,
};

/// Launches. Where the engine mounts nothing of this host's, which it is asked only when it has
/// refused a container, the container is launched again without a socket.
pub(super) async fn launch(args: &RunArgs, environment: &Environment) -> Result<i32, RunError> {
    let prepared = prepare(args, Launcher::Ours, PATIENCE_S, environment).await?;
    warn(&prepared.warnings);
    let launched = start(args, prepared).await;
    let Err(RunError::SetUp(SetUpError::NoRun(NoRun::NotMounted(engine)))) = &launched else {
        return launched;
    };
    let Some((why, args)) = without_socket(args, environment).await? else {
        return launched;
    };
    say(&format!(
        "{engine} mounts nothing of this host's ({why}): launching again, with reports through its exec"
    ));
    let prepared = prepare(&args, Launcher::Ours, PATIENCE_S, environment).await?;
    start(&args, prepared).await
}

/// Asks the engine whether it mounts anything of this host's. If it does not, and nobody has said
/// that it must: why, and the same run with reports through its exec.
///
/// The directory of the runs must be there already.
pub(super) async fn without_socket(
    args: &RunArgs,
    environment: &Environment,
) -> Result<Option<(Printable, RunArgs)>, SetUpError> {
    if args.transport != Transport::Auto {
        return Ok(None);
    }
    let engine = Engine::find(args.engine, environment).await?;
    let directory = run_dir::runs(&environment.runtime_dir());
    let why = engine.refuses_to_mount(&directory, &args.image).await;
    Ok(why.map(|why| {
        let args = RunArgs {
            transport: Transport::Exec,
            ..args.clone()
        };
        (why, args)
    }))
}

async fn start(args: &RunArgs, prepared: Prepared) -> Result<i32, RunError> {
    if args.detach {
        detached::run(prepared).await
    } else {
        foreground::run(prepared).await
    }
}
