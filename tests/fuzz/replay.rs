//! Gives a target every input that is kept for it: what a fuzzer has found once must hold in every
//! test. Part of the tests of each crate that has targets.

use std::{fs, path::Path};

/// Calls `target` with each input in the corpus of that name.
pub(crate) fn replay(name: &str, target: fn(&[u8])) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let below = |root: &Path| root.join("tests/fuzz/corpus").join(name);
    let corpus = package
        .ancestors()
        .map(below)
        .find(|corpus| corpus.is_dir());
    let inputs: Vec<_> = fs::read_dir(corpus.unwrap())
        .unwrap()
        .map(|input| fs::read(input.unwrap().path()).unwrap())
        .collect();
    assert!(inputs.len() > 3, "{name} has no corpus");
    for input in &inputs {
        target(input);
    }
}
