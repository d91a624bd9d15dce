//! A registry, and the entries that let a guest reach it.

use std::{net::IpAddr, process::Stdio};

use http::Uri;
use policy::{Host, is_guarded};
use report::Printable;
use tokio::process::Command;

use super::ToolError;
use crate::environment::Environment;

/// Where a tool fetches from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Registry {
    host: Host,
    port: u16,
    scheme: Scheme,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl Registry {
    /// Takes the host out of a configured URL. What stands in front of an `@` in it is a secret.
    pub(super) fn of_url(tool: &'static str, url: &str) -> Result<Self, ToolError> {
        let bad = || {
            let shown = url.rsplit_once('@').map_or(url, |(_, rest)| rest);
            ToolError::Url {
                tool,
                url: Printable::new(shown),
            }
        };
        let uri: Uri = url.trim().parse().map_err(|_| bad())?;
        let scheme = match uri.scheme_str() {
            Some("https") => Scheme::Https,
            Some("http") => Scheme::Http,
            _ => return Err(bad()),
        };
        let host = uri
            .host()
            .and_then(|host| Host::parse(host).ok())
            .ok_or_else(bad)?;
        let port = uri.port_u16().unwrap_or(scheme.port());
        Ok(Self { host, port, scheme })
    }

    /// The same registry on another host.
    pub(super) fn at(&self, host: &str) -> Option<Self> {
        Some(Self {
            host: Host::parse(host).ok()?,
            ..self.clone()
        })
    }

    /// The addresses that this host finds for it. None if it finds none: the container may.
    ///
    /// The host's own resolver is asked with `getent`, since a static program has no NSS.
    pub(super) async fn resolve(&self, environment: &Environment) -> Vec<IpAddr> {
        let (Host::Name(name), Some(getent)) = (&self.host, environment.program("getent")) else {
            return Vec::new();
        };
        let mut command = Command::new(getent);
        command
            .args(["ahosts", "--", name.as_str()])
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(super::PATIENCE, command.output()).await;
        let Ok(Ok(output)) = output else {
            return Vec::new();
        };
        addresses(&String::from_utf8_lossy(&output.stdout))
    }

    /// The entries that allow it: its port only, and where every address is guarded, those addresses.
    pub(super) fn entries(&self, addresses: &[IpAddr]) -> Vec<String> {
        let target = match &self.host {
            Host::Address(IpAddr::V6(address)) => format!("[{address}]"),
            host @ (Host::Name(_) | Host::Address(IpAddr::V4(_))) => host.to_string(),
        };
        let proto = match (self.scheme, self.port) {
            (Scheme::Https, 443) | (Scheme::Http, 80) => "",
            (Scheme::Https, _) => "/tls",
            (Scheme::Http, _) => "/http",
        };
        let entry = format!("{target}:{}{proto}", self.port);
        let guarded = addresses
            .iter()
            .all(|&address| is_guarded(address).is_some());
        if addresses.is_empty() || !guarded {
            return vec![entry];
        }
        addresses
            .iter()
            .map(|address| format!("{entry}@{address}/{}", width(*address)))
            .collect()
    }
}

impl Scheme {
    const fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

const fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// `getent ahosts` prints a line for each address and kind of socket, the address first.
fn addresses(output: &str) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = output
        .lines()
        .filter_map(|line| line.split_whitespace().next()?.parse().ok())
        .collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(url: &str) -> Registry {
        Registry::of_url("pip", url).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_url_becomes_the_narrowest_entry_that_serves_it() {
        for (url, entry) in [
            ("https://mirror.example/simple/", "mirror.example:443"),
            ("http://mirror.example/simple", "mirror.example:80"),
            (
                "https://user:pass@Mirror.Example:8443/x",
                "mirror.example:8443/tls",
            ),
            ("http://mirror.example:8080", "mirror.example:8080/http"),
            ("https://192.0.2.7/simple", "192.0.2.7:443"),
            ("https://[2001:db8::1]:8443/", "[2001:db8::1]:8443/tls"),
        ] {
            assert_eq!(registry(url).entries(&[]), [entry], "{url}");
        }
    }

    #[test]
    fn a_mirror_in_a_guarded_range_is_written_with_its_addresses() {
        let local: [IpAddr; 2] = ["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()];
        let expected = ["m.example:443@127.0.0.1/32", "m.example:443@::1/128"];
        assert_eq!(registry("https://m.example").entries(&local), expected);
        for entry in expected {
            policy::Policy::from_entries([entry])
                .unwrap_or_else(|error| panic!("{entry}: {error}"));
        }
    }

    #[test]
    fn one_public_address_is_enough_for_a_plain_entry() {
        let mixed: [IpAddr; 2] = ["127.0.0.1".parse().unwrap(), "9.9.9.9".parse().unwrap()];
        assert_eq!(
            registry("https://m.example").entries(&mixed),
            ["m.example:443"]
        );
    }

    #[test]
    fn what_is_no_web_url_is_refused_without_its_credentials() {
        for url in [
            "",
            "mirror.example",
            "ftp://m.example/",
            "https:///x",
            "https://a b/",
            "file:///srv",
        ] {
            assert!(Registry::of_url("pip", url).is_err(), "{url}");
        }
        let error = Registry::of_url("pip", "ftp://me:secret@m.example/")
            .unwrap_err()
            .to_string();
        assert!(
            !error.contains("secret") && error.contains("m.example"),
            "{error}"
        );
    }

    #[test]
    fn each_address_of_getent_counts_once() {
        let output =
            "192.0.2.1      STREAM m.example\n192.0.2.1      DGRAM\n2001:db8::1 RAW\nrubbish\n\n";
        assert_eq!(addresses(output).len(), 2);
    }
}
