//! The conformance vectors, which other implementations of the same grammar are held to as well.

use std::fs;
use std::path::{Path, PathBuf};

use policy::{Decision, Denial, Destination, Policy, PolicyError, is_guarded};
use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Debug, Deserialize)]
struct Case {
    allow: Vec<String>,
    host: String,
    port: u16,
    verdict: String,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Rejection {
    entry: String,
    error: String,
    #[serde(default)]
    hint: String,
}

#[derive(Debug, Deserialize)]
struct Guarded {
    address: String,
    class: String,
    verdict: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read<T: DeserializeOwned>(name: &str) -> Vec<T> {
    let path = root().join("tests/vectors").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let cases: Vec<T> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect();
    assert!(!cases.is_empty(), "{} holds no case", path.display());
    cases
}

fn decide(policy: &Policy, host: &str, port: u16) -> Result<String, Denial> {
    match policy.decide(&Destination::parse(host, port)?) {
        Decision::Allow(permit) => Ok(permit.rule().to_owned()),
        Decision::Deny(denial) => Err(denial),
    }
}

#[test]
fn every_policy_vector_gets_its_verdict() {
    for case in read::<Case>("policy.jsonl") {
        let policy = Policy::from_entries(&case.allow).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        match (
            case.verdict.as_str(),
            decide(&policy, &case.host, case.port),
        ) {
            ("allow", Ok(rule)) => assert!(policy.entries().contains(&rule), "{case:?}: {rule}"),
            ("deny", Err(denial)) => {
                assert_eq!(
                    Some(denial.reason.as_str()),
                    case.reason.as_deref(),
                    "{case:?}"
                );
            }
            (_, answer) => panic!("{case:?}: {answer:?}"),
        }
    }
}

#[test]
fn every_rejected_entry_gets_its_code_and_hint() {
    for case in read::<Rejection>("policy-reject.jsonl") {
        let PolicyError {
            code,
            hint,
            position,
            ..
        } = Policy::from_entries(["example.com", &case.entry]).expect_err(&case.entry);
        assert_eq!(code.as_str(), case.error, "{case:?}");
        assert!(hint.contains(&case.hint), "{case:?}: {hint}");
        assert!(
            !hint.is_empty() && position == 2,
            "{case:?}: {hint:?} at {position}"
        );
    }
}

#[test]
fn a_rejection_is_one_line() {
    for case in read::<Rejection>("policy-reject.jsonl") {
        let line = Policy::parse(&case.entry).unwrap_err().to_string();
        assert!(!line.contains(char::is_control), "{line:?}");
    }
}

#[test]
fn every_guarded_address_gets_its_class() {
    for case in read::<Guarded>("address-guard.jsonl") {
        let class = is_guarded(case.address.parse().unwrap());
        assert_eq!(
            class.map_or("global", policy::AddressClass::as_str),
            case.class,
            "{case:?}"
        );
        assert_eq!(
            if class.is_some() { "deny" } else { "allow" },
            case.verdict,
            "{case:?}"
        );
    }
}

/// The vectors are kept beside the checkout for all implementations. Where they are not at hand,
/// the copies here are what counts.
#[test]
fn the_copies_are_the_shared_vectors() {
    let shared = root().join("../shared/vectors");
    if !shared.is_dir() {
        return;
    }
    for name in ["policy.jsonl", "policy-reject.jsonl", "address-guard.jsonl"] {
        let ours = fs::read(root().join("tests/vectors").join(name)).unwrap();
        let theirs = fs::read(shared.join(name)).unwrap();
        assert!(
            ours == theirs,
            "tests/vectors/{name} differs from {}",
            shared.display()
        );
    }
}
