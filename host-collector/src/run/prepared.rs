//! `prepare`: a run that another program launches.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
};

use serde::Serialize;

use super::{
    detached::attended,
    error::{RunError, SetUpError},
    launch::without_socket,
    prepare::{self, Prepared},
    say, warn,
};
use crate::{
    attend::Launcher,
    channel::Transport,
    cli::PrepareArgs,
    engine::{Plan, plan},
    environment::Environment,
};

/// How to launch it, for a program to read.
#[derive(Debug, Serialize)]
struct Instructions<'a> {
    /// The run.
    run_id: &'a str,
    /// `docker` or `podman`.
    engine: &'a str,
    /// The engine's arguments, `run` first.
    arguments: &'a [String],
    /// The options among them, by name without dashes, for a program that speaks to the engine in
    /// another way.
    options: BTreeMap<&'a str, Vec<&'a str>>,
    /// The image.
    image: &'a str,
    /// What follows it.
    command: &'a [String],
    /// Variables that the engine's client must have, for `--env NAME` to find: the channel's secret
    /// is among them.
    environment: BTreeMap<&'a str, &'a str>,
}

/// Registers, has somebody attend, and prints how to launch.
pub(super) async fn prepare(
    args: &PrepareArgs,
    environment: &Environment,
) -> Result<i32, RunError> {
    let launcher = if args.no_attend {
        Launcher::AnotherWhoAttends
    } else {
        Launcher::Another
    };
    let Prepared {
        launch,
        run_dir,
        registration,
        warnings,
        ..
    } = reachable(args, launcher, environment).await?;
    warn(&warnings);
    if args.no_attend {
        run_dir.leave();
    } else {
        attended(run_dir, &registration).await?;
    }
    let plan = plan(&launch);
    let instructions = Instructions {
        run_id: launch.run_id.as_str(),
        engine: launch.engine.as_str(),
        arguments: &plan.arguments,
        options: options(&plan),
        image: &launch.image,
        command: &launch.command,
        environment: plan
            .environment
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect(),
    };
    let line =
        serde_json::to_string(&instructions).map_err(|error| SetUpError::Output(error.into()));
    writeln!(io::stdout(), "{}", line?).map_err(SetUpError::Output)?;
    Ok(0)
}

/// Prepares a run that the engine can mount its socket into, or that needs none. How the launch fares
/// is another program's to see, so that the engine is asked before, and not after, as for our own.
async fn reachable(
    args: &PrepareArgs,
    launcher: Launcher,
    environment: &Environment,
) -> Result<Prepared, RunError> {
    let prepared = prepare::prepare(&args.run, launcher, args.within, environment).await?;
    let terms = prepared.registration.terms.as_ref();
    if !terms.is_some_and(|terms| terms.transport == Transport::Auto) {
        return Ok(prepared);
    }
    let Some((why, run)) = without_socket(&args.run, environment).await? else {
        return Ok(prepared);
    };
    let engine = prepared.registration.engine;
    drop(prepared);
    say(&format!(
        "{engine} mounts nothing of this host's ({why}): reports come through its exec"
    ));
    prepare::prepare(&run, launcher, args.within, environment).await
}

/// What the run itself adds, by option; a flag has no values. The user's own engine arguments come
/// before `--pull`, and are their author's business.
fn options(plan: &Plan) -> BTreeMap<&str, Vec<&str>> {
    let mut options = BTreeMap::<&str, Vec<&str>>::new();
    let own = plan.arguments.iter().map(String::as_str);
    let mut own = own
        .skip_while(|argument| *argument != "--pull")
        .take_while(|argument| *argument != "--")
        .peekable();
    while let Some(argument) = own.next() {
        let Some(option) = argument.strip_prefix("--") else {
            continue;
        };
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, own.next_if(|value| !value.starts_with("--"))),
        };
        options.entry(name).or_default().extend(value);
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_told_apart_from_flags_and_from_what_the_user_adds() {
        let arguments = [
            "run",
            "--pull",
            "never",
            "--cidfile",
            "/c",
            "--tty",
            "--cap-add",
            "KILL",
            "--cap-add",
            "SETUID",
            "--http-proxy=false",
            "--",
            "--img",
            "--x",
        ];
        let plan = Plan {
            arguments: arguments.map(ToOwned::to_owned).to_vec(),
            environment: Vec::new(),
        };
        let found = options(&plan);
        assert_eq!(found["cap-add"], ["KILL", "SETUID"]);
        assert_eq!(
            (&found["tty"][..], &found["http-proxy"][..]),
            (&[][..], &["false"][..])
        );
        assert!(!found.contains_key("x") && found.len() == 5, "{found:?}");
    }
}
