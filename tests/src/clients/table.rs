//! The table in `docs/CLIENTS.md`.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{Answer, Cell, Client, Results, Situation, Variables};

/// The whole file; `None` while some run has no result.
#[must_use]
pub fn table(
    clients: &[(String, Client)],
    versions: &BTreeMap<String, String>,
    results: &Results,
) -> Option<String> {
    let version = |package: &str| versions.get(package).map_or("", String::as_str);
    let mut text = PREFACE.replace("{system}", version(""));
    for (name, client) in clients {
        let package = &client.package;
        let _ = writeln!(text, "\n## {name}\n\n{package} {}\n", version(package));
        let _ = writeln!(text, "```sh\n{}\n```\n", client.script.trim());
        text.push_str("| proxy variables | allowed | denied | shows the reason | down |\n");
        text.push_str("|---|---|---|---|---|\n");
        for variables in Variables::ALL {
            if client.told(variables).is_some() {
                let _ = writeln!(text, "{}", row(name, variables, results)?);
            }
        }
    }
    Some(text)
}

fn row(client: &str, variables: Variables, results: &Results) -> Option<String> {
    let answer = |situation| {
        let cell = Cell {
            variables,
            situation,
        };
        results.of(client, cell)
    };
    answer(Situation::Allowed)?;
    let denied = answer(Situation::Denied)?;
    let down = answer(Situation::Down)?;
    let set = match variables {
        Variables::Set => "set",
        Variables::Unset => "unset",
    };
    let explains = if denied.explains { "yes" } else { "no" };
    Some(format!(
        "| {set} | works | {} | {explains} | {} |",
        shown(&denied),
        shown(&down)
    ))
}

fn shown(answer: &Answer) -> String {
    // A code span ends at a backtick, and a column at a bar, even inside a code span.
    let line = answer.line.as_deref().unwrap_or_default();
    let line = line.replace('`', "'").replace('|', "\\|");
    format!("exit {}: `{line}`", answer.exit)
}

const PREFACE: &str = "\
# What clients say

Written by `tests/run clients` from what they did; the run fails where this differs. The clients are those of {system}, in a container of docker's.
";

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> Client {
        let words = "denied = { exit = 1, says = 'no' }\ndown = { exit = 2, says = 'gone' }";
        let text = format!("package = 'p'\nscript = 'p {{host}}'\nworks = 'yes'\n[with]\n{words}");
        toml::from_str(&text).unwrap()
    }

    fn answer(exit: i32, line: &str) -> Answer {
        Answer {
            exit,
            line: Some(line.to_owned()),
            explains: line.contains("reason"),
        }
    }

    fn results(situations: &[Situation]) -> Results {
        let results = Results::default();
        for situation in situations {
            let cell = Cell {
                variables: Variables::Set,
                situation: *situation,
            };
            results.add("c", cell, answer(*situation as i32, "a `reason` | more"));
        }
        results
    }

    #[test]
    fn a_row_tells_what_the_client_showed() {
        let versions = BTreeMap::from([("p".to_owned(), "1.2".to_owned())]);
        let clients = [("c".to_owned(), client())];
        let text = table(&clients, &versions, &results(&Situation::ALL)).unwrap();
        let row = text.lines().last().unwrap();
        assert_eq!(
            row,
            "| set | works | exit 1: `a 'reason' \\| more` | yes | exit 2: `a 'reason' \\| more` |"
        );
        assert!(text.contains("\np 1.2\n"), "{text}");
    }

    #[test]
    fn there_is_no_table_of_half_the_runs() {
        let clients = [("c".to_owned(), client())];
        let some = results(&[Situation::Allowed, Situation::Denied]);
        assert_eq!(table(&clients, &BTreeMap::new(), &some), None);
    }
}
