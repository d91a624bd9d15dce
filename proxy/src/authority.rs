//! Which destination a request names, read from its target and its `Host` field.
//!
//! Both are text that the guest chose. They are compared only after they have become a
//! [`Destination`], so that two spellings of one host cannot be taken for two hosts, nor two hosts
//! for one.

use http::{Uri, header, uri::PathAndQuery};
use policy::{Denial, DenyReason, Destination, Host};
use report::{Printable, Target};

use crate::{
    head::Head,
    refusal::{Refusal, Refused},
};

/// A request as its sender meant it: whom it is for, and what is asked of them.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) destination: Destination,
    pub(crate) path: PathAndQuery,
}

/// The destination of a `CONNECT` (RFC 9110 §9.3.6): the target, always with a port.
pub(crate) fn of_connect(head: &Head) -> Result<Destination, Refused> {
    let Some((host, Some(port))) = split(&head.target) else {
        return Err(malformed(
            &head.target,
            None,
            "CONNECT takes `host:port`, with a port from 1 to 65535",
        ));
    };
    destination(host, port)
}

/// The destination of a request to a proxy (RFC 9112 §3.2.2): an absolute `http` target, which
/// `Host` must repeat.
pub(crate) fn of_absolute(head: &Head) -> Result<Asked, Refused> {
    let named = named_authority(head);
    let Some(uri) = absolute(&head.target) else {
        return Err(unclear(
            named,
            "this is a proxy: the request target is `http://host/…`, or use CONNECT",
        ));
    };
    let authority = uri.authority().map_or("", |a| a.as_str());
    // `ws` begins as a request over HTTP (RFC 6455 §4.1), and some clients name it so to a proxy.
    if !matches!(uri.scheme_str(), Some("http" | "ws")) {
        let target =
            split(authority).map_or_else(Target::default, |(h, p)| target(h, p.or(Some(443))));
        return Err(unclear(
            target,
            "only `http://` is forwarded as a request: use CONNECT for the rest",
        ));
    }
    let Some((host, port)) = split(authority) else {
        return Err(malformed(authority, None, BAD_AUTHORITY));
    };
    let destination = destination(host, port.unwrap_or(HTTP_PORT))?;
    match host_field(head) {
        Some(field) => require_same(field, &destination, HTTP_PORT)?,
        None if head.version == http::Version::HTTP_10 => {}
        None => {
            return Err(unclear(
                target(host, port),
                "an HTTP/1.1 request has a Host field",
            ));
        }
    }
    Ok(Asked {
        destination,
        path: path_of(&uri),
    })
}

/// A request inside a tunnel that was opened for `opened`: what it names must be that.
pub(crate) fn within_tunnel(head: &Head, opened: &Destination) -> Result<PathAndQuery, Refused> {
    let (named, path) = of_origin(head, opened.port)?;
    match named {
        Some(named) if named == *opened => Ok(path),
        Some(named) => Err(mismatch(target_of(&named), opened)),
        None => Err(Refused::new(
            target_of(opened),
            Denial::new(DenyReason::NoName),
        )),
    }
}

/// What a request to an origin server names: the authority of an absolute target where there is
/// one, which `Host` must repeat; else `Host`, on `port` where it gives none.
pub(crate) fn of_origin(
    head: &Head,
    port: u16,
) -> Result<(Option<Destination>, PathAndQuery), Refused> {
    let field = host_field(head);
    if let Some(uri) = absolute(&head.target) {
        let authority = uri.authority().map_or("", |a| a.as_str());
        let named = named(authority, port)?;
        if let Some(field) = field {
            require_same(field, &named, port)?;
        }
        return Ok((Some(named), path_of(&uri)));
    }
    let path = head.target.parse::<PathAndQuery>();
    let path = match path {
        Ok(path) if head.target.starts_with('/') || head.target == "*" => path,
        Ok(_) | Err(_) => {
            return Err(unclear(
                named_authority(head),
                "the request target is a path",
            ));
        }
    };
    let named = field.map(|field| named(field, port)).transpose()?;
    Ok((named, path))
}

/// A host, and a port where one follows it, as a person would write them.
///
/// # Errors
/// What is wrong with it, in words.
pub(crate) fn host_and_port(text: &str) -> Result<(Host, Option<u16>), String> {
    // An IPv6 address needs no brackets where no port follows.
    if let Ok(host) = Host::parse(text) {
        return Ok((host, None));
    }
    let (host, port) = split(text).ok_or(BAD_AUTHORITY)?;
    let host = Host::parse(host).map_err(|error| error.to_string())?;
    Ok((host, port))
}

/// Text that names a host, for a report: as it was asked for, made printable.
pub(crate) fn target(host: &str, port: Option<u16>) -> Target {
    match Host::parse(host) {
        Ok(host) => Target {
            port,
            ..target_of(&Destination { host, port: 0 })
        },
        Err(_) => Target {
            host: Some(Printable::new(host)),
            address: None,
            port,
        },
    }
}

/// What a report says of a destination.
pub(crate) fn target_of(destination: &Destination) -> Target {
    let port = Some(destination.port);
    match &destination.host {
        Host::Name(name) => Target {
            host: Some(Printable::new(name.as_str())),
            address: None,
            port,
        },
        Host::Address(address) => Target {
            host: None,
            address: Some(*address),
            port,
        },
    }
}

fn require_same(field: &str, destination: &Destination, default_port: u16) -> Result<(), Refused> {
    let named = named(field, default_port)?;
    if named == *destination {
        Ok(())
    } else {
        Err(mismatch(target_of(&named), destination))
    }
}

fn named(authority: &str, default_port: u16) -> Result<Destination, Refused> {
    let Some((host, port)) = split(authority) else {
        return Err(malformed(authority, None, BAD_AUTHORITY));
    };
    destination(host, port.unwrap_or(default_port))
}

/// A host as somebody wrote it, and a port.
pub(crate) fn destination(host: &str, port: u16) -> Result<Destination, Refused> {
    Destination::parse(host, port)
        .map_err(|error| Refused::new(target(host, Some(port)), Denial::from(error)))
}

/// Cuts `host`, `host:port`, `[v6]` or `[v6]:port`; `None` when it is none of these.
fn split(authority: &str) -> Option<(&str, Option<u16>)> {
    let bracket = authority.rfind(']').map_or(0, |at| at + 1);
    let (address, rest) = authority.split_at_checked(bracket)?;
    let (host, port) = match rest.split_once(':') {
        None => (authority, None),
        Some((name, port)) => {
            let end = address.len() + name.len();
            (authority.get(..end)?, Some(port_number(port)?))
        }
    };
    if host.is_empty() {
        None
    } else {
        Some((host, port))
    }
}

/// Digits and nothing else, from 1: `str::parse` would take a sign.
fn port_number(text: &str) -> Option<u16> {
    if text.len() > 5 || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|&port| port != 0)
}

/// A target with a scheme. A fragment is never sent (RFC 9110 §4.2.5), and `Uri` would drop it.
fn absolute(raw: &str) -> Option<Uri> {
    let uri: Uri = raw.parse().ok()?;
    (uri.scheme().is_some() && !raw.contains('#')).then_some(uri)
}

fn path_of(uri: &Uri) -> PathAndQuery {
    uri.path_and_query()
        .cloned()
        .unwrap_or_else(|| PathAndQuery::from_static("/"))
}

fn host_field(head: &Head) -> Option<&str> {
    // A value that is not text names nothing; it must not be taken for an absent one.
    head.headers
        .get(header::HOST)
        .map(|value| value.to_str().unwrap_or_default())
}

fn named_authority(head: &Head) -> Target {
    let named = host_field(head).and_then(split);
    named.map_or_else(Target::default, |(host, port)| target(host, port))
}

fn malformed(host: &str, port: Option<u16>, words: &str) -> Refused {
    let hint = Some(words.to_owned());
    Refused::new(
        target(host, port),
        Denial {
            hint,
            ..Denial::new(DenyReason::Malformed)
        },
    )
}

fn unclear(target: Target, words: &str) -> Refused {
    Refused {
        target,
        refusal: Refusal::Unclear(words.to_owned()),
    }
}

fn mismatch(named: Target, permitted: &Destination) -> Refused {
    let hint = Some(format!(
        "the request was allowed for `{permitted}`, its Host must be that"
    ));
    Refused::new(
        named,
        Denial {
            hint,
            ..Denial::new(DenyReason::NameMismatch)
        },
    )
}

const HTTP_PORT: u16 = 80;
const BAD_AUTHORITY: &str = "a host is a name or an address, and a port from 1 to 65535 may follow";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head(raw: &str) -> Head {
        Head::parse(raw.as_bytes())
            .unwrap()
            .expect("a whole head")
            .0
    }

    fn reason(refused: &Refused) -> DenyReason {
        refused.refusal.reason().expect("a denial")
    }

    fn connect(target: &str) -> Result<String, DenyReason> {
        let head = head(&format!("CONNECT {target} HTTP/1.1\r\n\r\n"));
        of_connect(&head)
            .map(|destination| destination.to_string())
            .map_err(|refused| reason(&refused))
    }

    fn absolute_form(target: &str, host: &str) -> Result<(String, String), DenyReason> {
        let asked = of_absolute(&head(&format!("GET {target} HTTP/1.1\r\n{host}\r\n")));
        asked
            .map(|asked| (asked.destination.to_string(), asked.path.to_string()))
            .map_err(|refused| reason(&refused))
    }

    fn origin_form(target: &str, host: &str) -> Result<Option<String>, DenyReason> {
        let named = of_origin(&head(&format!("GET {target} HTTP/1.1\r\n{host}\r\n")), 80);
        named
            .map(|(named, _)| named.map(|named| named.to_string()))
            .map_err(|refused| reason(&refused))
    }

    #[test]
    fn a_connect_names_a_host_and_a_port() {
        assert_eq!(connect("A.Example.:443"), Ok("a.example:443".to_owned()));
        assert_eq!(connect("192.0.2.1:22"), Ok("192.0.2.1:22".to_owned()));
        assert_eq!(
            connect("[2001:db8::1]:22"),
            Ok("[2001:db8::1]:22".to_owned())
        );
        assert_eq!(
            connect("[::ffff:192.0.2.1]:22"),
            Ok("192.0.2.1:22".to_owned())
        );
    }

    #[test]
    fn a_connect_that_names_anything_else_is_malformed() {
        for target in [
            "a.example",
            "a.example:",
            "a.example:0",
            "a.example:65536",
            "a.example:+1",
            "a.example:443:443",
            ":443",
            "[::1]",
            "[::1:443",
            "::1:443",
            "[a.example]:443",
            "a@b.example:443",
            "0x7f.1:80",
            "2130706433:80",
            "a..example:443",
            "/",
            "*",
        ] {
            assert_eq!(connect(target), Err(DenyReason::Malformed), "{target}");
        }
    }

    #[test]
    fn an_absolute_target_names_host_port_and_path() {
        for (target, host, destination, path) in [
            ("http://a.example", "a.example", "a.example:80", "/"),
            (
                "http://a.example/x?y=z",
                "a.example",
                "a.example:80",
                "/x?y=z",
            ),
            ("http://a.example?y", "a.example", "a.example:80", "/?y"),
            ("HTTP://A.example:80/", "a.EXAMPLE.", "a.example:80", "/"),
            ("ws://a.example/x", "a.example", "a.example:80", "/x"),
            (
                "http://a.example:8080/",
                "a.example:8080",
                "a.example:8080",
                "/",
            ),
            (
                "http://[2001:db8::1]/",
                "[2001:db8::1]:80",
                "[2001:db8::1]:80",
                "/",
            ),
        ] {
            let asked = absolute_form(target, &format!("Host: {host}\r\n"));
            assert_eq!(
                asked,
                Ok((destination.to_owned(), path.to_owned())),
                "{target}"
            );
        }
    }

    #[test]
    fn host_may_not_name_another_than_the_target() {
        for host in ["b.example", "a.example:8080", "192.0.2.1"] {
            let asked = absolute_form("http://a.example/", &format!("Host: {host}\r\n"));
            assert_eq!(asked, Err(DenyReason::NameMismatch), "{host}");
        }
    }

    #[test]
    fn a_host_that_is_none_does_not_count_as_absent() {
        for host in [
            "",
            "a b",
            "a.example,b.example",
            "a.example:x",
            "http://a.example",
            "\u{e9}",
        ] {
            let asked = absolute_form("http://a.example/", &format!("Host: {host}\r\n"));
            assert_eq!(asked, Err(DenyReason::Malformed), "{host:?}");
            assert_eq!(
                origin_form("/", &format!("Host: {host}\r\n")),
                Err(DenyReason::Malformed),
                "{host:?}"
            );
        }
    }

    #[test]
    fn only_an_old_client_may_leave_host_out() {
        assert_eq!(
            absolute_form("http://a.example/", ""),
            Err(DenyReason::Malformed)
        );
        assert!(of_absolute(&head("GET http://a.example/ HTTP/1.0\r\n\r\n")).is_ok());
    }

    #[test]
    fn a_scheme_other_than_http_is_told_to_use_connect() {
        for target in ["https://a.example/", "ftp://a.example/", "wss://a.example/"] {
            let refused = of_absolute(&head(&format!(
                "GET {target} HTTP/1.1\r\nHost: a.example\r\n\r\n"
            )));
            let Err(Refused {
                target: named,
                refusal: Refusal::Unclear(words),
            }) = refused
            else {
                panic!("{target}: {refused:?}")
            };
            assert!(words.contains("CONNECT"), "{words}");
            assert_eq!(named.host.unwrap().as_str(), "a.example");
        }
    }

    #[test]
    fn what_is_no_target_for_a_proxy_is_malformed() {
        for target in [
            "/",
            "*",
            "a.example",
            "http://",
            "http:///",
            "http://a.example/#x",
            "http://u@a.example/",
        ] {
            assert_eq!(
                absolute_form(target, "Host: a.example\r\n"),
                Err(DenyReason::Malformed),
                "{target}"
            );
        }
    }

    #[test]
    fn a_request_to_an_origin_is_for_its_host_on_the_port_it_came_to() {
        assert_eq!(
            origin_form("/x", "Host: a.example\r\n"),
            Ok(Some("a.example:80".to_owned()))
        );
        assert_eq!(
            origin_form("*", "Host: a.example:81\r\n"),
            Ok(Some("a.example:81".to_owned()))
        );
        assert_eq!(origin_form("/x", ""), Ok(None));
        assert_eq!(
            origin_form("http://a.example/", ""),
            Ok(Some("a.example:80".to_owned()))
        );
    }

    #[test]
    fn a_request_to_an_origin_with_two_names_is_refused() {
        let asked = origin_form("http://a.example/", "Host: b.example\r\n");
        assert_eq!(asked, Err(DenyReason::NameMismatch));
        assert_eq!(
            origin_form("a.example:443", "Host: a.example\r\n"),
            Err(DenyReason::Malformed)
        );
    }

    #[test]
    fn a_request_in_a_tunnel_is_for_its_host_and_no_other() {
        let opened = Destination::parse("a.example", 8080).unwrap();
        for (host, refused) in [
            ("Host: a.example\r\n", None),
            ("Host: A.example:8080\r\n", None),
            ("Host: a.example:80\r\n", Some(DenyReason::NameMismatch)),
            ("Host: b.example\r\n", Some(DenyReason::NameMismatch)),
            ("", Some(DenyReason::NoName)),
        ] {
            let path = within_tunnel(&head(&format!("GET / HTTP/1.1\r\n{host}\r\n")), &opened);
            assert_eq!(
                path.err().map(|refused| reason(&refused)),
                refused,
                "{host:?}"
            );
        }
    }

    #[test]
    fn a_report_has_the_name_as_it_was_asked_for() {
        assert_eq!(
            target("A.Example", Some(1)).host.unwrap().as_str(),
            "a.example"
        );
        assert_eq!(target("0x7f.1", Some(1)).host.unwrap().as_str(), "0x7f.1");
        assert_eq!(target("[::1]", None).address, Some("::1".parse().unwrap()));
    }

    fn read(authority: &str) -> Option<Destination> {
        let (host, port) = split(authority)?;
        destination(host, port?).ok()
    }

    proptest! {
        #[test]
        fn whatever_is_asked_for_is_refused_or_has_one_spelling(authority in "[ -~]{0,30}(:[0-9]{1,5})?") {
            if let Some(destination) = read(&authority) {
                prop_assert_eq!(read(&destination.to_string()), Some(destination));
            }
        }
    }
}
