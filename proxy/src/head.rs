//! Reads the head of a request, and refuses every head that two readers could take differently.
//!
//! Request smuggling lives on heads that one program repairs and the next reads otherwise. hyper's
//! server repairs: of `Content-Length` beside `Transfer-Encoding` it drops one before its caller
//! could see that there were two. So heads are read here, by the parser that hyper uses itself, and
//! the leniencies that RFC 9112 permits are not taken. Whatever is sent on is written anew from what
//! was understood; no byte of a head is passed through.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Version, header};

/// The head of a request of which there is one reading only.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) method: Method,
    /// The request target as it was written: printable ASCII.
    pub(crate) target: String,
    /// HTTP/1.0 or HTTP/1.1.
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) framing: Framing,
}

/// How the end of a request's body is known (RFC 9112 §6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// There is no body.
    Empty,
    /// So many bytes; never 0.
    Length(u64),
    /// Chunks.
    Chunked,
}

/// Why bytes are not a head that may be acted on. The text is for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadError {
    #[error("a request head is at most 64 KiB")]
    TooLong,
    #[error("a request has at most 100 header fields")]
    TooManyFields,
    #[error("this proxy speaks HTTP/1.1; HTTP/2 without TLS is not passed on, use CONNECT")]
    Http2,
    #[error("not an HTTP/1.1 request: {0}")]
    Syntax(httparse::Error),
    #[error("lines of a request head end in CR LF")]
    BareLineFeed,
    #[error("the request target is not printable ASCII")]
    Target,
    #[error("a request has one Host field")]
    ManyHosts,
    #[error("a request has Content-Length or Transfer-Encoding, not both")]
    TwoFramings,
    #[error("Content-Length is one decimal number, once")]
    Length,
    #[error("the only Transfer-Encoding of a request is `chunked`, once, in HTTP/1.1")]
    Coding,
}

impl Head {
    /// Reads one head from the start of `bytes` and says how long it is; `None` until it is whole.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, HeadError> {
        if bytes.starts_with(HTTP2_PREFACE) {
            return Err(HeadError::Http2);
        }
        let mut slots = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut request = httparse::Request::new(&mut slots);
        match request.parse(bytes) {
            Ok(httparse::Status::Complete(length)) if length <= MAX_HEAD => {
                if has_bare_line_feed(bytes.get(..length).unwrap_or_default()) {
                    return Err(HeadError::BareLineFeed);
                }
                Self::from_parsed(&request).map(|head| Some((head, length)))
            }
            Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => Ok(None),
            Ok(_) => Err(HeadError::TooLong),
            Err(httparse::Error::TooManyHeaders) => Err(HeadError::TooManyFields),
            Err(error) => Err(HeadError::Syntax(error)),
        }
    }

    fn from_parsed(request: &httparse::Request<'_, '_>) -> Result<Self, HeadError> {
        let method = request.method.unwrap_or_default();
        let target = request.path.unwrap_or_default();
        if target.is_empty() || !target.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(HeadError::Target);
        }
        let version = if request.version == Some(0) {
            Version::HTTP_10
        } else {
            Version::HTTP_11
        };
        let mut headers = HeaderMap::with_capacity(request.headers.len());
        for field in request.headers.iter() {
            let name = HeaderName::from_bytes(field.name.as_bytes());
            let value = HeaderValue::from_bytes(field.value);
            let (Ok(name), Ok(value)) = (name, value) else {
                return Err(HeadError::Syntax(httparse::Error::HeaderValue));
            };
            headers.append(name, value);
        }
        if headers.get_all(header::HOST).iter().nth(1).is_some() {
            return Err(HeadError::ManyHosts);
        }
        let framing = framing(&headers, version)?;
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|_| HeadError::Syntax(httparse::Error::Token))?;
        Ok(Self {
            method,
            target: target.to_owned(),
            version,
            headers,
            framing,
        })
    }
}

fn framing(headers: &HeaderMap, version: Version) -> Result<Framing, HeadError> {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (lengths.next(), codings.next()) {
        (None, None) => Ok(Framing::Empty),
        (Some(_), Some(_)) => Err(HeadError::TwoFramings),
        (Some(_), None) if lengths.next().is_some() => Err(HeadError::Length),
        (Some(length), None) => match decimal(length.as_bytes()).ok_or(HeadError::Length)? {
            0 => Ok(Framing::Empty),
            length => Ok(Framing::Length(length)),
        },
        (None, Some(coding))
            if codings.next().is_none()
                && version == Version::HTTP_11
                && coding.as_bytes().eq_ignore_ascii_case(b"chunked") =>
        {
            Ok(Framing::Chunked)
        }
        (None, Some(_)) => Err(HeadError::Coding),
    }
}

/// Digits and nothing else: `str::parse` would take a sign.
fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn has_bare_line_feed(head: &[u8]) -> bool {
    let mut before = 0;
    head.iter().any(|&byte| {
        let bare = byte == b'\n' && before != b'\r';
        before = byte;
        bare
    })
}

/// The greatest head, in bytes.
pub(crate) const MAX_HEAD: usize = 64 * 1024;
const MAX_FIELDS: usize = 100;
/// What a client sends first when it takes HTTP/2 for granted (RFC 9113 §3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(raw: &str) -> Result<Head, HeadError> {
        Head::parse(raw.as_bytes()).map(|head| head.expect("a whole head").0)
    }

    #[test]
    fn a_head_is_read_with_its_framing() {
        for (fields, framing) in [
            ("", Framing::Empty),
            ("Content-Length: 0\r\n", Framing::Empty),
            ("content-length: 17\r\n", Framing::Length(17)),
            ("Transfer-Encoding: Chunked\r\n", Framing::Chunked),
        ] {
            let head = parse(&format!(
                "POST http://a.example/x HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n"
            ));
            let head = head.unwrap_or_else(|e| panic!("{fields:?}: {e}"));
            assert_eq!(head.framing, framing, "{fields:?}");
            assert_eq!(
                (head.method, &*head.target),
                (Method::POST, "http://a.example/x")
            );
        }
    }

    #[test]
    fn a_head_with_two_readings_is_refused() {
        for (fields, why) in [
            (
                "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                HeadError::TwoFramings,
            ),
            (
                "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
                HeadError::TwoFramings,
            ),
            (
                "Content-Length: 5\r\nContent-Length: 6\r\n",
                HeadError::Length,
            ),
            (
                "Content-Length: 5\r\nContent-Length: 5\r\n",
                HeadError::Length,
            ),
            ("Content-Length: 5, 5\r\n", HeadError::Length),
            ("Content-Length: +5\r\n", HeadError::Length),
            ("Content-Length: 0x5\r\n", HeadError::Length),
            (
                "Content-Length: 99999999999999999999\r\n",
                HeadError::Length,
            ),
            ("Content-Length:\r\n", HeadError::Length),
            ("Transfer-Encoding: gzip, chunked\r\n", HeadError::Coding),
            ("Transfer-Encoding: identity\r\n", HeadError::Coding),
            (
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
                HeadError::Coding,
            ),
            ("Transfer-Encoding: xchunked\r\n", HeadError::Coding),
            ("Host: a\r\nHost: b\r\n", HeadError::ManyHosts),
            (
                "X: a\r\n folded\r\n",
                HeadError::Syntax(httparse::Error::HeaderName),
            ),
            ("X : a\r\n", HeadError::Syntax(httparse::Error::HeaderName)),
            (
                "X: a\0b\r\n",
                HeadError::Syntax(httparse::Error::HeaderValue),
            ),
            ("X: a\nY: b\r\n", HeadError::BareLineFeed),
            (
                "X: a\rY: b\r\n",
                HeadError::Syntax(httparse::Error::HeaderValue),
            ),
        ] {
            let error = parse(&format!("POST / HTTP/1.1\r\n{fields}\r\n")).expect_err(fields);
            assert_eq!(error, why, "{fields:?}");
        }
    }

    #[test]
    fn chunks_are_not_for_http_1_0() {
        let raw = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(parse(raw).unwrap_err(), HeadError::Coding);
    }

    #[test]
    fn what_is_not_http_1_says_so() {
        assert_eq!(
            parse("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap_err(),
            HeadError::Http2
        );
        for raw in [
            "\u{5}\u{1}\0",
            "\u{16}\u{3}\u{1}",
            "GET  / HTTP/1.1\r\n\r\n",
            "GET / HTTP/3\r\n\r\n",
        ] {
            assert!(
                matches!(Head::parse(raw.as_bytes()), Err(HeadError::Syntax(_))),
                "{raw:?}"
            );
        }
    }

    #[test]
    fn size_and_number_of_fields_are_bounded() {
        let hundred = "X: y\r\n".repeat(100);
        assert!(parse(&format!("GET / HTTP/1.1\r\n{hundred}\r\n")).is_ok());
        let error = parse(&format!("GET / HTTP/1.1\r\nX: y\r\n{hundred}\r\n")).unwrap_err();
        assert_eq!(error, HeadError::TooManyFields);

        let long = "y".repeat(MAX_HEAD);
        for raw in [
            format!("GET / HTTP/1.1\r\nX: {long}"),
            format!("GET / HTTP/1.1\r\nX: {long}\r\n\r\n"),
        ] {
            assert_eq!(Head::parse(raw.as_bytes()).unwrap_err(), HeadError::TooLong);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Head::parse(&bytes);
        }

        #[test]
        fn a_head_is_not_acted_on_before_it_is_whole(cut in 0usize..62) {
            let raw = b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nX: yyyyyyy\r\n\r\n";
            prop_assert!(Head::parse(&raw[..cut]).unwrap().is_none());
        }
    }
}
