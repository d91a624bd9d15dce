//! Images that lack something, for as long as a test needs them.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use anyhow::Context;
use sandbox_egress_tests::{
    contained::{BASE, Engine, Lab},
    process::{Running, output_of},
    programs::{Programs, public_directory},
};

/// What our users are, in an image that has nothing else.
const PASSWD: &str =
    "root:x:0:0::/:/bin/sh\nsandbox:x:1000:1000::/:/bin/sh\nsandbox-proxy:x:990:990::/:/bin/sh\n";

/// Users in some groups, and a group of somebody else's.
const GROUP: &str = "root:x:0:\nsandbox:x:1000:\nsandbox-proxy:x:990:\ngames:x:60:sandbox\n\
                     users:x:100:other,sandbox\nstaff:x:50:sandbox-proxy\n";

/// The same as Alpine writes them: system users are in a group of nobody's.
const ALPINE_PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
     nobody:x:65534:65534:nobody:/:/sbin/nologin\n\
     sandbox:x:1000:1000:Linux User,,,:/home/sandbox:/bin/sh\n\
     sandbox-proxy:x:990:65533:Linux User,,,:/home/sandbox-proxy:/sbin/nologin\n";
const ALPINE_GROUP: &str = "root:x:0:root\nwheel:x:10:root\nnogroup:x:65533:\n\
     nobody:x:65534:\nsandbox:x:1000:\n";

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

    /// The base image less the proxy.
    pub(crate) fn by_address(lab: &Lab) -> anyhow::Result<Self> {
        let dockerfile = "FROM sandbox-egress/base\nUSER 0\n\
                          RUN [\"rm\", \"/usr/local/bin/sandbox-egress-proxy\"]\n";
        Self::build(lab.engine(), "by-address", dockerfile)
    }

    /// Our programs and users, and no nft.
    pub(crate) fn without_nft(lab: &Lab) -> anyhow::Result<Self> {
        let dockerfile = "FROM sandbox-egress/layer\nCOPY passwd /etc/passwd\n\
                          ENTRYPOINT [\"/usr/local/bin/sandbox-entrypoint\"]\n";
        Self::build(lab.engine(), "without-nft", dockerfile)
    }

    /// The base image with another's idea of how its init is started.
    pub(crate) fn with_both_names(lab: &Lab) -> anyhow::Result<Self> {
        let dockerfile = format!(
            "FROM {BASE}\nENTRYPOINT [\"sandbox-init\", \"sandbox-firewall\"]\nCMD [\"id\"]\n"
        );
        Self::build(lab.engine(), "both-names", &dockerfile)
    }

    /// The base image with groups for its users.
    pub(crate) fn with_groups(lab: &Lab) -> anyhow::Result<Self> {
        let dockerfile = format!("FROM {BASE}\nCOPY group /etc/group\n");
        Self::build(lab.engine(), "groups", &dockerfile)
    }

    /// Our programs, nft with its libraries, a busybox, and nothing else.
    pub(crate) fn scratch(lab: &Lab) -> anyhow::Result<Self> {
        let dockerfile = format!(
            "FROM {BASE} AS ours\nFROM scratch\nCOPY --from=ours /usr/local/bin /usr/local/bin\n\
             COPY root /\nCOPY passwd /etc/passwd\nENV PATH=/bin\n\
             ENTRYPOINT [\"/usr/local/bin/sandbox-init\"]\n"
        );
        Self::build_with(lab.engine(), "scratch", &dockerfile, lay_root)
    }

    /// The same with the users of an Alpine, another C library, and a program that is linked to it
    /// in place of the busybox.
    pub(crate) fn musl(lab: &Lab) -> anyhow::Result<Self> {
        let dockerfile = format!(
            "FROM {BASE} AS ours\nFROM scratch\nCOPY --from=ours /usr/local/bin /usr/local/bin\n\
             COPY root /\nENTRYPOINT [\"/usr/local/bin/sandbox-entrypoint\"]\n"
        );
        Self::build_with(lab.engine(), "musl", &dockerfile, lay_musl)
    }

    /// Ours, whose entrypoint looks for the collector where it is not. Under a name of the test's own:
    /// whoever is done with an image removes it with all of its containers.
    pub(crate) fn deaf(lab: &Lab, what: &str) -> anyhow::Result<Self> {
        let dockerfile = format!(
            "FROM {BASE}\n\
             RUN cd /usr/local/bin && mv sandbox-entrypoint hearing && \
             printf '#!/bin/sh\\nSANDBOX_REPORT_SOCKET=/nowhere/report.sock exec \
             /usr/local/bin/hearing \"$@\"\\n' >sandbox-entrypoint && \
             chmod 755 sandbox-entrypoint\n"
        );
        Self::build(lab.engine(), what, &dockerfile)
    }

    fn build(engine: Engine, what: &str, dockerfile: &str) -> anyhow::Result<Self> {
        Self::build_with(engine, what, dockerfile, |_| Ok(()))
    }

    fn build_with(
        engine: Engine,
        what: &str,
        dockerfile: &str,
        more: fn(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let name = format!("sandbox-egress-tests/{what}");
        let context = public_directory()?;
        lay(context.path(), dockerfile)?;
        more(context.path())?;
        // What one build takes from another's is gone with the image of that.
        let mut build = engine.command(["build", "--quiet", "--no-cache", "--tag", &name]);
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
    fs::write(context.join("group"), GROUP)?;
    let entrypoint = Programs::locate()?.path("sandbox-entrypoint");
    fs::copy(entrypoint, context.join("sandbox-entrypoint")).context("copy the entrypoint")?;
    Ok(())
}

/// The machine's own nft and busybox.
fn lay_root(context: &Path) -> anyhow::Result<()> {
    let root = context.join("root");
    for program in [NFT, "/bin/busybox"] {
        lay_program(&root, program)?;
    }
    for name in ["sh", "id", "wget"] {
        symlink("busybox", root.join("bin").join(name))?;
    }
    Ok(())
}

/// The machine's own nft, which brings its C library, and a program of the other one.
fn lay_musl(context: &Path) -> anyhow::Result<()> {
    let root = context.join("root");
    lay_program(&root, NFT)?;
    copy_below(&root, MUSL)?;
    for directory in ["bin", "etc", "home/sandbox"] {
        fs::create_dir_all(root.join(directory))?;
    }
    fs::write(root.join("etc/passwd"), ALPINE_PASSWD)?;
    fs::write(root.join("etc/group"), ALPINE_GROUP)?;
    let mut compile = Command::new("musl-gcc");
    compile.arg("-o").arg(root.join("bin/fetch"));
    compile.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/src/musl.c"));
    output_of(&mut compile)
        .context("compile for musl: tests/run installs it")
        .map(drop)
}

/// A program of the machine's, with what the dynamic linker would bring.
fn lay_program(root: &Path, program: &str) -> anyhow::Result<()> {
    copy_below(root, program)?;
    // What is linked statically has no list, and that is what `ldd` says by its code.
    let listed = Running::start(Command::new("ldd").arg(program))?.finish()?;
    let words = listed.stdout.split_ascii_whitespace();
    for library in words.filter(|word| word.starts_with('/')) {
        copy_below(root, library)?;
    }
    Ok(())
}

fn copy_below(root: &Path, path: &str) -> anyhow::Result<()> {
    let to = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(to.parent().context("a directory")?)?;
    fs::copy(path, to)
        .with_context(|| format!("copy {path}: tests/run installs it"))
        .map(drop)
}

const NFT: &str = "/usr/sbin/nft";
/// At once the C library, and the linker that programs name.
const MUSL: &str = "/lib/ld-musl-x86_64.so.1";
