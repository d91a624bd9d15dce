//! Asks go which module proxies and checksum database it uses.

use super::{Registry, ToolError, output_of};
use crate::environment::Environment;

/// The module proxies of go on this host, and its checksum database.
pub(super) async fn registries(environment: &Environment) -> Result<Vec<Registry>, ToolError> {
    let go = environment
        .program(TOOL)
        .ok_or(ToolError::Missing { tool: TOOL })?;
    let answer = output_of(TOOL, &go, &["env", "GOPROXY", "GOSUMDB"]).await?;
    let mut lines = answer.lines().map(str::trim);
    let (proxies, sums) = (lines.next(), lines.next());
    read(proxies.unwrap_or_default(), sums.unwrap_or_default())
}

/// `proxies` are URLs and the words `direct` and `off`; `sums` is a name with perhaps a key and a
/// URL, or `off` (`go help environment`).
fn read(proxies: &str, sums: &str) -> Result<Vec<Registry>, ToolError> {
    let mut registries = Vec::new();
    for proxy in proxies.split([',', '|']).map(str::trim) {
        // From where a module comes directly only its name says.
        if !matches!(proxy, "" | "direct" | "off") && !proxy.starts_with("file:") {
            registries.push(Registry::of_url(TOOL, proxy)?);
        }
    }
    if registries.is_empty() {
        return Err(ToolError::Unsaid {
            tool: TOOL,
            detail: "its GOPROXY names no module proxy, and modules come from anywhere",
        });
    }
    let mut words = sums.split_whitespace();
    match (words.next(), words.next()) {
        (Some("off") | None, _) => {}
        (Some(_), Some(url)) => registries.push(Registry::of_url(TOOL, url)?),
        (Some(name), None) => {
            let host = name.split('+').next().unwrap_or_default();
            registries.push(Registry::of_url(TOOL, &format!("https://{host}"))?);
        }
    }
    Ok(registries)
}

const TOOL: &str = "go";

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(proxies: &str, sums: &str) -> Result<Vec<String>, String> {
        let registries = read(proxies, sums).map_err(|error| error.to_string())?;
        Ok(registries.iter().flat_map(|r| r.entries(&[])).collect())
    }

    #[test]
    fn proxies_and_the_checksum_database_are_found() {
        for (proxies, sums, expected) in [
            (
                "https://p.example,direct",
                "s.example",
                vec!["p.example:443", "s.example:443"],
            ),
            (
                "https://a.example/x|http://b.example:8081,off",
                "off",
                vec!["a.example:443", "b.example:8081/http"],
            ),
            (
                "https://p.example",
                "s.example+033de0ae+Ac4z https://mirror.example/sumdb",
                vec!["p.example:443", "mirror.example:443"],
            ),
            (
                "https://p.example",
                "s.example/below+1+2",
                vec!["p.example:443", "s.example:443"],
            ),
            ("file:///srv,https://p.example", "", vec!["p.example:443"]),
        ] {
            assert_eq!(
                entries(proxies, sums).unwrap(),
                expected,
                "{proxies} {sums}"
            );
        }
    }

    #[test]
    fn without_a_proxy_there_is_nothing_to_say() {
        for proxies in ["direct", "off", "", "file:///srv"] {
            let error = entries(proxies, "s.example").unwrap_err();
            assert!(
                error.contains("GOPROXY") && error.contains("--allow"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_no_url_is_refused() {
        assert!(entries("p.example", "off").is_err());
        assert!(entries("https://p.example", "s.example ftp://x").is_err());
    }
}
