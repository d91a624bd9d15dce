//! Imports run one way: between the crates of the workspace, and between the modules of each.
//!
//! A new crate fails the first test until someone decides where it stands, by a row in [`CRATES`].

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "all of this is a test: what does not hold fails it"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use syn::{
    Attribute, Item, ItemMod, ItemUse, UseTree,
    visit::{self, Visit},
};

/// Every crate of ours and what it may import, lower ones first. Programs are in no other's row.
const CRATES: [(&str, &[&str]); 7] = [
    ("sandbox-egress-policy", &[]),
    ("sandbox-egress-procwatch", &[]),
    ("sandbox-egress-report", &["sandbox-egress-policy"]),
    (
        "sandbox-egress-proxy",
        &[
            "sandbox-egress-policy",
            "sandbox-egress-procwatch",
            "sandbox-egress-report",
        ],
    ),
    (
        "sandbox-entrypoint",
        &[
            "sandbox-egress-policy",
            "sandbox-egress-procwatch",
            "sandbox-egress-report",
        ],
    ),
    (
        "host-collector",
        &[
            "sandbox-egress-policy",
            "sandbox-egress-procwatch",
            "sandbox-egress-report",
        ],
    ),
    // Tests stand outside and may look at everything.
    (
        "sandbox-egress-tests",
        &[
            "host-collector",
            "sandbox-egress-policy",
            "sandbox-egress-report",
        ],
    ),
];

#[test]
fn every_crate_imports_only_what_is_below_it() {
    for (name, _, imports) in workspace() {
        let row = CRATES.iter().find(|(row, _)| *row == name);
        let Some((_, allowed)) = row else {
            panic!("{name} has no row in CRATES")
        };
        for import in imports {
            assert!(
                allowed.contains(&import.as_str()),
                "{name} may not import {import}"
            );
        }
    }
}

#[test]
fn the_table_itself_runs_one_way() {
    for (place, (name, allowed)) in CRATES.iter().enumerate() {
        for import in *allowed {
            let below = CRATES[..place].iter().any(|(lower, _)| lower == import);
            assert!(below, "{import} is not below {name}");
        }
    }
}

#[test]
fn no_module_imports_one_that_imports_it() {
    let crates = workspace().into_iter();
    let cycles: Vec<_> = crates
        .filter_map(|(name, manifest, _)| {
            let imports = imports_between_modules(&manifest.with_file_name("src"));
            cycle(&imports).map(|cycle| format!("{name}: {}", cycle.join(" -> ")))
        })
        .collect();
    assert!(cycles.is_empty(), "modules import each other: {cycles:#?}");
}

#[test]
fn a_cycle_through_several_modules_is_found() {
    let imports = |pairs: &[(&str, &str)]| {
        let mut map = BTreeMap::<String, BTreeSet<String>>::new();
        for (from, to) in pairs {
            map.entry((*from).to_owned())
                .or_default()
                .insert((*to).to_owned());
        }
        map
    };
    assert!(cycle(&imports(&[("a", "b"), ("b", "c"), ("c", "a")])).is_some());
    assert!(cycle(&imports(&[("a", "b"), ("a", "c"), ("b", "c")])).is_none());
}

/// Name, manifest and workspace imports of every crate, those of its tests included.
fn workspace() -> Vec<(String, PathBuf, Vec<String>)> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let cargo = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--manifest-path",
            manifest,
        ])
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&cargo.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let packages = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| {
            let imports = package["dependencies"].as_array().unwrap().iter();
            let ours = imports.filter(|dependency| dependency.get("path").is_some());
            (
                text(&package["name"]),
                PathBuf::from(text(&package["manifest_path"])),
                ours.map(|dependency| text(&dependency["name"])).collect(),
            )
        });
    packages.collect()
}

/// For every module below `source`, the other modules that its `use crate::…` name. Tests inside
/// are left out, and so is what a module says of those inside it: they are one thing in parts.
fn imports_between_modules(source: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let modules: BTreeMap<_, _> = read_modules(source, source).into_iter().collect();
    // What the crate's root hands on under a name of its own: `crate::Name` means that module.
    let mut handed_on = BTreeMap::new();
    for item in modules.get("").into_iter().flat_map(|root| &root.items) {
        if let Item::Use(ItemUse {
            tree,
            vis: syn::Visibility::Public(_),
            ..
        }) = item
        {
            for path in paths(tree) {
                handed_on.insert(
                    path[path.len() - 1].clone(),
                    path[..path.len() - 1].to_vec(),
                );
            }
        }
    }
    let mut imports = BTreeMap::new();
    for (module, file) in &modules {
        let mut uses = CrateUses::default();
        uses.visit_file(file);
        let named = uses
            .0
            .into_iter()
            .map(|path| match handed_on.get(&path[0]) {
                Some(home) => home.clone(),
                None => path,
            });
        // The longest beginning of a path that is a module; the rest names something in it.
        let targets = named.filter_map(|path| {
            let beginnings = (1..=path.len())
                .rev()
                .map(|length| path[..length].join("::"));
            beginnings
                .into_iter()
                .find(|beginning| modules.contains_key(beginning))
        });
        let apart = |target: &String| {
            let inside = |a: &str, b: &str| a == b || a.starts_with(&format!("{b}::"));
            !inside(target, module) && !inside(module, target)
        };
        imports.insert(module.clone(), targets.filter(apart).collect());
    }
    imports
}

/// The module path and the syntax of every file; the crate's root is the empty path.
fn read_modules(source: &Path, directory: &Path) -> Vec<(String, syn::File)> {
    let mut modules = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            modules.extend(read_modules(source, &path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(source).unwrap().with_extension("");
            let name = name.to_str().unwrap().replace('/', "::");
            let name = name.strip_suffix("::mod").unwrap_or(&name);
            let name = if matches!(name, "lib" | "main") {
                ""
            } else {
                name
            };
            modules.push((
                name.to_owned(),
                syn::parse_file(&fs::read_to_string(path).unwrap()).unwrap(),
            ));
        }
    }
    modules
}

/// Collects what follows `crate::` in the imports of a file.
#[derive(Default)]
struct CrateUses(Vec<Vec<String>>);

impl Visit<'_> for CrateUses {
    fn visit_item_mod(&mut self, item: &ItemMod) {
        if !item.attrs.iter().any(is_for_tests) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &ItemUse) {
        let ours = paths(&item.tree)
            .into_iter()
            .filter(|path| path[0] == "crate" && path.len() > 1);
        self.0.extend(ours.map(|path| path[1..].to_vec()));
    }
}

fn is_for_tests(attribute: &Attribute) -> bool {
    let meta = attribute.meta.require_list();
    meta.is_ok_and(|list| list.path.is_ident("cfg") && list.tokens.to_string().contains("test"))
}

/// The paths of a `use`, its groups taken apart.
fn paths(tree: &UseTree) -> Vec<Vec<String>> {
    match tree {
        UseTree::Path(path) => {
            let mut all = paths(&path.tree);
            if path.ident != "self" {
                for rest in &mut all {
                    rest.insert(0, path.ident.to_string());
                }
            }
            all
        }
        UseTree::Group(group) => group.items.iter().flat_map(paths).collect(),
        UseTree::Name(name) => vec![vec![name.ident.to_string()]],
        UseTree::Rename(rename) => vec![vec![rename.ident.to_string()]],
        UseTree::Glob(_) => vec![vec!["*".to_owned()]],
    }
}

/// Takes away what imports nothing that is left, until nothing changes. Whatever remains imports
/// something that remains, so following the imports must come back to where it was.
fn cycle(imports: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    let mut left = imports.clone();
    loop {
        let names: BTreeSet<_> = left.keys().cloned().collect();
        left.retain(|_, targets| {
            targets.retain(|target| names.contains(target));
            !targets.is_empty()
        });
        if left.len() == names.len() {
            break;
        }
    }
    let mut walk = vec![left.keys().next()?.clone()];
    loop {
        let next = left.get(walk.last()?)?.first()?.clone();
        let seen = walk.iter().position(|module| *module == next);
        walk.push(next);
        if let Some(start) = seen {
            return Some(walk.split_off(start));
        }
    }
}
