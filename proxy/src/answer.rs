//! What a client is told when its connection goes no further: in the language that it speaks, at
//! once, and with what would change it.
//!
//! A refusal is never 407: clients would ask their user for a password. Its reason phrase carries
//! the reason, because of a refused `CONNECT` many clients show nothing else.

use std::fmt::Write as _;

use policy::{DenyReason, Destination, WINDOW};
use report::Target;
use serde::Serialize;

use crate::{
    refusal::{Failure, Refusal, Refused},
    socks::Reply,
};

/// What a response depends on besides what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Manner {
    /// Whether the request was `HEAD`: its response has the fields of a body and no body.
    pub(crate) body: Body,
    /// What becomes of the connection.
    pub(crate) after: After,
}

/// A response in full, after which the connection ends.
pub(crate) const LAST: Manner = Manner {
    body: Body::Sent,
    after: After::Close,
};

/// Whether a response's body is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// It is.
    Sent,
    /// It is not, the request was `HEAD`.
    Withheld,
}

/// What becomes of a client's connection after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// It takes the next request.
    Keep,
    /// It ends.
    Close,
}

/// The response to a client that speaks HTTP/1.
pub(crate) fn http(refused: &Refused, manner: Manner) -> Vec<u8> {
    let (status, phrase, proxy_status) = status_line(&refused.refusal);
    let body = json(refused);
    let mut head = String::with_capacity(256 + body.len());
    // Writing to a String cannot fail.
    let _ = write!(
        head,
        "HTTP/1.1 {status} {phrase}\r\nProxy-Status: sandbox-egress; {proxy_status}\r\n"
    );
    if let Some(reason) = refused.refusal.reason() {
        let _ = write!(head, "X-Egress-Denied: {reason}\r\n");
    }
    let _ = write!(
        head,
        "Content-Type: application/json\r\nContent-Length: {}\r\n",
        body.len()
    );
    if manner.after == After::Close {
        head.push_str("Connection: close\r\n");
    }
    head.push_str("\r\n");
    let mut response = head.into_bytes();
    if manner.body == Body::Sent {
        response.extend_from_slice(&body);
    }
    response
}

/// The end of the connection to a client that speaks HTTP/2: what a server must say first, and a
/// `GOAWAY` that asks for HTTP/1.1 and carries the words (RFC 9113 §3.4, §6.8). Of text in HTTP/1
/// such clients show only that it is no frame.
pub(crate) fn http2(refusal: &Refusal) -> Vec<u8> {
    let reason = refusal.reason().map_or("failed", DenyReason::as_str);
    let mut words = format!(
        "egress denied: {reason}: {}",
        refusal.hint().unwrap_or_default()
    );
    words.truncate(words.floor_char_boundary(MAX_DEBUG_DATA));
    let mut frames = frame_head(SETTINGS, 0).to_vec();
    frames.extend(frame_head(GOAWAY, 8 + words.len()));
    // No stream was taken on.
    frames.extend(0_u32.to_be_bytes());
    frames.extend(HTTP_1_1_REQUIRED.to_be_bytes());
    frames.extend(words.into_bytes());
    frames
}

/// What precedes a frame of the connection itself, without flags (RFC 9113 §4.1).
fn frame_head(of: u8, length: usize) -> [u8; 9] {
    let [.., high, middle, low] = length.to_be_bytes();
    [high, middle, low, of, 0, 0, 0, 0, 0]
}

/// The fatal alert to a client that speaks TLS, in a record of its own (RFC 8446 §6).
pub(crate) fn tls_alert(reason: DenyReason) -> [u8; 7] {
    let description = if reason == DenyReason::NoName {
        UNRECOGNIZED_NAME
    } else {
        ACCESS_DENIED
    };
    [ALERT_RECORD, 3, 3, 0, 2, FATAL, description]
}

/// The reply to a client that speaks SOCKS5. "TTL expired" is left to routers: what took too long is
/// a host that was not reached.
pub(crate) fn socks(refusal: &Refusal) -> Reply {
    match refusal {
        Refusal::Denied(_) => Reply::NotAllowed,
        Refusal::Unclear(_) | Refusal::Busy => Reply::GeneralFailure,
        Refusal::Failed(failure) => match failure {
            Failure::NoSuchName
            | Failure::ResolverSilent
            | Failure::Resolver(_)
            | Failure::ConnectionTimeout(_) => Reply::HostUnreachable,
            Failure::ConnectionRefused => Reply::ConnectionRefused,
            Failure::Unroutable => Reply::NetworkUnreachable,
            Failure::Connection(_)
            | Failure::Exhausted
            | Failure::UpstreamProxy(_)
            | Failure::UpstreamProxyProtocol
            | Failure::Incomplete
            | Failure::Response(_) => Reply::GeneralFailure,
        },
    }
}

/// Status, reason phrase, and the parameters of `Proxy-Status` (RFC 9209).
fn status_line(refusal: &Refusal) -> (u16, String, String) {
    match refusal {
        Refusal::Denied(denial) => denied_line(403, denial.reason),
        Refusal::Unclear(_) => denied_line(400, DenyReason::Malformed),
        Refusal::Busy => denied_line(503, DenyReason::Limit),
        Refusal::Failed(failure) => {
            let error = failure.error_type();
            (
                failure.status(),
                format!("egress failed: {error}"),
                format!("error={error}"),
            )
        }
    }
}

fn denied_line(status: u16, reason: DenyReason) -> (u16, String, String) {
    let by_address = matches!(
        reason,
        DenyReason::AddressLiteral | DenyReason::PrivateAddress
    );
    let error = if by_address {
        "destination_ip_prohibited"
    } else {
        "http_request_denied"
    };
    (
        status,
        format!("egress denied: {reason}"),
        format!("error={error}; details=\"{reason}\""),
    )
}

fn json(refused: &Refused) -> Vec<u8> {
    let target = Shown::of(&refused.target);
    let hint = refused.refusal.hint();
    let body = match &refused.refusal {
        Refusal::Failed(failure) => serde_json::to_vec(&FailedBody::new(target, failure)),
        Refusal::Denied(denial) => denied(target, denial.reason, hint),
        Refusal::Unclear(_) => denied(target, DenyReason::Malformed, hint),
        Refusal::Busy => denied(target, DenyReason::Limit, hint),
    };
    let mut body = body.unwrap_or_default();
    body.push(b'\n');
    body
}

fn denied(target: Shown, reason: DenyReason, hint: Option<&str>) -> serde_json::Result<Vec<u8>> {
    let retry_useful = reason == DenyReason::Limit;
    let why = is_about_the_list(reason).then(|| target.why()).flatten();
    let Shown { host, port } = target;
    serde_json::to_vec(&DeniedBody {
        error: "egress_denied",
        layer: LAYER,
        host,
        port,
        reason,
        hint,
        why,
        retry_useful,
    })
}

/// Whether the list decided it, so that asking again says more; what is found on the stream is not
/// seen from outside.
fn is_about_the_list(reason: DenyReason) -> bool {
    matches!(
        reason,
        DenyReason::NotAllowed
            | DenyReason::PortNotAllowed
            | DenyReason::DeniedByRule
            | DenyReason::AddressLiteral
    )
}

#[derive(Serialize)]
struct DeniedBody<'a> {
    error: &'static str,
    layer: &'static str,
    host: Option<String>,
    port: Option<u16>,
    reason: DenyReason,
    hint: Option<&'a str>,
    /// Where the guest can read more.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    retry_useful: bool,
}

#[derive(Serialize)]
struct FailedBody {
    error: &'static str,
    layer: &'static str,
    host: Option<String>,
    port: Option<u16>,
    cause: &'static str,
    detail: String,
    retry_useful: bool,
}

impl FailedBody {
    fn new(target: Shown, failure: &Failure) -> Self {
        Self {
            error: "egress_failed",
            layer: LAYER,
            host: target.host,
            port: target.port,
            cause: failure.error_type(),
            detail: failure.to_string(),
            retry_useful: !matches!(failure, Failure::NoSuchName),
        }
    }
}

struct Shown {
    host: Option<String>,
    port: Option<u16>,
}

impl Shown {
    fn of(target: &Target) -> Self {
        let name = target.host.as_ref().map(ToString::to_string);
        Self {
            host: name.or_else(|| target.address.map(|a| a.to_string())),
            port: target.port,
        }
    }

    /// The page about it, if it can be asked for: what is no host could not.
    fn why(&self) -> Option<String> {
        let (host, port) = (self.host.as_deref()?, self.port?);
        let destination = Destination::parse(host, port).ok()?;
        Some(format!("http://{WINDOW}/why/{destination}"))
    }
}

const LAYER: &str = "sandbox-egress";
/// Types of frames, an error code, and how much is said in a frame (RFC 9113 §6, §7).
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const HTTP_1_1_REQUIRED: u32 = 13;
const MAX_DEBUG_DATA: usize = 512;
const ALERT_RECORD: u8 = 21;
const FATAL: u8 = 2;
const ACCESS_DENIED: u8 = 49;
/// RFC 6066 §3.
const UNRECOGNIZED_NAME: u8 = 112;

#[cfg(test)]
mod tests {
    use policy::Denial;
    use report::Printable;

    use super::*;

    fn refused(refusal: impl Into<Refusal>) -> Refused {
        let host = Some(Printable::new("gist.github.com"));
        Refused {
            target: Target {
                host,
                address: None,
                port: Some(443),
            },
            refusal: refusal.into(),
        }
    }

    fn shown(refused: &Refused, manner: Manner) -> (String, String) {
        let text = String::from_utf8(http(refused, manner)).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), body.to_owned())
    }

    #[test]
    fn a_client_that_speaks_http_2_is_told_to_speak_1_1_and_why() {
        let words = "é".repeat(MAX_DEBUG_DATA);
        let frames = http2(&Refusal::Unclear(words));
        assert_eq!(frames[..9], [0, 0, 0, 4, 0, 0, 0, 0, 0]);
        let (head, body) = frames[9..].split_at(9);
        assert_eq!(head, [0, 2, 8, GOAWAY, 0, 0, 0, 0, 0]);
        assert_eq!(body.len(), 0x208);
        assert_eq!(body[..8], [0, 0, 0, 0, 0, 0, 0, 13]);
        assert!(body[8..].starts_with(b"egress denied: malformed: "));
        std::str::from_utf8(&body[8..]).unwrap();
    }

    #[test]
    fn a_denial_says_why_in_its_phrase_its_fields_and_its_body() {
        let hint = Some("add `gist.github.com`".to_owned());
        let denial = Denial {
            hint,
            ..Denial::new(DenyReason::NotAllowed)
        };
        let (head, body) = shown(&refused(denial), LAST);
        let length = format!("Content-Length: {}", body.len());
        let lines: Vec<_> = head.split("\r\n").collect();
        assert_eq!(
            lines,
            [
                "HTTP/1.1 403 egress denied: not_allowed",
                "Proxy-Status: sandbox-egress; error=http_request_denied; details=\"not_allowed\"",
                "X-Egress-Denied: not_allowed",
                "Content-Type: application/json",
                &length,
                "Connection: close",
            ]
        );
        assert_eq!(
            body,
            concat!(
                r#"{"error":"egress_denied","layer":"sandbox-egress","host":"gist.github.com","port":443,"#,
                r#""reason":"not_allowed","hint":"add `gist.github.com`","#,
                r#""why":"http://egress.sandbox/why/gist.github.com:443","retry_useful":false}"#,
                "\n",
            )
        );
    }

    #[test]
    fn a_failure_looks_different_from_a_denial() {
        let (head, body) = shown(&refused(Failure::ConnectionRefused), LAST);
        assert!(
            head.starts_with("HTTP/1.1 502 egress failed: connection_refused\r\n"),
            "{head}"
        );
        assert!(
            head.contains("Proxy-Status: sandbox-egress; error=connection_refused\r\n"),
            "{head}"
        );
        assert!(!head.contains("X-Egress-Denied"), "{head}");
        assert!(
            body.contains(r#""error":"egress_failed""#)
                && body.contains(r#""cause":"connection_refused""#),
            "{body}"
        );
    }

    #[test]
    fn every_kind_of_refusal_has_its_status_and_none_is_407() {
        for (refusal, start) in [
            (
                Refusal::Denied(Denial::new(DenyReason::PrivateAddress)),
                "HTTP/1.1 403 egress denied: private_address",
            ),
            (
                Refusal::Unclear("words".to_owned()),
                "HTTP/1.1 400 egress denied: malformed",
            ),
            (Refusal::Busy, "HTTP/1.1 503 egress denied: limit"),
            (
                Refusal::Failed(Failure::ResolverSilent),
                "HTTP/1.1 504 egress failed: dns_timeout",
            ),
        ] {
            let (head, _) = shown(&refused(refusal), LAST);
            assert!(head.starts_with(start), "{head}");
        }
    }

    #[test]
    fn a_denial_leads_to_the_page_about_it_where_there_is_one() {
        for (reason, host, there_is) in [
            (DenyReason::NotAllowed, "a.example", true),
            (DenyReason::AddressLiteral, "2001:db8::7", true),
            (DenyReason::NotTls, "a.example", false),
            (DenyReason::Malformed, "a_ b", false),
            (DenyReason::NotAllowed, "no host", false),
        ] {
            let mut refused = refused(Denial::new(reason));
            refused.target = crate::authority::target(host, Some(443));
            let (_, body) = shown(&refused, LAST);
            let leads = body.contains("\"why\":\"http://egress.sandbox/why/");
            assert_eq!(leads, there_is, "{body}");
        }
    }

    #[test]
    fn an_address_is_refused_as_a_prohibited_address() {
        let (head, _) = shown(&refused(Denial::new(DenyReason::AddressLiteral)), LAST);
        assert!(
            head.contains("error=destination_ip_prohibited; details=\"address_literal\""),
            "{head}"
        );
    }

    #[test]
    fn an_answer_to_head_has_no_body_and_may_keep_the_connection() {
        let manner = Manner {
            body: Body::Withheld,
            after: After::Keep,
        };
        let (head, body) = shown(&refused(Denial::new(DenyReason::NotAllowed)), manner);
        assert_eq!(body, "");
        assert!(
            head.contains("Content-Length: ") && !head.contains("Connection"),
            "{head}"
        );
    }

    #[test]
    fn nothing_from_the_guest_reaches_the_head_of_an_answer() {
        let host = Some(Printable::new("a\r\nSet-Cookie: x=y"));
        let target = Target {
            host,
            address: None,
            port: None,
        };
        let refused = Refused {
            target,
            refusal: Refusal::Unclear("b\r\nc".to_owned()),
        };
        let (head, body) = shown(&refused, LAST);
        assert!(!head.contains("Set-Cookie"), "{head}");
        assert_eq!(body.lines().count(), 1, "{body}");
    }

    #[test]
    fn a_tls_alert_tells_a_missing_name_from_a_refused_one() {
        assert_eq!(tls_alert(DenyReason::NoName), [21, 3, 3, 0, 2, 2, 112]);
        assert_eq!(tls_alert(DenyReason::NameMismatch), [21, 3, 3, 0, 2, 2, 49]);
    }

    #[test]
    fn a_failure_has_the_reply_of_its_cause_and_a_denial_its_own() {
        use std::time::Duration;
        let denial = Denial::new(DenyReason::NameMismatch);
        for (refusal, reply) in [
            (Refusal::Denied(denial), Reply::NotAllowed),
            (Refusal::Busy, Reply::GeneralFailure),
            (Failure::NoSuchName.into(), Reply::HostUnreachable),
            (
                Failure::ConnectionTimeout(Duration::ZERO).into(),
                Reply::HostUnreachable,
            ),
            (Failure::ConnectionRefused.into(), Reply::ConnectionRefused),
            (Failure::Unroutable.into(), Reply::NetworkUnreachable),
            (Failure::UpstreamProxy(403).into(), Reply::GeneralFailure),
        ] {
            assert_eq!(socks(&refusal), reply, "{refusal:?}");
        }
    }
}
