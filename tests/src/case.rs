//! Cases that are data: what a guest may reach, what it tries, and what must come of it on all
//! sides. Adding a file to `cases/` adds a test in namespaces and with every engine.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::{
    deed::Deed,
    internet::{Account, Subnet},
    process::Finished,
    record::Expected,
};

/// One file of `cases/`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What the guest is kept to.
    #[serde(default)]
    pub network: Network,
    /// The allowlist. An entry that ends in `@lab` is written once for each of the lab's networks.
    #[serde(default)]
    allow: Vec<String>,
    /// Who is asked to decide; nobody is told where it does not say.
    pub enforce: Option<String>,
    /// Whether the proxy is in the image. In namespaces only.
    #[serde(default = "yes")]
    pub proxy: bool,
    /// How many names the allowlist has besides, which nobody asks for.
    #[serde(default)]
    filler: usize,
    /// A shell script that the guest runs, in a directory that holds `ca.pem`.
    #[serde(default)]
    guest: String,
    /// A Python script in place of one for the shell. `guest`, which it may import, is `guest.py`.
    python: Option<String>,
    /// A command to run in place of a script.
    command: Option<Vec<String>>,
    /// Variables for the container; those of the entrypoint's own among them.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Programs of /usr/sbin that the guest's machine lacks, in namespaces.
    #[serde(default)]
    lacks: Vec<String>,
    /// Further arguments of `host-collector run`.
    #[serde(default)]
    arguments: Vec<String>,
    /// Where the case makes sense; everywhere if it does not say.
    #[serde(default = "everywhere")]
    runs_in: Vec<Place>,
    /// Where it makes none all the same, of the varieties of those.
    #[serde(default)]
    not_in: Vec<Place>,
    /// What is done from outside, each time that the guest says `./meanwhile`: it goes on after
    /// that. Only in containers, and in the part `faults` of the tests.
    #[serde(default)]
    pub meanwhile: Vec<Vec<Deed>>,
    /// The exit code.
    #[serde(default)]
    exit: i32,
    /// What standard output must contain.
    #[serde(default)]
    stdout: Vec<String>,
    /// What standard error must contain.
    #[serde(default)]
    stderr: Vec<String>,
    /// What must have reached the internet, and nothing else may have: `name:port/tcp`.
    #[serde(default)]
    reached: BTreeSet<String>,
    /// What the origins must have served, where that is asked; in any order.
    requests: Option<Vec<String>>,
    /// What the name server must have been asked, where that is asked: `name TYPE`.
    asked: Option<BTreeSet<String>>,
    /// The session line. Absent: there must be none, because nothing was launched.
    record: Option<Expected>,
}

/// What `--network` says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// An allowlist.
    #[default]
    Allowlist,
    /// Whatever the engine gives.
    Default,
    /// No network.
    None,
}

impl Network {
    /// As the option spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allowlist => "allowlist",
            Self::Default => "default",
            Self::None => "none",
        }
    }
}

/// The module that scripts in Python may import: it lies in the guest's directory.
pub const GUEST_MODULE: (&str, &str) = ("guest.py", include_str!("guest.py"));

/// Where guests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// In namespaces that the tests make, without an engine.
    Namespaces,
    /// In containers of docker.
    Docker,
    /// In containers of podman.
    Podman,
    /// In containers of a docker whose users are others on the machine.
    Remapped,
    /// In containers of a podman that is not root's.
    Rootless,
    /// In containers of docker and podman that have gVisor for a kernel, if the case says so.
    Gvisor,
}

impl Place {
    /// Of which place this is a variety, if it is one: what makes sense there does here, unless the
    /// case says otherwise.
    const fn of(self) -> Option<Self> {
        match self {
            Self::Namespaces | Self::Docker | Self::Podman | Self::Gvisor => None,
            Self::Remapped => Some(Self::Docker),
            Self::Rootless => Some(Self::Podman),
        }
    }
}

/// What came of running a case.
#[derive(Debug)]
pub struct Outcome {
    /// The program that launched the guest, or process 1 where nothing launched it.
    pub finished: Finished,
    /// The session line, where one was written.
    pub line: Option<serde_json::Value>,
    /// What the internet saw.
    pub account: Account,
}

impl Case {
    /// Every case that makes sense in `place`, by the path of its file below `cases/`.
    pub fn read_all(place: Place) -> anyhow::Result<Vec<(String, Self)>> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
        let mut cases = Vec::new();
        for path in files_below(&root)? {
            let text =
                fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            let case: Self =
                toml::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
            let name = path.strip_prefix(&root)?.with_extension("");
            if case.makes_sense_in(place) {
                cases.push((name.display().to_string().replace('/', "::"), case));
            }
        }
        ensure!(!cases.is_empty(), "no cases in {}", root.display());
        Ok(cases)
    }

    fn makes_sense_in(&self, place: Place) -> bool {
        let named = |place: &Place| self.runs_in.contains(place);
        (named(&place) || place.of().is_some_and(|kind| named(&kind)))
            && !self.not_in.contains(&place)
    }

    /// The allowlist on `subnet`.
    #[must_use]
    pub fn allow(&self, subnet: Subnet) -> Vec<String> {
        let mut entries = Vec::new();
        for entry in &self.allow {
            match entry.strip_suffix("@lab") {
                Some(target) => {
                    entries.push(format!("{target}@{}", subnet.v4_net()));
                    entries.push(format!("{target}@{}", subnet.v6_net()));
                }
                None => entries.push(subnet.fill(entry)),
            }
        }
        entries.extend((0..self.filler).map(|n| format!("n{n}.filler.test")));
        entries
    }

    /// Whether the allowlist is longer than an argument or a variable can be.
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.filler > 0
    }

    /// The guest's command on `subnet`.
    #[must_use]
    pub fn command(&self, subnet: Subnet) -> Vec<String> {
        if let Some(command) = &self.command {
            return command.clone();
        }
        let (interpreter, script) = match &self.python {
            Some(script) => ("/usr/bin/python3", script),
            None => ("sh", &self.guest),
        };
        vec![interpreter.to_owned(), "-c".to_owned(), subnet.fill(script)]
    }

    /// What `host-collector run` is told besides.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let enforce = self.enforce.iter().map(|by| format!("--enforce={by}"));
        enforce.chain(self.arguments.iter().cloned()).collect()
    }

    /// The variables of the container on `subnet`.
    pub fn env(&self, subnet: Subnet) -> impl Iterator<Item = (String, String)> {
        let lacks = (!self.lacks.is_empty()).then(|| ("LACKS".to_owned(), self.lacks.join(" ")));
        let fill = move |(name, value): (&String, &String)| (name.clone(), subnet.fill(value));
        self.env.iter().map(fill).chain(lacks)
    }

    /// The same on a machine without nftables: what must hold there is no different.
    #[must_use]
    pub fn without_nftables(&self) -> Self {
        let mut case = self.clone();
        case.lacks.push(NFT.to_owned());
        let raw = "+net_raw,+net_admin,+setuid,+setgid,+setpcap,+kill";
        case.env.insert("CAPABILITIES".to_owned(), raw.to_owned());
        case
    }

    /// Who must keep the guest to its list.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        if self.lacks.iter().any(|program| program == NFT) {
            return "iptables-legacy";
        }
        "nftables"
    }

    /// Compares what came of it with what must; an error tells all differences at once.
    pub fn check(&self, subnet: Subnet, outcome: &Outcome) -> anyhow::Result<()> {
        let mut wrong = Vec::new();
        let Finished {
            code,
            stdout,
            stderr,
        } = &outcome.finished;
        if *code != self.exit {
            wrong.push(format!("exit code {code}, not {}", self.exit));
        }
        for (stream, name, wanted) in [
            (stdout, "stdout", &self.stdout),
            (stderr, "stderr", &self.stderr),
        ] {
            let missing = wanted.iter().map(|part| subnet.fill(part));
            let missing = missing.filter(|part| !stream.contains(part.as_str()));
            wrong.extend(missing.map(|part| format!("{name} lacks {part:?}")));
        }
        let Account {
            reached,
            requests,
            asked,
        } = &outcome.account;
        let wanted: BTreeSet<_> = self
            .reached
            .iter()
            .map(|place| subnet.fill(place))
            .collect();
        if *reached != wanted {
            wrong.push(format!("reached {reached:?}, not {wanted:?}"));
        }
        if let Some(wanted) = &self.requests {
            let mut wanted: Vec<_> = wanted.iter().map(|request| subnet.fill(request)).collect();
            wanted.sort_unstable();
            if *requests != wanted {
                wrong.push(format!("served {requests:#?}, not {wanted:#?}"));
            }
        }
        if let Some(wanted) = self.asked.as_ref().filter(|wanted| *wanted != asked) {
            wrong.push(format!("asked for {asked:?}, not {wanted:?}"));
        }
        match (&self.record, &outcome.line) {
            (Some(expected), Some(line)) => wrong.extend(expected.differences(subnet, line)),
            (Some(_), None) => wrong.push("no session line".to_owned()),
            (None, Some(_)) => wrong.push("a session line for what was never launched".to_owned()),
            (None, None) => {}
        }
        ensure!(
            wrong.is_empty(),
            "{}\n{}",
            wrong.join("\n"),
            describe(outcome)
        );
        Ok(())
    }
}

fn describe(outcome: &Outcome) -> String {
    let Outcome {
        finished,
        line,
        account,
    } = outcome;
    let line = line
        .as_ref()
        .map_or_else(|| "none".to_owned(), |line| format!("{line:#}"));
    format!(
        "--- stdout\n{}\n--- stderr\n{}\n--- session line\n{line}\n--- internet\n{account:#?}",
        finished.stdout, finished.stderr
    )
}

fn files_below(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let listing =
        fs::read_dir(directory).with_context(|| format!("list {}", directory.display()))?;
    let mut files = Vec::new();
    for entry in listing {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

const NFT: &str = "nft";

const fn yes() -> bool {
    true
}

fn everywhere() -> Vec<Place> {
    vec![Place::Namespaces, Place::Docker, Place::Podman]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(text: &str) -> Case {
        toml::from_str(text).unwrap()
    }

    fn outcome() -> Outcome {
        Outcome {
            finished: Finished {
                code: 0,
                stdout: String::new(),
                stderr: String::new(),
            },
            line: None,
            account: Account {
                reached: BTreeSet::new(),
                requests: Vec::new(),
                asked: BTreeSet::new(),
            },
        }
    }

    #[test]
    fn an_entry_for_the_lab_names_both_of_its_networks() {
        let case = case("guest = ''\nallow = ['a.test:22@lab', '{v4}.3']");
        assert_eq!(
            case.allow(Subnet::new(9)),
            [
                "a.test:22@198.18.9.0/24",
                "a.test:22@fd5e:198:18:9::/64",
                "198.18.9.3"
            ]
        );
    }

    #[test]
    fn a_variety_of_an_engine_is_meant_with_it_unless_it_is_left_out() {
        for (fields, remapped, rootless) in [
            ("", true, true),
            ("runs_in = ['docker']", true, false),
            ("runs_in = ['rootless']", false, true),
            ("runs_in = ['namespaces']", false, false),
            ("not_in = ['rootless']", true, false),
        ] {
            let case = case(&format!("guest = ''\n{fields}"));
            let found = [Place::Remapped, Place::Rootless].map(|place| case.makes_sense_in(place));
            assert_eq!(found, [remapped, rootless], "{fields}");
        }
    }

    #[test]
    fn every_difference_fails_a_case() {
        for (wanted, difference) in [
            ("exit = 3", "exit code 0, not 3"),
            ("stdout = ['hello']", "stdout lacks \"hello\""),
            ("reached = ['a.test:1/tcp']", "reached {}"),
            ("requests = ['GET /']", "served []"),
            ("record = {}", "no session line"),
        ] {
            let case = case(&format!("guest = ''\n{wanted}"));
            let error = case
                .check(Subnet::new(1), &outcome())
                .unwrap_err()
                .to_string();
            assert!(error.starts_with(difference), "{wanted}: {error}");
        }
    }

    #[test]
    fn a_machine_without_nftables_is_told_so_and_kept_by_iptables() {
        let with = case("guest = ''\nenv = { A = '1' }");
        let without = with.without_nftables();
        assert_eq!(
            (with.backend(), without.backend()),
            ("nftables", "iptables-legacy")
        );
        let env: Vec<_> = without.env(Subnet::new(1)).collect();
        assert!(
            env.contains(&("LACKS".to_owned(), "nft".to_owned())),
            "{env:?}"
        );
        assert!(env.contains(&("A".to_owned(), "1".to_owned())), "{env:?}");
        assert_eq!(with.env(Subnet::new(1)).count(), 1);
    }

    #[test]
    fn what_nobody_expected_to_leave_fails_a_case() {
        let mut outcome = outcome();
        outcome
            .account
            .reached
            .insert("denied.test:443/tcp".to_owned());
        assert!(case("guest = ''").check(Subnet::new(1), &outcome).is_err());
    }

    #[test]
    fn a_line_for_a_launch_that_never_happened_fails_a_case() {
        let outcome = Outcome {
            line: Some(serde_json::json!({})),
            ..outcome()
        };
        assert!(case("guest = ''").check(Subnet::new(1), &outcome).is_err());
    }
}
