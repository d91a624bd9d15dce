//! The image that has all clients: what is to be had from it besides running them.

use std::{collections::BTreeMap, path::Path};

use super::Client;
use crate::{contained::Engine, internet::Site, process::output_of};

/// Built by `tests/clients/image/build`.
pub const IMAGE: &str = "sandbox-egress/clients";

/// What the origins serve: the files that the image carries, copied into `directory`, and the SSH
/// server that it has, with nothing but the connection to talk to.
pub fn site(directory: &Path) -> anyhow::Result<Site> {
    let container = output_of(&mut Engine::Docker.command(["create", IMAGE]))?;
    let container = container.trim();
    let from = format!("{container}:/srv/site");
    let copied = output_of(Engine::Docker.command(["cp", &from]).arg(directory));
    output_of(&mut Engine::Docker.command(["rm", container]))?;
    copied?;
    let ssh = "docker run --rm --interactive --network none --entrypoint /usr/sbin/sshd";
    let ssh = ssh.split(' ').chain([IMAGE, "-i"]);
    Ok(Site {
        files: Some(directory.join("site")),
        ssh: ssh.map(str::to_owned).collect(),
    })
}

/// The version of each client's package, as far as it decides on behaviour, and of the system
/// below, under the name of the empty package.
pub fn versions(clients: &[(String, Client)]) -> anyhow::Result<BTreeMap<String, String>> {
    let script =
        "dpkg-query -W -f '${Package} ${Version}\\n'; . /etc/os-release; echo \"= $PRETTY_NAME\"";
    let run = [
        "run",
        "--rm",
        "--network",
        "none",
        "--entrypoint",
        "sh",
        IMAGE,
        "-c",
        script,
    ];
    let listing = output_of(&mut Engine::Docker.command(run))?;
    let wanted = |package: &str| {
        package == "=" || clients.iter().any(|(_, client)| client.package == package)
    };
    let lines = listing.lines().filter_map(|line| line.split_once(' '));
    let lines = lines.filter(|(package, _)| wanted(package));
    Ok(lines
        .map(|(package, version)| match package {
            "=" => (String::new(), version.to_owned()),
            _ => (package.to_owned(), series(version).to_owned()),
        })
        .collect())
}

/// The first two numbers of a version, without Debian's epoch: what is after them changes with
/// every fix, and what a client does should not.
fn series(version: &str) -> &str {
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    let mut dots = version.match_indices(|c: char| !c.is_ascii_digit());
    match (dots.next(), dots.next()) {
        (Some((_, ".")), Some((end, _))) | (Some((end, _)), _) => {
            version.get(..end).unwrap_or(version)
        }
        (None, _) => version,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_what_a_fix_does_not_change() {
        for (version, expected) in [
            ("7.88.1-10+deb12u15", "7.88"),
            ("2:1.19~1", "1.19"),
            ("1:9.2p1-2+deb12u10", "9.2"),
            ("23.0.1+dfsg-1", "23.0"),
            ("17-74", "17"),
            ("8", "8"),
        ] {
            assert_eq!(series(version), expected, "{version}");
        }
    }
}
