//! Asks apt which archives it uses.

use std::path::Path;

use super::{Registry, ToolError, output_of};
use crate::{environment::Environment, list_file};

/// The archives of apt's sources on this host.
pub(super) async fn registries(environment: &Environment) -> Result<Vec<Registry>, ToolError> {
    let apt = environment
        .program("apt-get")
        .ok_or(ToolError::Missing { tool: TOOL })?;
    let sites = output_of(TOOL, &apt, &["indextargets", "--format", "$(SITE)"]).await?;
    archives(&sites)
}

/// Reads a site a line, of which many are the same.
fn archives(sites: &str) -> Result<Vec<Registry>, ToolError> {
    let mut sites: Vec<&str> = sites.lines().map(str::trim).collect();
    sites.sort_unstable();
    sites.dedup();
    let mut archives = Vec::new();
    for site in sites {
        match site.split_once(':') {
            // On a disk, so no destination; and an empty line is no site.
            Some(("file" | "copy" | "cdrom", _)) | None => {}
            Some(("mirror+file", path)) => archives.extend(mirrors(path)?),
            Some(_) => archives.push(Registry::of_url(TOOL, site)?),
        }
    }
    if archives.is_empty() {
        return Err(ToolError::Unsaid {
            tool: TOOL,
            detail: "its sources name no archive on the network",
        });
    }
    Ok(archives)
}

/// The mirrors in a file of apt's, one a line and perhaps properties after it
/// (apt-transport-mirror(1)).
fn mirrors(path: &str) -> Result<Vec<Registry>, ToolError> {
    // `file:///path` as well as `file:/path`.
    let path = format!("/{}", path.trim_start_matches('/'));
    let list = list_file::read(Path::new(&path)).map_err(|error| ToolError::Failed {
        tool: TOOL,
        detail: report::Printable::new(&format!("{path}: {error}")),
    })?;
    list.lines()
        .filter_map(|line| line.split('#').next()?.split_whitespace().next())
        .map(|url| Registry::of_url(TOOL, url))
        .collect()
}

const TOOL: &str = "apt";

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(sites: &str) -> Result<Vec<String>, String> {
        let archives = archives(sites).map_err(|error| error.to_string())?;
        Ok(archives.iter().flat_map(|a| a.entries(&[])).collect())
    }

    #[test]
    fn every_archive_on_the_network_is_found_once() {
        let sites = "http://deb.example/debian\nhttps://s.example/x\nhttp://deb.example/debian\n\
            file:/srv/archive\ncdrom:[Disk]\n\n";
        assert_eq!(entries(sites).unwrap(), ["deb.example:80", "s.example:443"]);
    }

    #[test]
    fn the_mirrors_of_a_list_on_disk_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("mirrors");
        std::fs::write(
            &list,
            "# ours\nhttps://a.example/debian\tpriority:1\n\nhttp://b.example/debian # near\n",
        )
        .unwrap();
        let expected = ["a.example:443", "b.example:80"];
        for prefix in ["mirror+file:", "mirror+file://"] {
            let site = format!("{prefix}{}\n", list.display());
            assert_eq!(entries(&site).unwrap(), expected, "{site}");
        }
        let error = entries("mirror+file:/nowhere/list").unwrap_err();
        assert!(error.contains("/nowhere/list"), "{error}");
    }

    #[test]
    fn what_names_no_host_is_refused_with_the_remedy() {
        for sites in [
            "",
            "file:/srv\n",
            "mirror://m.example/list\n",
            "tor+http://x.example/",
        ] {
            let error = entries(sites).unwrap_err();
            assert!(error.contains("name"), "{error}");
        }
    }
}
