//! SSH, spoken by a program of the site's.

use std::process::Stdio;

use anyhow::Context;
use tokio::{io::copy, net::TcpStream, process::Command};

use super::Site;

/// Hands a connection to the program, to its end.
pub(super) async fn serve(mut stream: TcpStream, site: &Site) -> anyhow::Result<()> {
    let Some((program, arguments)) = site.ssh.split_first() else {
        return Ok(());
    };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("start {program}"))?;
    let mut input = child.stdin.take().context("its standard input")?;
    let mut output = child.stdout.take().context("its standard output")?;
    let (mut reader, mut writer) = stream.split();
    // Whoever ends first ends it at once: what came later would find the next guest, which has the
    // address of this one.
    tokio::select! {
        heard = copy(&mut reader, &mut input) => heard?,
        said = copy(&mut output, &mut writer) => said?,
    };
    drop((stream, input, output));
    child.wait().await.context("wait for its end").map(drop)
}
