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
    if uri.scheme_str() != Some("http") {
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

fn destination(host: &str, port: u16) -> Result<Destination, Refused> {
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
