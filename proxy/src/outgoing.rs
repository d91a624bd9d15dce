//! Makes the request that an origin gets from the one that a client sent.
//!
//! Fields that speak to the next hop only are ours to answer, never to pass on (RFC 9110 §7.6.1).
//! Host and framing are written from what was understood, so that a field which the client named in
//! `Connection` cannot take them away.

use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, Version, header, uri::PathAndQuery};

use policy::Destination;

use crate::{
    body::{Feed, RequestBody},
    head::{Framing, Head},
    trailers,
};

/// The request to send, and where to feed its body from unless it is empty.
pub(crate) fn request(
    head: &Head,
    path: &PathAndQuery,
    to: &Destination,
) -> (Request<RequestBody>, Option<Feed>) {
    let mut headers = head.headers.clone();
    let upgrade = upgrade(&headers);
    strip_hop_by_hop(&mut headers);
    // Whether the body is wanted is the origin's to say; nothing else can be expected.
    if !(waits(head) && head.framing != Framing::Empty) {
        headers.remove(header::EXPECT);
    }
    let announced = trailers::announced(&head.headers);
    headers.remove(header::TRAILER);
    headers.remove(header::CONTENT_LENGTH);
    let host = head.headers.get(header::HOST).cloned();
    if let Some(host) = host.or_else(|| host_of(to)) {
        headers.insert(header::HOST, host);
    }
    match head.framing {
        Framing::Empty => {
            // A method for which a body is usual says that it has none (RFC 9110 §8.6).
            if head.headers.contains_key(header::CONTENT_LENGTH) {
                headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
            }
        }
        Framing::Length(length) => {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        Framing::Chunked => {
            headers.insert(
                header::TRANSFER_ENCODING,
                HeaderValue::from_static("chunked"),
            );
            for name in &announced {
                headers.append(header::TRAILER, HeaderValue::from(name.clone()));
            }
        }
    }
    if takes_trailers(&head.headers) {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        headers.append(header::CONNECTION, HeaderValue::from_static("te"));
    }
    if let Some(protocol) = upgrade {
        headers.append(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
    let (body, mut feed) = RequestBody::new(head.framing);
    if let Some(feed) = &mut feed {
        feed.announced = announced;
    }
    let mut request = Request::new(body);
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = Uri::from(path.clone());
    *request.version_mut() = Version::HTTP_11;
    *request.headers_mut() = headers;
    (request, feed)
}

/// Whether the client waits for `100 Continue`; one of HTTP/1.0 cannot (RFC 9110 §10.1.1).
pub(crate) fn waits(head: &Head) -> bool {
    let expects = head.headers.get(header::EXPECT);
    head.version == Version::HTTP_11
        && expects.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Whether the client says that it takes trailers (RFC 9110 §10.1.4).
fn takes_trailers(headers: &HeaderMap) -> bool {
    let fields = headers.get_all(header::TE).iter();
    fields
        .filter_map(|field| field.to_str().ok())
        .flat_map(|field| field.split(','))
        .any(|coding| coding.trim().eq_ignore_ascii_case("trailers"))
}

/// `Host` where the client, one of HTTP/1.0, sent none.
fn host_of(to: &Destination) -> Option<HeaderValue> {
    let authority = to.to_string();
    let host = authority.strip_suffix(":80").unwrap_or(&authority);
    HeaderValue::from_str(host).ok()
}

/// The protocol that the client asks to switch to, if it may.
///
/// Not HTTP/2 and not TLS: after the switch nobody looks into the stream, and in these a client
/// could name other hosts than the one it was let through to.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut asked = headers.get_all(header::UPGRADE).iter();
    let (Some(protocol), None) = (asked.next(), asked.next()) else {
        return None;
    };
    let text = protocol.to_str().ok()?.to_ascii_lowercase();
    let blind = text.split(',').any(|one| {
        let one = one.trim();
        one.starts_with("h2") || one.starts_with("http") || one.starts_with("tls")
    });
    (!blind && connection_options(headers).any(|option| option == "upgrade"))
        .then(|| protocol.clone())
}

/// Removes the fields that are for this hop only, those named in `Connection` among them.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<_> = connection_options(headers)
        .filter_map(|option| HeaderName::from_bytes(option.as_bytes()).ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// The options in `Connection` and its unofficial twin, in lower case.
pub(crate) fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = String> + '_ {
    let fields = headers
        .get_all(header::CONNECTION)
        .iter()
        .chain(headers.get_all(PROXY_CONNECTION));
    fields
        .filter_map(|field| field.to_str().ok())
        .flat_map(|field| field.split(','))
        .map(|option| option.trim().to_ascii_lowercase())
        .filter(|option| !option.is_empty())
}

const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    PROXY_CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("http2-settings"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(fields: &str) -> Request<RequestBody> {
        let raw = format!("POST http://a.example/x?y HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n");
        let (head, _) = Head::parse(raw.as_bytes()).unwrap().expect("a whole head");
        request(
            &head,
            &PathAndQuery::from_static("/x?y"),
            &Destination::parse("a.example", 80).unwrap(),
        )
        .0
    }

    fn fields(request: &Request<RequestBody>) -> Vec<String> {
        let mut lines: Vec<_> = request
            .headers()
            .iter()
            .map(|(n, v)| format!("{n}: {}", v.to_str().unwrap()))
            .collect();
        lines.sort();
        lines
    }

    #[test]
    fn what_is_for_this_hop_is_not_passed_on() {
        let request = sent(concat!(
            "Connection: close, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nProxy-Connection: keep-alive\r\n",
            "Proxy-Authorization: Basic eA==\r\nTE: gzip\r\nTrailer: T\r\nExpect: 100-continue\r\nX-Yours: 2\r\n",
        ));
        assert_eq!(fields(&request), ["host: a.example", "x-yours: 2"]);
        assert_eq!(request.uri().to_string(), "/x?y");
    }

    #[test]
    fn connection_cannot_name_host_or_framing_away() {
        let request =
            sent("Connection: host, content-length, transfer-encoding\r\nContent-Length: 3\r\n");
        assert_eq!(fields(&request), ["content-length: 3", "host: a.example"]);
        let request = sent("Connection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n");
        assert_eq!(
            fields(&request),
            ["host: a.example", "transfer-encoding: chunked"]
        );
    }

    #[test]
    fn what_the_origin_is_to_answer_is_passed_on_where_there_is_a_body() {
        let expects = "Expect: 100-continue\r\nContent-Length: 3\r\n";
        let passed = sent(expects);
        assert!(passed.headers().contains_key(header::EXPECT));
        let other = sent("Expect: more\r\nContent-Length: 3\r\n");
        assert!(!other.headers().contains_key(header::EXPECT));
    }

    #[test]
    fn trailers_are_announced_where_they_may_come_and_asked_for_where_they_are_taken() {
        let chunked = "Transfer-Encoding: chunked\r\n";
        let announced = format!("{chunked}Trailer: X-Sum, Host\r\nTE: deflate, Trailers\r\n");
        assert_eq!(
            fields(&sent(&announced)),
            [
                "connection: te",
                "host: a.example",
                "te: trailers",
                "trailer: x-sum",
                "transfer-encoding: chunked",
            ]
        );
        let counted = sent("Content-Length: 3\r\nTrailer: X-Sum\r\n");
        assert!(!counted.headers().contains_key(header::TRAILER));
    }

    #[test]
    fn a_request_without_host_gets_the_one_it_is_for() {
        let (head, _) = Head::parse(b"GET http://a.example/ HTTP/1.0\r\n\r\n")
            .unwrap()
            .expect("a whole head");
        for (port, host) in [(80, "host: a.example"), (8080, "host: a.example:8080")] {
            let to = Destination::parse("a.example", port).unwrap();
            let (request, _) = request(&head, &PathAndQuery::from_static("/"), &to);
            assert_eq!(fields(&request), [host]);
            assert_eq!(request.version(), Version::HTTP_11);
        }
    }

    #[test]
    fn an_empty_body_keeps_saying_so() {
        assert_eq!(
            fields(&sent("Content-Length: 0\r\n")),
            ["content-length: 0", "host: a.example"]
        );
        assert_eq!(fields(&sent("")), ["host: a.example"]);
    }

    #[test]
    fn only_an_upgrade_that_leads_to_no_other_host_is_passed_on() {
        for (asked, passed) in [
            (
                "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n",
                true,
            ),
            ("Upgrade: websocket\r\n", false),
            (
                "Connection: upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n",
                false,
            ),
            ("Connection: upgrade\r\nUpgrade: websocket, H2C\r\n", false),
            ("Connection: upgrade\r\nUpgrade: TLS/1.2\r\n", false),
            ("Connection: upgrade\r\nUpgrade: HTTP/2.0\r\n", false),
            (
                "Connection: upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n",
                false,
            ),
        ] {
            let request = sent(asked);
            assert_eq!(
                request.headers().contains_key(header::UPGRADE),
                passed,
                "{asked:?}"
            );
            assert_eq!(
                request.headers().contains_key(header::CONNECTION),
                passed,
                "{asked:?}"
            );
        }
    }
}
