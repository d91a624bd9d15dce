//! Fields behind a body (RFC 9110 §6.5): passed on as such, and never merged into a head.
//!
//! Whoever receives them may act on them as on fields of the head, so that what frames, routes or
//! authorises a message is taken out: there it would have been seen and judged.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// The fields that a message announces and that may be passed on.
pub(crate) fn announced(headers: &HeaderMap) -> Vec<HeaderName> {
    let fields = headers.get_all(header::TRAILER).iter();
    fields
        .filter_map(|field| field.to_str().ok())
        .flat_map(|field| field.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .filter(may_trail)
        .collect()
}

/// Of these the ones that may be passed on.
pub(crate) fn passed_on(trailers: &HeaderMap) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
    trailers.iter().filter(|(name, _)| may_trail(name))
}

/// Reads one line, without its end; `None` if it is no field.
pub(crate) fn field(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    let (name, value) = line.split_at_checked(colon)?;
    let value = value.get(1..)?.trim_ascii();
    let name = HeaderName::from_bytes(name).ok()?;
    Some((name, HeaderValue::from_bytes(value).ok()?))
}

fn may_trail(name: &HeaderName) -> bool {
    !NEVER_BEHIND.contains(name) && !name.as_str().starts_with("proxy-")
}

const NEVER_BEHIND: [HeaderName; 20] = [
    header::AUTHORIZATION,
    header::CACHE_CONTROL,
    header::CONNECTION,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::COOKIE,
    header::EXPECT,
    header::HOST,
    HeaderName::from_static("keep-alive"),
    header::LOCATION,
    header::MAX_FORWARDS,
    header::SET_COOKIE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::VIA,
    header::WWW_AUTHENTICATE,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_frames_routes_or_authorises_is_never_passed_on() {
        let raw = [
            "transfer-encoding",
            "content-length",
            "host",
            "authorization",
            "proxy-authorization",
            "set-cookie",
            "trailer",
            "te",
            "x-checksum",
        ];
        let value = HeaderValue::from_static("1");
        let all: HeaderMap = raw
            .iter()
            .map(|name| (HeaderName::from_static(name), value.clone()))
            .collect();
        let passed: Vec<_> = passed_on(&all).map(|(name, _)| name.as_str()).collect();
        assert_eq!(passed, ["x-checksum"]);
    }

    #[test]
    fn what_is_announced_is_read_from_every_field_of_that_name() {
        let mut headers = HeaderMap::new();
        for value in ["X-A, Host", "x-b,, no name", "Content-Length"] {
            headers.append(header::TRAILER, HeaderValue::from_static(value));
        }
        assert_eq!(announced(&headers), ["x-a", "x-b"]);
    }

    #[test]
    fn a_line_is_a_name_and_a_value_or_nothing() {
        let (name, value) = field(b"X-Sum:  a b\t").unwrap();
        assert_eq!((name.as_str(), value.as_bytes()), ("x-sum", &b"a b"[..]));
        for line in ["", "x", ": y", "x : y", " x: y", "x: a\0b", "x\x7f: y"] {
            assert!(field(line.as_bytes()).is_none(), "{line:?}");
        }
    }
}
