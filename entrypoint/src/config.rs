//! What the environment asks for, checked whole before anything is done.

use std::{ffi::OsString, path::PathBuf};

use policy::Policy;

use crate::{
    allow::{self, ALLOW, ALLOW_CONTINUED},
    failure::Failure,
    ingress::IngressPort,
    transport::{Ends, HATCH, Transport},
};

/// Everything that PID 1 was asked to do.
#[derive(Debug)]
pub(crate) struct Config {
    /// The guest's command, with its arguments.
    pub(crate) command: Vec<OsString>,
    /// Who the guest is; absent where it stays what the engine made it.
    pub(crate) run_as: Option<String>,
    /// File mode creation mask of the guest.
    pub(crate) umask: Option<u32>,
    /// The allowlist and what belongs to it; absent where none was asked for.
    pub(crate) allowlist: Option<Allowlist>,
}

/// What an allowlist needs.
#[derive(Debug)]
pub(crate) struct Allowlist {
    /// The list.
    pub(crate) policy: Policy,
    /// Where clients that know of the proxy find it, on loopback.
    pub(crate) proxy_port: u16,
    /// Who is to decide.
    pub(crate) enforce: Enforce,
    /// What may be dialled from outside.
    pub(crate) ingress: Vec<IngressPort>,
    /// Whether somebody must be listening to reports.
    pub(crate) report: Report,
    /// The way that reports take.
    pub(crate) transport: Transport,
    /// Where that begins and ends.
    pub(crate) ends: Ends,
    /// The one-time secret of this run; empty where no collector gave one.
    pub(crate) nonce: String,
    /// An HTTP proxy to dial through, `host:port`.
    pub(crate) upstream_proxy: Option<String>,
    /// How many connections the proxy serves at once.
    pub(crate) max_connections: u32,
}

/// Who decides on what leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Enforce {
    /// The proxy where the image has one, else addresses.
    Auto,
    /// The proxy, by name, or nobody.
    Name,
    /// nftables alone, by the addresses that names resolve to.
    Address,
}

/// What to do without a collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    /// Refuse to start the guest.
    Required,
    /// Start it all the same.
    BestEffort,
    /// Do not look for one.
    Off,
}

impl Config {
    /// Reads the configuration through `lookup`, so that tests set no environment.
    pub(crate) fn from_lookup(
        command: Vec<OsString>,
        lookup: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Failure> {
        let text = |name: &'static str| text(name, lookup);
        if command.is_empty() {
            return Err(Failure::config(
                "command",
                "none was given",
                "name the program to run after the image",
            ));
        }
        check_exec_record(&text)?;
        let allowlist = match text(ALLOW)? {
            Some(list) => Some(Allowlist::read(&continued(list, &text)?, &text)?),
            None => None,
        };
        Ok(Self {
            command,
            run_as: text("SANDBOX_RUN_AS")?.filter(|s| !s.is_empty()),
            umask: text("SANDBOX_UMASK")?.and_then(|s| umask(&s)),
            allowlist,
        })
    }
}

type Text<'a> = &'a dyn Fn(&'static str) -> Result<Option<String>, Failure>;

impl Allowlist {
    fn read(list: &str, text: Text<'_>) -> Result<Self, Failure> {
        let policy = allow::policy(list)?;
        let enforce = enforce(text)?;
        let socket = text("SANDBOX_REPORT_SOCKET")?;
        let nonce = text("SANDBOX_REPORT_NONCE")?.unwrap_or_default();
        let report = report(text, socket.is_some() || !nonce.is_empty())?;
        Ok(Self {
            policy,
            proxy_port: proxy_port(text)?,
            enforce,
            ingress: ingress(text)?,
            report,
            transport: transport(text)?,
            ends: Ends {
                socket: socket.map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from),
                hatch: HATCH.into(),
            },
            nonce,
            upstream_proxy: upstream_proxy(text)?,
            max_connections: max_connections(text)?,
        })
    }
}

fn enforce(text: Text<'_>) -> Result<Enforce, Failure> {
    match text("SANDBOX_ENFORCE")?.as_deref() {
        None | Some("" | "auto") => Ok(Enforce::Auto),
        Some("name") => Ok(Enforce::Name),
        Some("address") => Ok(Enforce::Address),
        Some(other) => Err(Failure::config(
            "SANDBOX_ENFORCE",
            format_args!("`{other}` is no kind of enforcement"),
            "use `auto`, `name` or `address`",
        )),
    }
}

/// Whoever asks for a record of what is executed is told that there will be none: with an allowlist
/// or without, since the two have nothing to do with each other.
fn check_exec_record(text: Text<'_>) -> Result<(), Failure> {
    match text("SANDBOX_EXEC_RECORD")?.as_deref() {
        None | Some("" | "off") => Ok(()),
        Some(_) => Err(Failure::config(
            "SANDBOX_EXEC_RECORD",
            "a record of every execution is not part of this version",
            "leave it out, or set it to `off`",
        )),
    }
}

/// Whoever was given a collector's socket or secret is told when it does not answer; whoever bakes
/// the image and runs it by hand needs none.
fn report(text: Text<'_>, collector_expected: bool) -> Result<Report, Failure> {
    match text("SANDBOX_REPORT")?.as_deref() {
        None | Some("") => Ok(if collector_expected {
            Report::Required
        } else {
            Report::Off
        }),
        Some("required") => Ok(Report::Required),
        Some("best-effort") => Ok(Report::BestEffort),
        Some("off") => Ok(Report::Off),
        Some(other) => Err(Failure::config(
            "SANDBOX_REPORT",
            format_args!("`{other}` is not known"),
            "use `required`, `best-effort` or `off`",
        )),
    }
}

/// A list may go on in further variables, as many as there are without a gap: what is missing at its
/// end is missed by the collector, which compares digests.
fn continued(mut list: String, text: Text<'_>) -> Result<String, Failure> {
    for name in ALLOW_CONTINUED {
        match text(name)? {
            Some(more) => list.push_str(&more),
            None => break,
        }
    }
    Ok(list)
}

fn transport(text: Text<'_>) -> Result<Transport, Failure> {
    let word = text(TRANSPORT)?.unwrap_or_default();
    let unknown = |_| {
        Failure::config(
            TRANSPORT,
            format_args!("`{word}` is no way to report"),
            "use `auto`, `socket` or `exec`",
        )
    };
    word.parse().map_err(unknown)
}

fn proxy_port(text: Text<'_>) -> Result<u16, Failure> {
    let Some(port) = text("SANDBOX_PROXY_PORT")?.filter(|s| !s.is_empty()) else {
        return Ok(DEFAULT_PROXY_PORT);
    };
    port.parse().ok().filter(|&port| port != 0).ok_or_else(|| {
        let problem = format!("`{port}` is no port");
        Failure::config(
            "SANDBOX_PROXY_PORT",
            problem,
            "use a number from 1 to 65535",
        )
    })
}

fn ingress(text: Text<'_>) -> Result<Vec<IngressPort>, Failure> {
    let list = text("SANDBOX_INGRESS_PORTS")?.unwrap_or_default();
    list.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(str::parse)
        .collect()
}

/// `http://host:port`, as the tools that read proxy variables have it.
fn upstream_proxy(text: Text<'_>) -> Result<Option<String>, Failure> {
    let Some(url) = text("SANDBOX_UPSTREAM_PROXY")?.filter(|s| !s.is_empty()) else {
        return Ok(None);
    };
    let authority = url
        .strip_prefix("http://")
        .map(|rest| rest.trim_end_matches('/'));
    let parts = authority.and_then(|authority| authority.rsplit_once(':'));
    match parts {
        Some((host, port))
            if policy::Host::parse(host).is_ok() && port.parse::<u16>().is_ok_and(|p| p != 0) =>
        {
            Ok(Some(format!("{host}:{port}")))
        }
        _ => Err(Failure::config(
            "SANDBOX_UPSTREAM_PROXY",
            "not of the form `http://host:port`",
            "write host and port, without user or path",
        )),
    }
}

/// The proxy takes fewer where descriptors do not suffice, and says so.
fn max_connections(text: Text<'_>) -> Result<u32, Failure> {
    let Some(count) = text("SANDBOX_MAX_CONNECTIONS")?.filter(|s| !s.is_empty()) else {
        return Ok(DEFAULT_MAX_CONNECTIONS);
    };
    count
        .parse()
        .ok()
        .filter(|count| (1..=MOST_CONNECTIONS).contains(count))
        .ok_or_else(|| {
            Failure::config(
                "SANDBOX_MAX_CONNECTIONS",
                format!("`{count}` is no number of connections"),
                "use a number from 1 to 1000000",
            )
        })
}

/// Octal; anything else is ignored, as the images that this replaces do.
fn umask(text: &str) -> Option<u32> {
    u32::from_str_radix(text.trim(), 8)
        .ok()
        .filter(|&mask| mask <= 0o777)
}

fn text(
    name: &'static str,
    lookup: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Option<String>, Failure> {
    lookup(name)
        .map(|value| {
            value
                .into_string()
                .map_err(|_| Failure::config(name, "not UTF-8", "use names and numbers only"))
        })
        .transpose()
}

const TRANSPORT: &str = "SANDBOX_REPORT_TRANSPORT";
const DEFAULT_SOCKET: &str = "/run/sandbox-egress/host/report.sock";
const DEFAULT_PROXY_PORT: u16 = 3128;
const DEFAULT_MAX_CONNECTIONS: u32 = 4096;
const MOST_CONNECTIONS: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Config, Failure> {
        let lookup = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        };
        Config::from_lookup(vec!["true".into()], &lookup)
    }

    #[test]
    fn without_an_allowlist_nothing_is_asked_for() {
        let config = read(&[("SANDBOX_ENFORCE", "nonsense")]).unwrap();
        assert!(config.allowlist.is_none());
    }

    #[test]
    fn a_list_goes_on_from_variable_to_variable_and_stops_at_the_first_that_is_missing() {
        let [second, third, fourth, ..] = ALLOW_CONTINUED;
        let config = read(&[
            (ALLOW, "one.exam"),
            (second, "ple,two.example,"),
            (third, "three.example"),
            ("SANDBOX_EGRESS_ALLOW_5", "five.example"),
        ]);
        let policy = config.unwrap().allowlist.unwrap().policy;
        let entries = ["one.example", "three.example", "two.example"];
        assert_eq!(policy.entries(), entries);
        let alone = read(&[(fourth, "four.example")]).unwrap();
        assert!(alone.allowlist.is_none());
    }

    #[test]
    fn an_empty_allowlist_is_an_error_and_never_no_allowlist() {
        for list in ["", " ", ",", "#nothing", "\n,\n"] {
            let refused = read(&[(ALLOW, list)]);
            assert!(
                matches!(
                    refused,
                    Err(Failure::Config {
                        variable: ALLOW,
                        ..
                    })
                ),
                "{list:?}"
            );
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_by_name() {
        for (name, value) in [
            ("SANDBOX_PROXY_PORT", "0"),
            ("SANDBOX_PROXY_PORT", "65536"),
            ("SANDBOX_PROXY_PORT", "http"),
            ("SANDBOX_ENFORCE", "none"),
            ("SANDBOX_ENFORCE", "NAME"),
            ("SANDBOX_REPORT", "maybe"),
            (TRANSPORT, "pigeon"),
            ("SANDBOX_INGRESS_PORTS", "tcp"),
            ("SANDBOX_UPSTREAM_PROXY", "https://proxy.example:3128"),
            (
                "SANDBOX_UPSTREAM_PROXY",
                "http://user:word@proxy.example:3128",
            ),
            ("SANDBOX_UPSTREAM_PROXY", "http://proxy.example"),
            ("SANDBOX_MAX_CONNECTIONS", "0"),
            ("SANDBOX_MAX_CONNECTIONS", "1000001"),
            ("SANDBOX_MAX_CONNECTIONS", "-1"),
            ("SANDBOX_MAX_CONNECTIONS", "many"),
        ] {
            match read(&[(ALLOW, "example.com"), (name, value)]) {
                Err(Failure::Config { variable, .. }) => assert_eq!(variable, name, "{value}"),
                other => panic!("{name}={value} gave {other:?}"),
            }
        }
    }

    #[test]
    fn a_collector_that_was_promised_is_required() {
        for (variables, report) in [
            (vec![], Report::Off),
            (vec![("SANDBOX_REPORT_NONCE", "x")], Report::Required),
            (vec![("SANDBOX_REPORT_SOCKET", "/s")], Report::Required),
            (
                vec![
                    ("SANDBOX_REPORT_NONCE", "x"),
                    ("SANDBOX_REPORT", "best-effort"),
                ],
                Report::BestEffort,
            ),
            (vec![("SANDBOX_REPORT", "off")], Report::Off),
        ] {
            let all: Vec<_> = variables
                .iter()
                .copied()
                .chain([(ALLOW, "example.com")])
                .collect();
            assert_eq!(
                read(&all).unwrap().allowlist.unwrap().report,
                report,
                "{variables:?}"
            );
        }
    }

    #[test]
    fn who_decides_is_the_callers_to_say() {
        for (value, enforce) in [
            ("", Enforce::Auto),
            ("auto", Enforce::Auto),
            ("name", Enforce::Name),
            ("address", Enforce::Address),
        ] {
            let config = read(&[(ALLOW, "example.com"), ("SANDBOX_ENFORCE", value)]);
            assert_eq!(
                config.unwrap().allowlist.unwrap().enforce,
                enforce,
                "{value:?}"
            );
        }
    }

    #[test]
    fn a_umask_is_octal_or_ignored() {
        for (value, mask) in [
            ("022", Some(0o22)),
            ("0077", Some(0o77)),
            ("9", None),
            ("01000", None),
            ("", None),
        ] {
            assert_eq!(
                read(&[("SANDBOX_UMASK", value)]).unwrap().umask,
                mask,
                "{value:?}"
            );
        }
    }

    #[test]
    fn a_record_of_executions_is_refused_and_never_forgotten() {
        for allow in [None, Some((ALLOW, "example.com"))] {
            for (value, accepted) in [
                ("", true),
                ("off", true),
                ("1", false),
                ("on", false),
                ("required", false),
                ("OFF", false),
            ] {
                let variables = [("SANDBOX_EXEC_RECORD", value)].into_iter().chain(allow);
                let config = read(&variables.collect::<Vec<_>>());
                assert_eq!(config.is_ok(), accepted, "{allow:?} {value:?}");
            }
        }
    }

    #[test]
    fn no_command_is_an_error() {
        assert!(Config::from_lookup(Vec::new(), &|_| None).is_err());
    }

    #[test]
    fn an_upstream_proxy_is_host_and_port() {
        let config = read(&[
            (ALLOW, "example.com"),
            ("SANDBOX_UPSTREAM_PROXY", "http://proxy.example:3128/"),
        ]);
        let upstream = config.unwrap().allowlist.unwrap().upstream_proxy;
        assert_eq!(upstream.as_deref(), Some("proxy.example:3128"));
    }

    #[test]
    fn the_limit_on_connections_is_the_callers_to_set() {
        for (value, limit) in [("", 4096), ("1", 1), ("64", 64), ("1000000", 1_000_000)] {
            let config = read(&[(ALLOW, "example.com"), ("SANDBOX_MAX_CONNECTIONS", value)]);
            let allowlist = config.unwrap().allowlist.unwrap();
            assert_eq!(allowlist.max_connections, limit, "{value:?}");
        }
    }

    #[test]
    fn a_malformed_entry_is_named_with_its_position() {
        let line = read(&[(ALLOW, "a.example,https://b.example/")])
            .unwrap_err()
            .one_line();
        assert!(
            line.contains("https://b.example/") && line.contains('2'),
            "{line}"
        );
    }

    #[test]
    fn every_default_is_that_of_the_contract() {
        let config = read(&[(ALLOW, "example.com")]).unwrap();
        assert_eq!((config.run_as, config.umask), (None, None));
        let allowlist = config.allowlist.unwrap();
        assert_eq!(
            (allowlist.proxy_port, allowlist.max_connections),
            (3128, 4096)
        );
        assert_eq!(
            allowlist.ends.socket,
            PathBuf::from("/run/sandbox-egress/host/report.sock")
        );
        assert!(allowlist.ingress.is_empty() && allowlist.upstream_proxy.is_none());
    }

    #[test]
    fn empty_variables_are_as_good_as_none() {
        let all = [
            "SANDBOX_PROXY_PORT",
            "SANDBOX_ENFORCE",
            "SANDBOX_REPORT",
            "SANDBOX_INGRESS_PORTS",
            "SANDBOX_UPSTREAM_PROXY",
            "SANDBOX_MAX_CONNECTIONS",
            "SANDBOX_RUN_AS",
        ];
        let mut variables: Vec<_> = all.iter().map(|name| (*name, "")).collect();
        variables.push((ALLOW, "example.com"));
        let config = read(&variables).unwrap();
        assert_eq!(config.run_as, None);
        assert_eq!(config.allowlist.unwrap().report, Report::Off);
    }

    #[test]
    fn several_ports_may_be_published() {
        let config = read(&[
            (ALLOW, "example.com"),
            ("SANDBOX_INGRESS_PORTS", "tcp:80, udp:53 ,,tcp:1-2"),
        ]);
        assert_eq!(config.unwrap().allowlist.unwrap().ingress.len(), 3);
    }

    #[test]
    fn a_variable_that_is_not_text_is_refused_by_name() {
        use std::os::unix::ffi::OsStringExt as _;
        let lookup = |name: &str| (name == ALLOW).then(|| OsString::from_vec(vec![0xff]));
        let refused = Config::from_lookup(vec!["true".into()], &lookup);
        assert!(matches!(
            refused,
            Err(Failure::Config {
                variable: ALLOW,
                ..
            })
        ));
    }

    #[test]
    fn a_command_is_kept_word_by_word() {
        let command: Vec<OsString> = vec!["sh".into(), "-c".into(), "a b".into()];
        assert_eq!(
            Config::from_lookup(command.clone(), &|_| None)
                .unwrap()
                .command,
            command
        );
    }
}
