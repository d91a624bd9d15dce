//! Images that share nothing with ours but our programs: of other libraries, and of none.

use anyhow::{Context, ensure};
use sandbox_egress_tests::{
    case::Network,
    contained::{Engine, Lab},
    process::Running,
    record::Expected,
};

use crate::{
    LabTest,
    by_hand::{allowing, engine_run_of, finish},
    contract::ends,
    image::Image,
};

pub(crate) const TESTS: [(&str, LabTest); 2] = [
    ("an-image-of-nothing-but-static-programs-is-enough", scratch),
    ("a-guest-of-another-c-library-is-kept-to-its-list", musl),
];

/// Our programs are static; of all others, nft alone is needed, with the libraries that it is linked
/// to. What looks for names in the guest is a busybox.
fn scratch(lab: &Lab) -> anyhow::Result<()> {
    let image = Image::scratch(lab)?;
    let guest = "id -u; wget -q -O - http://allowed.test/; wget -q -O - http://denied.test/";
    let options = [&*allowing(lab, "allowed.test"), "--read-only"];
    let guest = ["sh", "-c", guest];
    let finished = finish(engine_run_of(lab, &image.name, &options, &guest))?;
    let said = ["1000\n", "served allowed.test:80", "403 egress denied"];
    ends(&finished, 1, &said)?;
    only_what_is_listed_is_reached(lab)
}

/// Finds its user in files as Alpine has them, and asks for names as no other C library does: for
/// both families at once. It knows of no proxy.
fn musl(lab: &Lab) -> anyhow::Result<()> {
    let (image, files) = (Image::musl(lab)?, lab.files()?);
    let subnet = lab.internet().subnet();
    let allow = [subnet.v4_net(), subnet.v6_net()].map(|net| format!("allowed.test@{net}"));
    let mut command = lab.collector(&files, Network::Allowlist, &allow);
    // A suffix of this machine's own would be tried on every name.
    command.arg("--engine-arg=--dns-search=.");
    command.args([
        &*image.name,
        "--",
        "/bin/fetch",
        "allowed.test",
        "denied.test",
    ]);
    let finished = Running::start(&mut command)?.finish()?;
    // Podman writes an entry for the account that it runs by, and its home is where it works.
    let who = if lab.engine() == Engine::Rootless {
        " at /workspace
"
    } else {
        "sandbox at /home/sandbox
"
    };
    ends(
        &finished,
        1,
        &[who, "served allowed.test:80", "denied.test: "],
    )?;
    only_what_is_listed_is_reached(lab)?;
    let line = files.session_line()?.context("no session line")?;
    let expected = Expected::complete(
        vec!["denied.test:53/udp dns_not_allowed 2".to_owned()],
        vec!["allowed.test:80 1 0".to_owned()],
    );
    let wrong = expected.differences(subnet, &line);
    ensure!(wrong.is_empty(), "{}: {line:#}", wrong.join("\n"));
    Ok(())
}

fn only_what_is_listed_is_reached(lab: &Lab) -> anyhow::Result<()> {
    let reached = lab.internet().account()?.reached;
    ensure!(reached.iter().eq(["allowed.test:80/tcp"]), "{reached:?}");
    Ok(())
}
