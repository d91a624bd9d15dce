//! Presets: lists of entries that have a name, written out before a list becomes a policy.
//!
//! What is enforced can then be read entry by entry, and a record of it needs no preset to be
//! understood. Where presets come from is not known here: those of this project are compiled in,
//! others are handed in by whoever may read files.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    error::PolicyError,
    fault::{ErrorCode, Fault},
    grammar, list, spelling,
};

/// Lists of entries by name: `@github` in a list stands for the entries of `github`.
#[derive(Debug, Clone, Default)]
pub struct Presets {
    lists: BTreeMap<String, Cow<'static, str>>,
}

/// A name that no entry could refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a preset's name is at most {LONGEST_NAME} of a-z, 0-9, - and _, and not `tool`")]
pub struct PresetNameError;

impl Presets {
    /// Those of this project, from `images/presets/`.
    #[must_use]
    pub fn built_in() -> Self {
        let lists = BUILT_IN.map(|(name, list)| (name.to_owned(), Cow::Borrowed(list)));
        Self {
            lists: lists.into(),
        }
    }

    /// Adds a preset, in the place of one that has the same name. Its entries are looked at when
    /// they are needed, so that a mistake in one preset leaves the others usable.
    pub fn insert(&mut self, name: &str, list: String) -> Result<(), PresetNameError> {
        if !is_name(name) {
            return Err(PresetNameError);
        }
        self.lists.insert(name.to_owned(), list.into());
        Ok(())
    }

    /// What there is, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.lists.keys().map(String::as_str)
    }

    /// The entries of a list, those of the presets that it names in their place. All of them are
    /// sound but for `@tool:` entries, which stay as they are: only a host can write those out.
    ///
    /// # Errors
    /// The first entry that is not one, with its position in `list`; `empty` if there is none.
    pub fn expand(&self, list: &str) -> Result<Vec<String>, PolicyError> {
        let mut expansion = Expansion {
            presets: self,
            path: Vec::new(),
            done: BTreeSet::new(),
            written: Vec::new(),
        };
        for (index, entry) in list::entries(list).enumerate() {
            expansion
                .add(entry)
                .map_err(|fault| PolicyError::in_entry(entry, index + 1, fault))?;
        }
        if expansion.written.is_empty() {
            return Err(PolicyError::empty_list());
        }
        Ok(expansion.written)
    }

    fn find(&self, name: &str) -> Option<(&str, &str)> {
        let (name, list) = self.lists.get_key_value(name)?;
        Some((name, list))
    }

    /// What to say to somebody who named a preset that is not there.
    fn remedy(&self, name: &str) -> String {
        let name = name.to_ascii_lowercase();
        if !is_name(&name) {
            return "it is no name of a preset; a file of entries is named alone, as @./list.txt, \
                    and not among other entries"
                .into();
        }
        let mut names: Vec<&str> = self.names().take(MOST_NAMED).collect();
        if self.lists.len() > MOST_NAMED {
            names.push("…");
        }
        let meant = self
            .nearest(&name)
            .map_or_else(String::new, |name| format!(" did you mean @{name}?"));
        format!(
            "no preset has this name;{meant} there are {}",
            names.join(", ")
        )
    }

    /// The one that was meant, if only one is a slip away.
    fn nearest(&self, name: &str) -> Option<&str> {
        let distances = self
            .names()
            .map(|other| (strsim::osa_distance(name, other), other));
        let near: Vec<_> = distances
            .filter(|(distance, other)| *distance <= FARTHEST && other.len() > 2 * distance)
            .collect();
        let least = near.iter().map(|(distance, _)| *distance).min()?;
        let mut nearest = near.iter().filter(|(distance, _)| *distance == least);
        match (nearest.next(), nearest.next()) {
            (Some((_, name)), None) => Some(name),
            _ => None,
        }
    }
}

/// A list while its presets are being written out.
struct Expansion<'a> {
    presets: &'a Presets,
    /// The presets that lead to where this is, outermost first.
    path: Vec<&'a str>,
    /// Each preset is written once, or a few that name one another twice would never end.
    done: BTreeSet<&'a str>,
    written: Vec<String>,
}

impl Expansion<'_> {
    fn add(&mut self, entry: &str) -> Result<(), Fault> {
        match entry.strip_prefix('@') {
            Some(tool) if tool.starts_with(TOOL) => {}
            Some(name) => return self.add_preset(name),
            None => drop(grammar::parse(entry)?),
        }
        self.written.push(entry.to_owned());
        Ok(())
    }

    fn add_preset(&mut self, name: &str) -> Result<(), Fault> {
        let Some((name, list)) = self.presets.find(name) else {
            return Err(self.unknown(name));
        };
        if let Some(start) = self.path.iter().position(|outer| *outer == name) {
            return Err(self.cycle(start, name));
        }
        if !self.done.insert(name) {
            return Ok(());
        }
        if self.path.len() == DEEPEST {
            return Err(unusable(format!(
                "presets name one another more than {DEEPEST} deep; name the inner ones directly"
            )));
        }
        self.path.push(name);
        let mut count = 0;
        for entry in list::entries(list) {
            count += 1;
            self.add(entry)
                .map_err(|fault| within(name, count, entry, fault))?;
        }
        self.path.pop();
        if count == 0 {
            return Err(unusable(format!(
                "preset {name} has no entries; write some, or leave it out"
            )));
        }
        Ok(())
    }

    fn unknown(&self, name: &str) -> Fault {
        let remedy = self.presets.remedy(name);
        unusable(match self.path.last() {
            Some(outer) => format!(
                "preset {outer} names `@{}`: {remedy}",
                spelling::shown(name)
            ),
            None => remedy,
        })
    }

    fn cycle(&self, start: usize, name: &str) -> Fault {
        let circle: Vec<String> = self
            .path
            .iter()
            .skip(start)
            .chain([&name])
            .map(|name| format!("@{name}"))
            .collect();
        unusable(format!(
            "presets name one another in a circle, {}; take one of these out of the other",
            circle.join(" -> ")
        ))
    }
}

fn unusable(hint: String) -> Fault {
    Fault::new(ErrorCode::Preset, hint)
}

/// A fault of an entry, told to somebody who named the preset that it stands in. Faults of presets
/// themselves say where they are.
fn within(preset: &str, position: usize, entry: &str, fault: Fault) -> Fault {
    if fault.code == ErrorCode::Preset {
        return fault;
    }
    unusable(format!(
        "entry {position} of preset {preset}, `{}`, {}: {}",
        spelling::shown(entry),
        fault.code.sentence(),
        fault.hint
    ))
}

fn is_name(name: &str) -> bool {
    let plain = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-' | '_');
    !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(plain) && name != "tool"
}

const BUILT_IN: [(&str, &str); 10] = [
    (
        "anthropic",
        include_str!("../../../images/presets/anthropic.txt"),
    ),
    (
        "baseline",
        include_str!("../../../images/presets/baseline.txt"),
    ),
    (
        "bitbucket",
        include_str!("../../../images/presets/bitbucket.txt"),
    ),
    ("github", include_str!("../../../images/presets/github.txt")),
    (
        "github-actions",
        include_str!("../../../images/presets/github-actions.txt"),
    ),
    ("gitlab", include_str!("../../../images/presets/gitlab.txt")),
    ("google", include_str!("../../../images/presets/google.txt")),
    (
        "mistral",
        include_str!("../../../images/presets/mistral.txt"),
    ),
    ("openai", include_str!("../../../images/presets/openai.txt")),
    (
        "openrouter",
        include_str!("../../../images/presets/openrouter.txt"),
    ),
];

/// What follows the `@` of an entry that stands for a tool's registries.
const TOOL: &str = "tool:";
const LONGEST_NAME: usize = 64;
/// How many presets a preset may be within.
const DEEPEST: usize = 16;
/// How many presets an error lists.
const MOST_NAMED: usize = 32;
/// How many edits a slip makes.
const FARTHEST: usize = 2;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::Policy;

    fn presets(lists: &[(&str, &str)]) -> Presets {
        let mut presets = Presets::default();
        for (name, list) in lists {
            presets.insert(name, (*list).to_owned()).unwrap();
        }
        presets
    }

    fn refusal(presets: &Presets, list: &str) -> PolicyError {
        presets.expand(list).expect_err(list)
    }

    #[test]
    fn a_preset_stands_for_its_entries_and_may_name_others() {
        let presets = presets(&[
            ("inner", "b.example # b\n"),
            ("outer", "# all\n@inner, c.example\n@tool:pip"),
        ]);
        assert_eq!(
            presets.expand("a.example,@outer\n!d.example").unwrap(),
            [
                "a.example",
                "b.example",
                "c.example",
                "@tool:pip",
                "!d.example"
            ]
        );
    }

    #[test]
    fn a_preset_that_is_named_twice_is_written_once() {
        let mut lists = vec![("p0".to_owned(), "a.example".to_owned())];
        for n in 1..DEEPEST {
            lists.push((format!("p{n}"), format!("@p{0},@p{0}", n - 1)));
        }
        let mut doubling = Presets::default();
        for (name, list) in lists {
            doubling.insert(&name, list).unwrap();
        }
        let top = format!("@p{},@p0", DEEPEST - 1);
        assert_eq!(doubling.expand(&top).unwrap(), ["a.example"]);
    }

    #[test]
    fn presets_that_name_one_another_in_a_circle_are_refused_by_name() {
        let presets = presets(&[
            ("a", "x.example,@b"),
            ("b", "@c"),
            ("c", "@b"),
            ("self", "@self"),
        ]);
        for (list, circle) in [("@a", "@b -> @c -> @b"), ("@self", "@self -> @self")] {
            let error = refusal(&presets, list);
            assert_eq!(error.code, ErrorCode::Preset, "{list}");
            assert!(error.hint.contains(circle), "{error}");
        }
    }

    #[test]
    fn presets_cannot_be_nested_without_end() {
        let mut chain = Presets::default();
        for n in 0..=DEEPEST + 1 {
            chain
                .insert(&format!("p{n}"), format!("x.example,@p{}", n + 1))
                .unwrap();
        }
        let error = refusal(&chain, "@p0");
        assert!(error.hint.contains("16 deep"), "{error}");
    }

    #[test]
    fn an_unknown_preset_is_answered_with_those_there_are() {
        let built_in = Presets::built_in();
        for (list, part) in [
            ("@githib", "did you mean @github? there are anthropic, "),
            ("@GitHub", "did you mean @github?"),
            ("@nosuchpreset", "no preset has this name; there are "),
            ("a.example,@./list", "a file of entries is named alone"),
            ("@", "a file of entries is named alone"),
            ("!@github", "cannot be denied"),
        ] {
            let error = refusal(&built_in, list);
            assert_eq!(error.code, ErrorCode::Preset, "{list}");
            assert!(error.hint.contains(part), "{error}");
        }
        assert_eq!(
            refusal(&presets(&[("ab1", "a"), ("ab2", "a")]), "@ab3").hint,
            "no preset has this name; there are ab1, ab2"
        );
    }

    #[test]
    fn a_mistake_is_told_with_its_place_in_the_list_and_in_the_preset() {
        let presets = presets(&[
            ("corp", "a.example\nhttps://b.example/x"),
            ("outer", "@corp"),
            ("empty", "# nothing\n"),
            ("broken", "@gone"),
        ]);
        for (list, position, part) in [
            (
                "a.example,*",
                2,
                "entry 2 of the allowlist, `*`, covers too much",
            ),
            (
                "@corp",
                1,
                "entry 2 of preset corp, `https://b.example/x`, is a URL or a path: did you mean b",
            ),
            ("@outer", 1, "entry 2 of preset corp"),
            ("x.example,@empty", 2, "preset empty has no entries"),
            ("@broken", 1, "preset broken names `@gone`: no preset"),
        ] {
            let error = refusal(&presets, list);
            assert_eq!(error.position, position, "{list}");
            let line = error.to_string();
            assert!(line.contains(part) && !line.contains('\n'), "{line}");
        }
        assert_eq!(refusal(&presets, " , # x").code, ErrorCode::Empty);
    }

    #[test]
    fn a_later_preset_takes_the_place_of_an_earlier_one() {
        let mut presets = Presets::built_in();
        presets.insert("github", "git.example".into()).unwrap();
        assert_eq!(presets.expand("@github").unwrap(), ["git.example"]);
        for name in ["", "a.b", "A", "tool", "a b", "é", &"a".repeat(65)] {
            assert_eq!(
                presets.insert(name, String::new()),
                Err(PresetNameError),
                "{name}"
            );
        }
    }

    #[test]
    fn every_file_of_images_presets_is_compiled_in() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../images/presets");
        let files: BTreeSet<String> = fs::read_dir(directory)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        let names = Presets::built_in();
        let names: BTreeSet<String> = names.names().map(|name| format!("{name}.txt")).collect();
        assert_eq!(files, names);
    }

    #[test]
    fn every_built_in_preset_is_a_sound_list_that_nothing_is_odd_about() {
        let presets = Presets::built_in();
        let all: Vec<String> = presets.names().map(|name| format!("@{name}")).collect();
        for list in all.iter().cloned().chain([all.join(",")]) {
            let entries = presets
                .expand(&list)
                .unwrap_or_else(|error| panic!("{list}: {error}"));
            let policy =
                Policy::from_entries(&entries).unwrap_or_else(|error| panic!("{list}: {error}"));
            assert_eq!(policy.warnings(), [], "{list}");
            assert!(policy.address_rules().is_empty() && policy.lifted_ranges().is_empty());
        }
    }

    #[test]
    fn no_built_in_preset_names_a_package_registry() {
        let presets = Presets::built_in();
        for name in presets.names() {
            for entry in presets.expand(&format!("@{name}")).unwrap() {
                let like = REGISTRY_WORDS.iter().find(|word| entry.contains(*word));
                assert_eq!(like, None, "{entry} in {name}");
            }
        }
    }

    /// What package registries and their mirrors have in their names.
    const REGISTRY_WORDS: [&str; 26] = [
        "npm",
        "yarn",
        "pypi",
        "python",
        "conda",
        "crates",
        "golang",
        "debian",
        "ubuntu",
        "alpine",
        "fedora",
        "archlinux",
        "mirror",
        "maven",
        "gradle",
        "gems",
        "nuget",
        "packagist",
        "hackage",
        "docker",
        "ghcr",
        "quay",
        "gcr.",
        "registry",
        "pkg",
        "packages",
    ];
}
