//! A launch of this program's own, over whichever way for reports there is.

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
    if args.transport != Transport::Auto {
        return launched;
    }
    let asked = Engine::find(args.engine, environment).await;
    let asked = asked.map_err(SetUpError::from)?;
    let directory = run_dir::runs(&environment.runtime_dir());
    let Some(why) = asked.refuses_to_mount(&directory, &args.image).await else {
        return launched;
    };
    say(&format!(
        "{engine} mounts nothing of this host's ({why}): launching again, with reports through its exec"
    ));
    let args = RunArgs {
        transport: Transport::Exec,
        ..args.clone()
    };
    let prepared = prepare(&args, Launcher::Ours, PATIENCE_S, environment).await?;
    start(&args, prepared).await
}

async fn start(args: &RunArgs, prepared: Prepared) -> Result<i32, RunError> {
    if args.detach {
        detached::run(prepared).await
    } else {
        foreground::run(prepared).await
    }
}
