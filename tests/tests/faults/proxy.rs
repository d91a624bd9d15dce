//! A proxy that is started again and never comes to serve.

use anyhow::{Context, ensure};
use sandbox_egress_tests::{
    contained::{BASE, Lab, Stage},
    process::{Finished, Running, output_of},
    record,
    trials::LabTest,
};

pub(crate) const TESTS: [(&str, LabTest); 1] =
    [("one-that-never-serves-holds-up-nobody-else", never_serves)];

/// Puts what only listens in the proxy's place, and ends the proxy.
const REPLACE: &str = "
cp /bin/cat /usr/local/bin/other && mv /usr/local/bin/other /usr/local/bin/sandbox-egress-proxy
for process in /proc/[0-9]*; do
    [ \"$(cat $process/comm)\" != sandbox-egress- ] || kill -KILL ${process#/proc/}
done";

/// Process 1 waits for it, and hears meanwhile that the guest is to end.
fn never_serves(lab: &Lab) -> anyhow::Result<()> {
    let stage = Stage::set(lab)?;
    let mut command = stage.launch(&["run"]);
    command.args([BASE, "--", "bash", "-c"]);
    command.arg("trap 'exit 5' TERM; ./meanwhile & wait");
    let running = Running::start(&mut command)?;
    stage.said()?;
    let (run, container) = (stage.run_id()?, lab.container()?);
    let as_root = |script| {
        let exec = ["exec", "--user=0:0", &container, "bash", "-c", script];
        output_of(&mut lab.command(exec)).map(drop)
    };
    as_root(REPLACE)?;
    stage.journaled(&run, "it was not ready within 5 s")?;
    // By the time that this has been done another is being waited for.
    as_root("until grep -qxs sandbox-egress- /proc/[0-9]*/comm; do :; done")?;
    output_of(&mut lab.command(["stop", "--time=2", &container]))?;
    let Finished { code, stderr, .. } = running.finish()?;
    ensure!(code == 5, "{code}: {stderr}");
    let line = stage.files.session_line()?.context("no line")?;
    record::says(&line, &["/egress_channel/state", "/exit_code"], "gap 5")
}
