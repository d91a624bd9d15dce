//! Images that lack something, for as long as a test needs them.

use std::{fs, path::Path};

use anyhow::Context;
use sandbox_egress_tests::{
    contained::{Engine, Lab},
    process::output_of,
    programs::{Programs, public_directory},
};

/// What our users are, in an image that has nothing else.
const PASSWD: &str =
    "root:x:0:0::/:/bin/sh\nsandbox:x:1000:1000::/:/bin/sh\nsandbox-proxy:x:990:990::/:/bin/sh\n";

/// An image of the tests' own.
#[derive(Debug)]
pub(crate) struct Image {
    engine: Engine,
    pub(crate) name: String,
}

impl Image {
    /// Debian with the entrypoint, but not the proxy.
    pub(crate) fn without_proxy(lab: &Lab) -> anyhow::Result<Self> {
        let dockerfile = "FROM sandbox-egress/debian\nCOPY sandbox-entrypoint /usr/local/bin/\n\
                          ENTRYPOINT [\"/usr/local/bin/sandbox-entrypoint\"]\n";
        Self::build(lab.engine(), "without-proxy", dockerfile)
    }

    /// Our programs and users, and no nft.
    pub(crate) fn without_nft(lab: &Lab) -> anyhow::Result<Self> {
        let dockerfile = "FROM sandbox-egress/layer\nCOPY passwd /etc/passwd\n\
                          ENTRYPOINT [\"/usr/local/bin/sandbox-entrypoint\"]\n";
        Self::build(lab.engine(), "without-nft", dockerfile)
    }

    fn build(engine: Engine, what: &str, dockerfile: &str) -> anyhow::Result<Self> {
        let name = format!("sandbox-egress-tests/{what}");
        let context = public_directory()?;
        lay(context.path(), dockerfile)?;
        let mut build = engine.command(["build", "--quiet", "--tag", &name]);
        // The classic builder is what every installation of docker has.
        output_of(build.arg(context.path()).env("DOCKER_BUILDKIT", "0"))?;
        Ok(Self { engine, name })
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // A container of a failed test may still use it.
        let _ = output_of(&mut self.engine.command(["rmi", "--force", &self.name]));
    }
}

fn lay(context: &Path, dockerfile: &str) -> anyhow::Result<()> {
    fs::write(context.join("Dockerfile"), dockerfile)?;
    fs::write(context.join("passwd"), PASSWD)?;
    let entrypoint = Programs::locate()?.path("sandbox-entrypoint");
    fs::copy(entrypoint, context.join("sandbox-entrypoint")).context("copy the entrypoint")?;
    Ok(())
}
