//! What is suggested is pasted, until nothing is refused any more.

use anyhow::{Context, bail, ensure};
use sandbox_egress_tests::{
    case::Network,
    contained::{BASE, Files, Lab},
    process::{Running, output_of},
};
use serde_json::Value;

use crate::LabTest;

pub(crate) const TESTS: [(&str, LabTest); 1] = [(
    "what-is-suggested-lets-the-same-attempts-pass",
    suggestions_help,
)];

/// A name that is only asked for, one that is wanted by the proxy's word on another port, and one
/// that the list has already.
const TRIES: &str = "
    curl -sS --noproxy '*' https://denied.test/ && curl -sS https://denied.test:8443/ &&
    curl -sS http://allowed.test/
";

/// Each run may meet a refusal that the one before it did not come to.
const RUNS: usize = 6;

fn suggestions_help(lab: &Lab) -> anyhow::Result<()> {
    let net = lab.internet().subnet().v4_net();
    let mut list = vec![format!("allowed.test@{net}")];
    for _ in 0..RUNS {
        let files = lab.files()?;
        let code = run(lab, &files, &list)?;
        let line = files.session_line()?.context("no session line")?;
        let added = suggested(lab, &files)?;
        if code == 0 {
            let denied = line.get("egress_denied");
            ensure!(denied == Some(&0.into()) && added.is_empty(), "{line}");
            return Ok(());
        }
        ensure!(!added.is_empty(), "nothing is suggested for {line}");
        let is_for_the_resolver = added.iter().any(|entry| entry.contains(":53"));
        ensure!(!is_for_the_resolver, "{added:?}");
        ensure!(!added.iter().any(|entry| list.contains(entry)), "{added:?}");
        list.extend(added);
    }
    bail!("still refused with {list:?}")
}

fn run(lab: &Lab, files: &Files, list: &[String]) -> anyhow::Result<i32> {
    let mut command = lab.collector(files, Network::Allowlist, list);
    command.args([BASE, "--", "sh", "-c", TRIES]);
    Ok(Running::start(&mut command)?.finish()?.code)
}

/// The entries of the flags to paste.
fn suggested(lab: &Lab, files: &Files) -> anyhow::Result<Vec<String>> {
    let mut command = lab.collector_verb();
    command.env("SANDBOX_AUDIT_DIR", files.audit());
    let answer: Value =
        serde_json::from_str(&output_of(command.args(["suggest", "last", "--json"]))?)?;
    let flags = answer.get("flags").and_then(Value::as_array);
    let flags: Vec<&str> = flags
        .context("no flags")?
        .iter()
        .filter_map(Value::as_str)
        .collect();
    match flags.as_slice() {
        [] => Ok(Vec::new()),
        ["--allow", entries] => Ok(entries.split(',').map(str::to_owned).collect()),
        other => bail!("what flags are {other:?}?"),
    }
}
