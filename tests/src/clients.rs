//! The matrix of clients: each of those that people run in a sandbox, told of the proxy and not
//! told, where its destination is allowed, denied, and allowed but down.
//!
//! A file in `clients/` is a client. What must hold of every client is here: that it works, or is
//! told why not; that the internet never sees what was denied; that the record does. What the client
//! makes of it is kept, and becomes the table in `docs/CLIENTS.md`.

mod cell;
mod image;
mod result;
mod table;

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;

pub use self::{
    cell::{Cell, Situation, Variables},
    image::{IMAGE, site, versions},
    result::{Answer, Results},
    table::table,
};
use crate::{
    case::Network,
    contained::Lab,
    internet::{Account, Subnet},
    process::Running,
    record::Expected,
};

/// One file of `clients/`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// The Debian package whose version the table tells.
    pub(crate) package: String,
    /// The port that it connects to.
    #[serde(default = "https")]
    port: u16,
    /// What the allowlist says after the port, if anything.
    #[serde(default)]
    kind: String,
    /// A shell script, run in a directory that may be written to; `{host}` is the destination.
    script: String,
    /// What its output must contain where it works.
    works: String,
    /// Told of the proxy, as the entrypoint tells every guest.
    with: Option<Told>,
    /// Without any of the variables that tell of the proxy.
    without: Option<Told>,
}

/// What a client makes of refusals, told of the proxy or not.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Told {
    denied: Words,
    down: Words,
    /// What is refused where it is denied; by default what the name server is asked.
    #[serde(default)]
    refused: Refused,
    /// Whether it connects by itself once its name is resolved, past the proxy and its account.
    #[serde(default)]
    direct: bool,
}

/// How a client says that it did not work.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Words {
    exit: i32,
    /// A part of the line that the table shows.
    says: String,
}

/// Which attempt of a client is the one that is denied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Refused {
    /// Its question for the name: it never learns an address to connect to.
    #[default]
    Question,
    /// Its connection, since the proxy is told the name.
    Connection,
}

/// What was seen of one run, from all sides: the client, the internet and the record.
#[derive(Debug, Clone)]
struct Seen {
    answer: Answer,
    account: Account,
    line: Value,
}

impl Client {
    /// Every client, by the name of its file.
    pub fn read_all() -> anyhow::Result<Vec<(String, Self)>> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
        let mut clients = Vec::new();
        for entry in fs::read_dir(&directory).context("list the clients")? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "toml")
            {
                let text = fs::read_to_string(&path)?;
                let client = toml::from_str(&text);
                let client = client.with_context(|| format!("parse {}", path.display()))?;
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                clients.push((name.into_owned(), client));
            }
        }
        ensure!(!clients.is_empty(), "no clients in {}", directory.display());
        clients.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(clients)
    }

    /// The runs that make sense of it.
    pub fn cells(&self) -> impl Iterator<Item = Cell> {
        let told = Variables::ALL
            .into_iter()
            .filter(|variables| self.told(*variables).is_some());
        told.flat_map(|variables| {
            Situation::ALL.map(|situation| Cell {
                variables,
                situation,
            })
        })
    }

    /// Runs it once, checks what must hold of it, and returns what it made of it.
    pub fn run(&self, lab: &Lab, cell: Cell) -> anyhow::Result<Answer> {
        lab.internet().reset()?;
        let files = lab.files()?;
        let mut command = lab.collector(&files, Network::Allowlist, &self.allow(lab));
        command
            .arg(format!("--host-ca={}", files.certificates().display()))
            // A suffix of this machine's own would be tried on every name.
            .arg("--engine-arg=--dns-search=.")
            .args([IMAGE, "--", "sh", "-c", &self.script(cell)]);
        let finished = Running::start(&mut command)?.finish()?;
        let seen = Seen {
            answer: Answer::of(&finished, self.says(cell)),
            account: lab.internet().account()?,
            line: files.session_line()?.context("no session line")?,
        };
        let wrong = self.differences(cell, lab.internet().subnet(), &seen);
        ensure!(
            wrong.is_empty(),
            "{}\n--- exit {}\n--- stdout\n{}\n--- stderr\n{}",
            wrong.join("\n"),
            finished.code,
            finished.stdout,
            finished.stderr
        );
        Ok(seen.answer)
    }

    fn told(&self, variables: Variables) -> Option<&Told> {
        match variables {
            Variables::Set => self.with.as_ref(),
            Variables::Unset => self.without.as_ref(),
        }
    }

    fn words(&self, cell: Cell) -> Option<&Words> {
        let told = self.told(cell.variables)?;
        match cell.situation {
            Situation::Allowed => None,
            Situation::Denied => Some(&told.denied),
            Situation::Down => Some(&told.down),
        }
    }

    fn says(&self, cell: Cell) -> &str {
        self.words(cell).map_or(&self.works, |words| &words.says)
    }

    /// Both of the hosts that may be reached, in both of the lab's networks.
    fn allow(&self, lab: &Lab) -> Vec<String> {
        let subnet = lab.internet().subnet();
        let Self { port, kind, .. } = self;
        [Situation::Allowed, Situation::Down]
            .into_iter()
            .flat_map(|situation| {
                [subnet.v4_net(), subnet.v6_net()]
                    .map(|net| format!("{}:{port}{kind}@{net}", situation.host()))
            })
            .collect()
    }

    fn script(&self, cell: Cell) -> String {
        let script = self.script.replace("{host}", cell.situation.host());
        match cell.variables {
            Variables::Set => script,
            Variables::Unset => format!("{FORGET_PROXY}\n{script}"),
        }
    }

    /// What was seen otherwise than must hold of any client.
    fn differences(&self, cell: Cell, subnet: Subnet, seen: &Seen) -> Vec<String> {
        let Seen {
            answer,
            account,
            line,
        } = seen;
        let mut wrong = Vec::new();
        let exit = self.words(cell).map_or(0, |words| words.exit);
        if answer.exit != exit {
            wrong.push(format!("exit code {}, not {exit}", answer.exit));
        }
        if answer.line.is_none() {
            wrong.push(format!("says nowhere {:?}", self.says(cell)));
        }
        let denied = cell.situation == Situation::Denied;
        let place = format!("{}:{}/tcp", cell.situation.host(), self.port);
        let reached: BTreeSet<_> = Some(place).filter(|_| !denied).into_iter().collect();
        if account.reached != reached {
            wrong.push(format!("reached {:?}, not {reached:?}", account.reached));
        }
        if denied && !account.asked.is_empty() {
            wrong.push(format!("asked for {:?}", account.asked));
        }
        wrong.extend(self.record(cell).differences(subnet, line));
        wrong
    }

    /// What the session line must say: what was denied under its reason, and what was down as a
    /// failure, which is no denial.
    fn record(&self, cell: Cell) -> Expected {
        let (host, port) = (cell.situation.host(), self.port);
        let told = self.told(cell.variables);
        let direct = told.is_some_and(|told| told.direct);
        let refused = told.map(|told| told.refused).unwrap_or_default();
        let allowed = |counts: &str| {
            if direct {
                Vec::new()
            } else {
                vec![format!("{host}:{port} {counts}")]
            }
        };
        match (cell.situation, refused) {
            (Situation::Allowed, _) => Expected::complete(Vec::new(), allowed("* 0")),
            (Situation::Down, _) => Expected::complete(Vec::new(), allowed("* *")),
            (Situation::Denied, Refused::Question) => {
                let denied = format!("{host}:53/udp dns_not_allowed *");
                Expected::complete(vec![denied], Vec::new())
            }
            (Situation::Denied, Refused::Connection) => {
                let denied = format!("{host}:{port}/tcp not_allowed *");
                Expected::complete(vec![denied], Vec::new())
            }
        }
    }
}

/// Takes away every variable that tells of the proxy: what they have in common is its address.
const FORGET_PROXY: &str = "\
for name in $(env | sed -n 's/^\\([A-Za-z_]*\\)=.*127\\.0\\.0\\.1.*/\\1/p') NODE_USE_ENV_PROXY GIT_SSH_COMMAND
do unset \"$name\"; done";

const fn https() -> u16 {
    443
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_client_there_is_can_be_read() {
        let clients = Client::read_all().unwrap();
        for (name, client) in &clients {
            assert!(client.script.contains("{host}"), "{name} goes nowhere");
            assert!(client.cells().count() >= 3, "{name} is never run");
        }
    }

    fn client(with: &str) -> Client {
        let words = "denied = { exit = 1, says = 'no' }\ndown = { exit = 2, says = 'gone' }";
        toml::from_str(&format!(
            "package = 'p'\nscript = 'p {{host}}'\nworks = 'yes'\n[with]\n{words}\n{with}"
        ))
        .unwrap()
    }

    const DENIED: Cell = Cell {
        variables: Variables::Set,
        situation: Situation::Denied,
    };

    #[test]
    fn a_client_is_run_in_every_situation_it_knows() {
        let situations: Vec<_> = client("").cells().map(|cell| cell.situation).collect();
        assert_eq!(situations, Situation::ALL);
    }

    #[test]
    fn what_is_denied_is_the_question_unless_the_proxy_is_told_the_name() {
        for (with, denied) in [
            ("", "denied.test:53/udp dns_not_allowed *"),
            (
                "refused = 'connection'",
                "denied.test:443/tcp not_allowed *",
            ),
        ] {
            let expected = Expected::complete(vec![denied.to_owned()], Vec::new());
            assert_eq!(client(with).record(DENIED), expected, "{with}");
        }
    }

    #[test]
    fn a_client_without_the_variables_runs_the_same_script_after_forgetting_them() {
        let told = client("").script(DENIED);
        assert_eq!(told, "p denied.test");
        let untold = client("").script(Cell {
            variables: Variables::Unset,
            ..DENIED
        });
        assert_eq!(untold, format!("{FORGET_PROXY}\n{told}"));
    }

    /// A denied run as it should be: refused, recorded, and nothing of it on the internet.
    fn seen() -> Seen {
        Seen {
            answer: Answer {
                exit: 1,
                line: Some("no".to_owned()),
                explains: false,
            },
            account: Account {
                reached: BTreeSet::new(),
                requests: Vec::new(),
                asked: BTreeSet::new(),
            },
            line: json!({
                "egress_channel": {"state": "complete"}, "egress_enforcement": "name",
                "end_reason": "exited", "egress_denied": 2, "egress_allowed": 0,
                "egress_denied_by_reason": {"dns_not_allowed": 2},
                "egress_denied_hosts": [{"host": "denied.test", "port": 53, "proto": "udp",
                    "reason": "dns_not_allowed", "count": 2}],
                "egress_hosts": [],
            }),
        }
    }

    fn wrong(seen: &Seen) -> Vec<String> {
        client("").differences(DENIED, Subnet::new(1), seen)
    }

    #[test]
    fn a_client_that_is_told_why_not_has_nothing_wrong_with_it() {
        assert_eq!(wrong(&seen()), [""; 0]);
    }

    #[test]
    fn whatever_of_a_denied_attempt_leaves_the_guest_is_wrong() {
        let mut arrived = seen();
        arrived
            .account
            .reached
            .insert("denied.test:443/tcp".to_owned());
        assert_eq!(wrong(&arrived).len(), 1);
        let mut asked = seen();
        asked.account.asked.insert("denied.test A".to_owned());
        assert_eq!(wrong(&asked).len(), 1);
    }

    #[test]
    fn another_exit_or_other_words_are_wrong() {
        let mut silent = seen();
        silent.answer.line = None;
        assert_eq!(wrong(&silent), ["says nowhere \"no\""]);
        let mut content = seen();
        content.answer.exit = 0;
        assert_eq!(wrong(&content), ["exit code 0, not 1"]);
    }

    #[test]
    fn a_denial_that_is_not_on_record_or_under_another_reason_is_wrong() {
        for (pointer, value) in [
            ("/egress_denied_hosts", json!([])),
            ("/egress_denied_hosts/0/reason", json!("not_allowed")),
            ("/egress_denied_hosts/0/host", json!("other.test")),
        ] {
            let mut seen = seen();
            *seen.line.pointer_mut(pointer).unwrap() = value;
            assert_ne!(wrong(&seen), [""; 0], "{pointer}");
        }
    }

    #[test]
    fn what_is_down_is_a_failure_and_no_denial() {
        let down = Cell {
            situation: Situation::Down,
            ..DENIED
        };
        let mut seen = seen();
        seen.answer.exit = 2;
        seen.account.reached.insert("down.test:443/tcp".to_owned());
        let wrong = |seen: &Seen| client("").differences(down, Subnet::new(1), seen).len();
        assert_eq!(wrong(&seen), 2, "a denial, and no failure");
        seen.line["egress_denied"] = json!(0);
        seen.line["egress_denied_by_reason"] = json!({});
        seen.line["egress_denied_hosts"] = json!([]);
        seen.line["egress_hosts"] =
            json!([{"host": "down.test", "port": 443, "connections": 1, "failures": 1}]);
        assert_eq!(wrong(&seen), 0);
        seen.line["egress_hosts"][0]["failures"] = json!(0);
        assert_eq!(wrong(&seen), 1);
    }
}
