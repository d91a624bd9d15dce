//! What `connect` is asked for, from its arguments and the guest's variables.

use std::{ffi::OsString, net::SocketAddr};

use policy::Destination;

/// What is wanted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Help,
    Connection(Asked),
}

/// A connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) destination: Destination,
    pub(super) proxy: SocketAddr,
}

/// Reads them; the error is what to say about a mistake.
pub(super) fn read(
    arguments: &[String],
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Wanted, String> {
    let mut proxy = None;
    let mut names = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--help" | "-h" => return Ok(Wanted::Help),
            "--proxy" => {
                let given = rest.next().ok_or("--proxy needs ADDRESS:PORT")?;
                proxy = Some(address(given).ok_or_else(|| {
                    format!("--proxy {given}: not ADDRESS:PORT, such as 127.0.0.1:3128")
                })?);
            }
            option if option.starts_with('-') => return Err(format!("unknown option {option}")),
            name => names.push(name),
        }
    }
    let [host, port] = names[..] else {
        return Err(format!(
            "needs HOST and PORT, got {} arguments",
            names.len()
        ));
    };
    Ok(Wanted::Connection(Asked {
        destination: destination(host, port)?,
        proxy: proxy.or_else(|| of_variables(variables)).unwrap_or(DEFAULT),
    }))
}

fn destination(host: &str, port: &str) -> Result<Destination, String> {
    let number = port.parse().ok().filter(|&number| number != 0);
    let number = number.filter(|_| port.bytes().all(|b| b.is_ascii_digit()));
    let number = number.ok_or_else(|| format!("port {port}: not a number from 1 to 65535"))?;
    Destination::parse(host, number).map_err(|error| format!("host {host}: {error}"))
}

/// The proxy that the entrypoint told the guest of. One elsewhere is not ours, and out of reach.
fn of_variables(variables: impl Iterator<Item = (OsString, OsString)>) -> Option<SocketAddr> {
    let mut found = None;
    for (name, value) in variables {
        let lower = name == "https_proxy";
        if !lower && name != "HTTPS_PROXY" {
            continue;
        }
        let ours = value.to_str().and_then(on_loopback);
        if lower && ours.is_some() {
            return ours;
        }
        found = found.or(ours);
    }
    found
}

fn on_loopback(url: &str) -> Option<SocketAddr> {
    let authority = url.strip_prefix("http://").unwrap_or(url);
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    address(authority).filter(|address| address.ip().is_loopback())
}

/// An address and a port: no resolver is asked where the proxy is.
fn address(text: &str) -> Option<SocketAddr> {
    let named = text.strip_prefix("localhost:");
    let text = named.map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"));
    text.parse()
        .ok()
        .filter(|address: &SocketAddr| address.port() != 0)
}

const DEFAULT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 3128);

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(arguments: &[&str], variables: &[(&str, &str)]) -> Result<(String, String), String> {
        let arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
        let variables = variables
            .iter()
            .map(|(name, value)| (name.into(), value.into()));
        match read(&arguments, variables)? {
            Wanted::Help => Err("help".to_owned()),
            Wanted::Connection(asked) => {
                Ok((asked.destination.to_string(), asked.proxy.to_string()))
            }
        }
    }

    fn proxy_of(variables: &[(&str, &str)]) -> String {
        asked(&["a.example", "22"], variables).unwrap().1
    }

    #[test]
    fn a_host_is_a_name_or_an_address_of_either_family() {
        for (host, shown) in [
            ("A.Example.", "a.example:22"),
            ("192.0.2.1", "192.0.2.1:22"),
            ("2001:db8::1", "[2001:db8::1]:22"),
            ("[2001:db8::1]", "[2001:db8::1]:22"),
        ] {
            assert_eq!(asked(&[host, "22"], &[]).unwrap().0, shown, "{host}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (arguments, named) in [
            (&[][..], "0 arguments"),
            (&["a.example"], "1 arguments"),
            (&["a.example", "22", "x"], "3 arguments"),
            (&["a.example", "0"], "port 0"),
            (&["a.example", "+22"], "port +22"),
            (&["a.example", "65536"], "port 65536"),
            (&["a.example", "ssh"], "port ssh"),
            (&["a..example", "22"], "host a..example"),
            (&["0x7f.1", "22"], "host 0x7f.1"),
            (&["", "22"], "host "),
            (&["-x", "a.example", "22"], "unknown option -x"),
            (&["a.example", "22", "--proxy"], "--proxy needs"),
            (&["--proxy", "3128", "a.example", "22"], "--proxy 3128"),
            (
                &["--proxy", "127.0.0.1:0", "a.example", "22"],
                "--proxy 127",
            ),
            (
                &["--proxy", "proxy.example:1", "a.example", "22"],
                "--proxy proxy",
            ),
        ] {
            let words = asked(arguments, &[]).unwrap_err();
            assert!(words.contains(named), "{arguments:?}: {words}");
        }
    }

    #[test]
    fn help_is_asked_for_anywhere() {
        assert_eq!(asked(&["-h"], &[]), Err("help".to_owned()));
        assert_eq!(asked(&["a.example", "--help"], &[]), Err("help".to_owned()));
    }

    #[test]
    fn the_proxy_is_the_one_that_the_variables_name() {
        assert_eq!(
            proxy_of(&[("HTTPS_PROXY", "http://127.0.0.1:9")]),
            "127.0.0.1:9"
        );
        assert_eq!(
            proxy_of(&[("https_proxy", "http://localhost:9/")]),
            "127.0.0.1:9"
        );
        assert_eq!(proxy_of(&[("https_proxy", "[::1]:9")]), "[::1]:9");
        let both = [
            ("HTTPS_PROXY", "http://127.0.0.1:8"),
            ("https_proxy", "http://127.0.0.1:9"),
        ];
        assert_eq!(proxy_of(&both), "127.0.0.1:9");
    }

    #[test]
    fn variables_that_name_another_proxy_are_not_followed() {
        for value in [
            "http://proxy.example:8080",
            "http://192.0.2.1:3128",
            "",
            "nonsense",
        ] {
            assert_eq!(
                proxy_of(&[("https_proxy", value)]),
                "127.0.0.1:3128",
                "{value}"
            );
        }
        assert_eq!(
            proxy_of(&[("HTTP_PROXY", "http://127.0.0.1:9")]),
            "127.0.0.1:3128"
        );
    }

    #[test]
    fn an_argument_goes_before_variables() {
        let variables = [("https_proxy", "http://127.0.0.1:9")];
        let arguments = ["--proxy", "[::1]:7", "a.example", "22"];
        assert_eq!(asked(&arguments, &variables).unwrap().1, "[::1]:7");
        let arguments = ["a.example", "22", "--proxy", "localhost:7"];
        assert_eq!(asked(&arguments, &variables).unwrap().1, "127.0.0.1:7");
    }
}
