//! Every client in every situation, with docker, and the table of what came of it.

use std::{fs, path::Path, process::ExitCode, sync::Arc};

use anyhow::{Context, ensure};
use libtest_mimic::{Arguments, Failed, Trial, run};
use sandbox_egress_tests::{
    clients::{Client, Results, site, table, versions},
    contained::{Engine, Lab},
    pool::Pool,
    programs::public_directory,
};
use tempfile::TempDir;

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::from_args();
    let clients = Client::read_all()?;
    let results = Arc::new(Results::default());
    let conclusion = run(&arguments, trials(&clients, &results));
    // Whoever picked some wants those, and a table of all is only to be had from all.
    if is_part(&arguments) || conclusion.has_failed() {
        return Ok(conclusion.exit_code());
    }
    let currency = Trial::test("the-table-is-current", move || {
        compare(&clients, &results).map_err(|error| told(&error))
    });
    Ok(run(&arguments, vec![currency]).exit_code())
}

fn is_part(arguments: &Arguments) -> bool {
    arguments.filter.is_some() || !arguments.skip.is_empty() || arguments.list
}

fn trials(clients: &[(String, Client)], results: &Arc<Results>) -> Vec<Trial> {
    let labs = Arc::new(Pool::new(lab));
    let mut trials = Vec::new();
    for (name, client) in clients {
        for cell in client.cells() {
            let (name, client) = (name.clone(), client.clone());
            let (labs, results) = (Arc::clone(&labs), Arc::clone(results));
            let (variables, situation) = (cell.variables.as_str(), cell.situation.as_str());
            let title = format!("{name}::{variables}::{situation}");
            trials.push(Trial::test(title, move || {
                let answer = labs
                    .with(|(lab, _)| client.run(lab, cell))
                    .map_err(|error| told(&error))?;
                results.add(&name, cell, answer);
                Ok(())
            }));
        }
    }
    trials
}

/// A lab whose origins serve what the image carries, and the directory that holds it.
fn lab() -> anyhow::Result<(Lab, TempDir)> {
    let directory = public_directory()?;
    let lab = Lab::create_with(Engine::Docker, site(directory.path())?)?;
    Ok((lab, directory))
}

/// Writes the table where it is not what the committed one says, and fails.
fn compare(clients: &[(String, Client)], results: &Results) -> anyhow::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/CLIENTS.md");
    let current = table(clients, &versions(clients)?, results).context("a run has no result")?;
    let committed = fs::read_to_string(&path).unwrap_or_default();
    if committed != current {
        fs::write(&path, &current).context("write docs/CLIENTS.md")?;
    }
    ensure!(
        committed == current,
        "docs/CLIENTS.md was not current: it is now, look at what changed and commit it"
    );
    Ok(())
}

fn told(error: &anyhow::Error) -> Failed {
    Failed::from(format!("{error:#}"))
}
