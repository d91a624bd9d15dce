//! Runs that are changed while they go on, with a container that obeys, or does not.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::Path,
};

use host_collector::environment::Environment;
use policy::Policy;
use report::{Body, HostMessage, List, PolicyOutcome, PolicyReport, Printable};
use serde_json::Value;

use crate::{
    container::{bye, connect_again, enforcing, exit, hello, line, resume},
    engine::{Done, Host, ended},
};

const DETACHED: [&str; 5] = ["run", "--detach", "--allow", "a.example", "img"];

/// A container that does what the host says; what it cannot take has `refused.example` in it.
#[test]
fn obeys_where_it_is_told_to() {
    let environment = Environment::of_process();
    let text = |name| environment.get(name).and_then(|value| value.to_str());
    let Some(socket) = text("OBEYING_SOCKET").map(Path::new) else {
        return;
    };
    let allow = text("SANDBOX_EGRESS_ALLOW").unwrap();
    let digest = Policy::parse(allow).unwrap().digest().to_string();
    let Body::Hello(first) = hello(text("SANDBOX_REPORT_NONCE").unwrap()) else {
        unreachable!()
    };
    let first = Body::Hello(report::Hello {
        policy_digest: Some(Printable::new(&digest)),
        ..first
    });
    let mut stream = UnixStream::connect(socket).unwrap();
    let mut seq = 0;
    let mut say = |mut stream: &UnixStream, body: Body| {
        seq += 1;
        stream.write_all(&line(seq, body)).unwrap();
        seq
    };
    say(&stream, first);
    say(&stream, enforcing());
    let mut token = String::new();
    loop {
        for answer in BufReader::new(&stream).lines().map_while(Result::ok) {
            match serde_json::from_str(&answer).unwrap() {
                HostMessage::Welcome(welcome) => token = welcome.resume_token,
                HostMessage::Policy(order) => {
                    let list = match order.list {
                        List::Allow(entries) => entries.join(","),
                        List::File(name) => {
                            fs::read_to_string(socket.with_file_name(name)).unwrap()
                        }
                    };
                    let digest = Policy::parse(&list).unwrap().digest().to_string();
                    assert_eq!(digest, order.digest.as_str());
                    let outcome = if list.contains("refused.example") {
                        PolicyOutcome::Refused
                    } else {
                        PolicyOutcome::InForce
                    };
                    let detail = Some(Printable::new("no nft"));
                    let detail = detail.filter(|_| outcome == PolicyOutcome::Refused);
                    let report = PolicyReport {
                        generation: order.generation,
                        digest: order.digest,
                        outcome,
                        detail,
                    };
                    say(&stream, Body::Policy(report));
                }
                HostMessage::Stop { .. } => {
                    // The number of the last message is in it.
                    let last = say(&stream, exit(0)) + 1;
                    say(&stream, bye(last, 0));
                    return;
                }
                HostMessage::Ack { .. } | HostMessage::Unknown => {}
            }
        }
        stream = connect_again(socket);
        (&stream).write_all(resume(&token).as_bytes()).unwrap();
    }
}

/// A host whose containers obey.
fn host() -> Host {
    let host = Host::new();
    let binary = std::env::current_exe().unwrap();
    let role = format!(
        "OBEYING_SOCKET=$socket {} --exact steered::obeys_where_it_is_told_to >/dev/null || exit 99",
        binary.display()
    );
    host.container(&role, &ended(0));
    host
}

fn launched(host: &Host) -> String {
    let launched = host.does(&DETACHED);
    assert_eq!(launched.code, 0, "{launched:?}");
    launched.stdout.trim_end().to_owned()
}

fn json_of(done: &Done) -> Value {
    assert_eq!(done.code, 0, "{done:?}");
    serde_json::from_str(&done.stdout).unwrap()
}

#[test]
fn a_change_is_confirmed_by_the_container_and_is_in_the_record() {
    let host = host();
    let run = launched(&host);
    let allowed = json_of(&host.does(&["allow", "--json", &run[..8], "b.example", "c.example:22"]));
    assert_eq!(
        (&allowed["generation"], &allowed["entries"]),
        (&2.into(), &3.into())
    );
    let denied = host.does(&["deny", &run, "a.example"]);
    assert_eq!(denied.code, 0, "{denied:?}");
    for word in [
        "generation 3 is in force: 3 entries",
        "+ !a.example",
        "- a.example",
    ] {
        assert!(denied.stdout.contains(word), "{denied:?}");
    }
    let same = json_of(&host.does(&["deny", "--json", &run, "a.example"]));
    assert_eq!(
        (&same["changed"], &same["generation"]),
        (&false.into(), &3.into())
    );
    let shown = host.does(&["show", &run]).stdout;
    assert!(shown.contains("generation 3"), "{shown}");
    let stopped = json_of(&host.does(&["stop", "--json", &run]));
    let policy = &stopped["egress_policy"];
    assert_eq!(
        (
            &policy["generation"],
            policy["changes"].as_array().unwrap().len()
        ),
        (&3.into(), 2)
    );
    assert_eq!(policy["changes"][1]["state"], "in_force");
    assert_eq!(policy["digest"], same["digest"]);
    assert_eq!(stopped["egress_allow"], serde_json::json!(["a.example"]));
    let shown = host.does(&["show", &run]).stdout;
    assert!(
        shown.contains("generation 3: +!a.example -a.example, in force from"),
        "{shown}"
    );
    host.log();
}

#[test]
fn a_list_of_thousands_is_a_file_that_the_container_reads() {
    let host = host();
    let run = launched(&host);
    let names: Vec<_> = (0..5000).map(|n| format!("name-{n}.example\n")).collect();
    fs::write(host.path("more.txt"), names.concat()).unwrap();
    let file = format!("@{}", host.path("more.txt").display());
    let allowed = json_of(&host.does(&["allow", "--json", &run, &file]));
    assert_eq!(allowed["entries"], 5001);
    assert_eq!(host.does(&["stop", &run]).code, 0);
    host.log();
}

#[test]
fn every_refusal_is_one_line_with_its_cause() {
    let host = host();
    let run = launched(&host);
    let run = run.as_str();
    for (arguments, code, words) in [
        (["allow", "ffff", "b.example"], 2, "no run `ffff`"),
        (["allow", run, "https://b.example/"], 78, "b.example"),
        (["allow", run, "!b.example"], 2, "is a denial already"),
        (["deny", run, "@nothing"], 78, "nothing"),
        (
            ["allow", run, "refused.example"],
            1,
            "no nft; nothing was changed",
        ),
    ] {
        let done = host.does(&arguments);
        assert_eq!(done.code, code, "{done:?}");
        assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
        assert!(done.stderr.contains(words), "{done:?}");
    }
    assert_eq!(host.does(&["stop", run]).code, 0);
    let late = host.does(&["deny", run, "b.example"]);
    assert!(
        late.code == 2 && late.stderr.contains("has ended"),
        "{late:?}"
    );
    host.log();
}

#[test]
fn a_collector_that_takes_a_run_over_knows_the_list_and_can_change_it() {
    let host = host();
    let run = launched(&host);
    assert_eq!(host.does(&["allow", &run, "b.example"]).code, 0);
    for pid in crate::detached::attenders(&host) {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    host.released(&run);
    let denied = json_of(&host.does(&["deny", "--json", &run, "b.example"]));
    assert_eq!(
        (&denied["generation"], &denied["entries"]),
        (&3.into(), &2.into())
    );
    assert_eq!(denied["removed"], serde_json::json!(["b.example"]));
    let stopped = json_of(&host.does(&["stop", "--json", &run]));
    assert_eq!(stopped["egress_channel"]["resumed"], 1, "{stopped}");
    assert_eq!(stopped["egress_policy"]["generation"], 3);
    host.log();
}

#[test]
fn a_run_without_a_list_has_nothing_to_change() {
    let host = Host::new();
    let hold = "read line <hold";
    host.container(hold, &ended(0));
    let launched = host.does(&["run", "--detach", "--network", "none", "img"]);
    let run = launched.stdout.trim_end();
    for verb in ["allow", "deny"] {
        let done = host.does(&[verb, run, "b.example"]);
        assert!(
            done.code == 2 && done.stderr.contains("has no allowlist"),
            "{done:?}"
        );
    }
    host.release();
    host.does(&["finish", run]);
}
