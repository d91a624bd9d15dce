//! What `docs/THREAT-MODEL.md` claims is held by tests that exist, under the names that it gives.

#![expect(
    clippy::unwrap_used,
    reason = "all of this is a test: what does not hold fails it"
)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use syn::{
    ImplItemFn, ItemEnum, ItemFn, ItemImpl, ItemMod, ItemStruct, ItemTrait, LitStr, Type,
    visit::{self, Visit},
};

/// The kinds of attack that cases are sorted by, and how many cases there are at least in all.
const KINDS: [&str; 11] = [
    "address",
    "dns",
    "doors",
    "escape",
    "exhaustion",
    "ingress",
    "names",
    "packets",
    "processes",
    "record",
    "smuggling",
];
const ATTACKS: usize = 80;

#[test]
fn every_claim_names_a_test_that_exists() {
    let threats = fs::read_to_string(root().join("docs/THREAT-MODEL.md")).unwrap();
    let (cases, code) = (cases(), code());
    let mut claims = 0;
    let mut wrong = Vec::new();
    for row in threats.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, claim, held_by, _] = cells[..] else {
            panic!("not a row of two cells: {row}")
        };
        if claim == "claim" || claim.starts_with("**") {
            continue;
        }
        claims += 1;
        let names: Vec<_> = held_by.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            wrong.push(format!("no test is named for: {claim}"));
        }
        let unknown = names
            .into_iter()
            .filter(|name| !is_known(name, &cases, &code));
        wrong.extend(unknown.map(|name| format!("`{name}` is no test, for: {claim}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(claims > 30, "only {claims} claims were found");
}

#[test]
fn the_guest_attacks_in_every_way_that_there_is_a_kind_for() {
    let cases = cases();
    let attacks = cases
        .iter()
        .filter_map(|case| case.strip_prefix("adversary/"));
    let kinds: Vec<_> = attacks
        .map(|case| case.split('/').next().unwrap())
        .collect();
    assert!(kinds.len() >= ATTACKS, "{} cases", kinds.len());
    let found: BTreeSet<_> = kinds.into_iter().collect();
    assert_eq!(found, KINDS.into_iter().collect());
}

#[test]
fn nothing_inside_the_container_reads_the_wall_clock() {
    for directory in ["entrypoint/src", "proxy/src", "host-collector/report/src"] {
        for file in files_below(&root().join(directory), "rs") {
            let text = fs::read_to_string(&file).unwrap();
            let (code, _) = text.split_once("#[cfg(test)]").unwrap_or((&text, ""));
            // A rule of iptables can end at a time of day, and at no other.
            if file.ends_with("firewall/legacy.rs") {
                continue;
            }
            for clock in ["SystemTime", "Timestamp::now", "Realtime", "CLOCK_REALTIME"] {
                assert!(!code.contains(clock), "{clock} in {}", file.display());
            }
        }
    }
}

#[test]
fn a_name_is_matched_with_what_it_leaves_out_and_no_further() {
    for (pattern, text, matches) in [
        ("a-b", "a-b", true),
        ("a-b", "a-b-c", false),
        ("a-…", "a-b-c", true),
        ("…-c", "a-b-c", true),
        ("a…c", "a-b-c", true),
        ("a…b…c", "a-c-b", false),
        ("…", "", true),
    ] {
        assert_eq!(is_like(pattern, text), matches, "{pattern} {text}");
    }
    let code = BTreeSet::from(["x::log::append::a_cut_costs_nothing".to_owned()]);
    for (name, known) in [
        ("log::append::…_costs_nothing", true),
        ("append::a_cut_costs_nothing", true),
        ("log::…", true),
        ("append::a_cut_costs_nothing::", true),
        ("og::append::…", false),
        ("append::a_cut", false),
        ("tests/run unit", true),
        ("tests/run nothing", false),
    ] {
        assert_eq!(is_known(name, &BTreeSet::new(), &code), known, "{name}");
    }
}

/// Whether a name from the document is that of a case, of a test or module, or of a part of all
/// tests.
fn is_known(name: &str, cases: &BTreeSet<String>, code: &BTreeSet<String>) -> bool {
    if let Some(part) = name.strip_prefix("tests/run ") {
        let run = fs::read_to_string(root().join("tests/run")).unwrap();
        return run.contains(&format!("#   {part} "));
    }
    if name.contains('/') {
        // A beginning that was said before may be left out. Or it is a file of tests.
        return cases.iter().any(|case| is_like(name, case))
            || [root(), root().join("tests")]
                .iter()
                .any(|dir| dir.join(name).is_file());
    }
    // `rootless::`, the tests of a module, or for an engine.
    let name = name.strip_suffix("::").unwrap_or(name);
    code.iter().any(|path| {
        let starts = path.match_indices("::").map(|(at, _)| at + 2);
        [0].into_iter()
            .chain(starts)
            .any(|at| is_like(name, &path[at..]))
    })
}

/// Whether `text` is `pattern`, in which `…` stands for anything.
fn is_like(pattern: &str, text: &str) -> bool {
    let Some((before, after)) = pattern.split_once('…') else {
        return pattern == text;
    };
    text.strip_prefix(before).is_some_and(|rest| {
        let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
        ends.into_iter().any(|at| is_like(after, &rest[at..]))
    })
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every case by its path, without the ending.
fn cases() -> BTreeSet<String> {
    let root = root().join("tests/cases");
    let files = files_below(&root, "toml");
    files
        .iter()
        .map(|file| {
            let name = file.strip_prefix(&root).unwrap().with_extension("");
            name.to_str().unwrap().to_owned()
        })
        .collect()
}

/// Every module, test, function and type of ours, and every text that may name a test made at run
/// time, as a path.
fn code() -> BTreeSet<String> {
    let mut names = Names::default();
    for directory in ["entrypoint", "host-collector", "proxy", "tests"] {
        for file in files_below(&root().join(directory), "rs") {
            let path = file.strip_prefix(root()).unwrap().with_extension("");
            names.module = path
                .iter()
                .map(|part| part.to_str().unwrap().to_owned())
                .filter(|part| !matches!(part.as_str(), "src" | "tests" | "lib" | "mod" | "main"))
                .collect();
            names.note(None);
            names.visit_file(&syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap());
        }
    }
    names.found
}

fn files_below(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
    files
}

#[derive(Default)]
struct Names {
    module: Vec<String>,
    found: BTreeSet<String>,
}

impl Names {
    fn note(&mut self, name: Option<&dyn ToString>) {
        let mut path = self.module.clone();
        path.extend(name.map(ToString::to_string));
        self.found.insert(path.join("::"));
    }

    fn inside(&mut self, name: &dyn ToString, visit: impl FnOnce(&mut Self)) {
        self.note(Some(name));
        self.module.push(name.to_string());
        visit(self);
        self.module.pop();
    }
}

impl Visit<'_> for Names {
    fn visit_item_mod(&mut self, item: &ItemMod) {
        // The tests of a module are named by the module.
        if item.ident == "tests" {
            visit::visit_item_mod(self, item);
        } else {
            self.inside(&item.ident, |names| visit::visit_item_mod(names, item));
        }
    }

    fn visit_item_impl(&mut self, item: &ItemImpl) {
        if let Type::Path(path) = &*item.self_ty {
            let name = &path.path.segments.last().unwrap().ident;
            self.inside(name, |names| visit::visit_item_impl(names, item));
        } else {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &ItemFn) {
        self.note(Some(&item.sig.ident));
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &ImplItemFn) {
        self.note(Some(&item.sig.ident));
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &ItemStruct) {
        self.note(Some(&item.ident));
    }

    fn visit_item_enum(&mut self, item: &ItemEnum) {
        self.note(Some(&item.ident));
    }

    fn visit_item_trait(&mut self, item: &ItemTrait) {
        self.note(Some(&item.ident));
        visit::visit_item_trait(self, item);
    }

    fn visit_lit_str(&mut self, text: &LitStr) {
        // `a-proxy-that-dies-…`, in the tables of tests that need an engine.
        let text = text.value();
        if text.contains('-') && !text.contains(' ') {
            self.note(Some(&text));
        }
    }
}
