//! The head of a request, and whom it is for.

use std::fmt::Write as _;

use http::{Version, header};
use policy::Destination;

use super::cuts;
use crate::{
    authority,
    head::{Framing, Head, MAX_HEAD},
    spoken::Spoken,
};

/// However a head is cut on its way it is the same head; written anew it means the same; it has one
/// framing at most, and names hosts that are their own spelling.
///
/// # Panics
/// Where it does not hold.
pub fn request_head(bytes: &[u8]) {
    let whole = Head::parse(bytes);
    let spoken = Spoken::classify(bytes);
    for cut in cuts(bytes) {
        let first = bytes.get(..cut).unwrap_or(bytes);
        let early = Spoken::classify(first);
        assert!(
            early.is_none() || early == spoken,
            "{early:?} at {cut}, then {spoken:?}"
        );
        match (Head::parse(first), &whole) {
            (Ok(None), _) | (Err(_), Err(_)) => {}
            (Ok(Some((head, length))), Ok(Some((all, whole_length)))) => {
                assert_eq!(length, *whole_length, "cut at {cut}");
                assert_same(&head, all);
            }
            (early, _) => panic!("{early:?} at {cut}, then {whole:?}"),
        }
    }
    let Ok(Some((head, length))) = whole else {
        return;
    };
    let raw = bytes.get(..length).unwrap_or_default();
    assert!(length <= MAX_HEAD && raw.ends_with(b"\r\n\r\n"));
    assert_one_framing(&head, raw);
    let (again, length) = match Head::parse(&written(&head)) {
        Ok(Some(read)) => read,
        other => panic!("{head:?} is read back as {other:?}"),
    };
    assert_eq!(length, written(&head).len());
    assert_same(&again, &head);
    whom(&head);
}

fn assert_same(one: &Head, other: &Head) {
    let parts = |head: &Head| {
        (
            head.method.clone(),
            head.target.clone(),
            head.version,
            head.framing,
        )
    };
    assert_eq!(parts(one), parts(other));
    assert_eq!(one.headers, other.headers);
}

/// Counted in the bytes themselves, where what was dropped would still be.
fn assert_one_framing(head: &Head, raw: &[u8]) {
    let lines = raw.split(|&b| b == b'\n').skip(1);
    let names = lines.filter_map(|line| line.split(|&b| b == b':').next());
    let framings = names.filter(|name| {
        let name = name.trim_ascii();
        name.eq_ignore_ascii_case(b"content-length")
            || name.eq_ignore_ascii_case(b"transfer-encoding")
    });
    let count = framings.count();
    assert!(count <= 1, "{count} framings in {head:?}");
    let field = |name| head.headers.get(name).is_some();
    let expected = match head.framing {
        Framing::Empty => !field(header::TRANSFER_ENCODING),
        Framing::Length(_) => field(header::CONTENT_LENGTH),
        Framing::Chunked => field(header::TRANSFER_ENCODING) && head.version == Version::HTTP_11,
    };
    assert!(
        expected
            && count
                == usize::from(field(header::CONTENT_LENGTH) || field(header::TRANSFER_ENCODING))
    );
}

fn written(head: &Head) -> Vec<u8> {
    let mut line = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        line,
        "{} {} {:?}\r\n",
        head.method, head.target, head.version
    );
    let mut bytes = line.into_bytes();
    for (name, value) in &head.headers {
        bytes.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    bytes.extend(b"\r\n");
    bytes
}

fn whom(head: &Head) {
    if let Ok(destination) = authority::of_connect(head) {
        assert_own_spelling(&destination);
    }
    if let Ok(asked) = authority::of_absolute(head) {
        assert_own_spelling(&asked.destination);
        // What is for a proxy is for that origin too, and a tunnel to any other takes it for another's.
        let port = asked.destination.port;
        let origin = authority::of_origin(head, port).map(|(named, _)| named);
        assert!(
            origin.is_err() || origin.is_ok_and(|named| named == Some(asked.destination.clone()))
        );
        let other = Destination {
            port: port ^ 1,
            ..asked.destination
        };
        assert!(authority::within_tunnel(head, &other).is_err() || port == 80);
    }
    if let Ok((Some(named), _)) = authority::of_origin(head, 80) {
        assert_own_spelling(&named);
        assert!(authority::within_tunnel(head, &named).is_ok() || named.port != 80);
    }
}

fn assert_own_spelling(destination: &Destination) {
    let again = Destination::parse(&destination.host.to_string(), destination.port);
    assert_eq!(again.as_ref(), Ok(destination));
    let text = destination.to_string();
    assert!(text.bytes().all(|b| b.is_ascii_graphic()), "{text:?}");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Parts of heads, good and bad, of which many together make a head.
    fn line() -> impl Strategy<Value = String> {
        prop::sample::select(vec![
            "GET / HTTP/1.1\r\n",
            "POST http://a.example/x HTTP/1.1\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\n",
            "GET http://u@[::1]:80/ HTTP/1.0\r\n",
            "Host: a.example\r\n",
            "host:A.example:80\r\n",
            "Content-Length: 5\r\n",
            "content-length:0\r\n",
            "Transfer-Encoding: chunked\r\n",
            "Connection: close\r\n",
            "X: \u{80}\r\n",
            " folded\r\n",
            "\r\n",
            "\n",
            "\r",
            ":",
            "\0",
        ])
        .prop_map(str::to_owned)
    }

    proptest! {
        #[test]
        fn lines_in_any_order_have_one_reading(lines in proptest::collection::vec(line(), 0..9)) {
            request_head(lines.concat().as_bytes());
        }

        #[test]
        fn a_request_with_any_target_and_host_has_one_reading(target in "[!-~]{1,40}", host in "[ -~]{0,40}") {
            for method in ["GET", "CONNECT"] {
                request_head(format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
            }
        }

        #[test]
        fn an_absolute_target_and_a_host_agree_or_are_refused(
            host in "[a-cA-C.:0-9@-]{1,12}",
            field in "[a-cA-C.:0-9@-]{1,12}",
        ) {
            request_head(format!("GET http://{host}/ HTTP/1.1\r\nHost: {field}\r\n\r\n").as_bytes());
        }

        #[test]
        fn any_bytes_are_a_head_or_are_not(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            request_head(&bytes);
        }
    }
}
