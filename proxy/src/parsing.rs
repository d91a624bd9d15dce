//! Whom the bytes of a guest name, as functions of those bytes alone.
//!
//! They are the parsers that connections go through, and not more of them than that: here for
//! whoever measures them, since nothing else of the proxy can be called from outside.

use policy::Destination;

use crate::{authority, client_hello::Assembly, dns, head::Head};

/// The server name in the `ClientHello` at the start of a TLS stream (RFC 6066 section 3), as text.
/// `None` where the hello is not whole, names nobody, or is none.
#[must_use]
pub fn server_name(stream: &[u8]) -> Option<String> {
    Assembly::default().read(stream).ok().flatten().flatten()
}

/// Where the request at the start of a stream wants to go: the target of a CONNECT (RFC 9112
/// section 3.2.3), or the host of an absolute one. `None` where its head is not whole, or is none
/// that a proxy takes.
#[must_use]
pub fn destination(stream: &[u8]) -> Option<Destination> {
    let (head, _) = Head::parse(stream).ok().flatten()?;
    if head.method == http::Method::CONNECT {
        return authority::of_connect(&head).ok();
    }
    authority::of_absolute(&head)
        .ok()
        .map(|asked| asked.destination)
}

/// The name that a DNS message asks for (RFC 1035 section 4), in lower case and without its last
/// dot. `None` where it is no question that is answered.
#[must_use]
pub fn question(message: &[u8]) -> Option<String> {
    dns::name_in(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_hello::samples::hello;

    #[test]
    fn a_server_name_is_read_once_the_hello_is_whole() {
        let hello = hello("a.example");
        assert_eq!(server_name(&hello).as_deref(), Some("a.example"));
        for end in 0..hello.len() {
            assert_eq!(server_name(&hello[..end]), None, "{end}");
        }
        assert_eq!(server_name(b"GET / HTTP/1.1\r\n\r\n"), None);
    }

    #[test]
    fn a_request_of_a_proxy_has_a_destination() {
        for (head, expected) in [
            (
                "CONNECT a.example:443 HTTP/1.1\r\n\r\n",
                Some("a.example:443"),
            ),
            (
                "GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n",
                Some("a.example:80"),
            ),
            ("GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n", None),
            ("CONNECT a.example:443 HTTP/1.1\r\n", None),
        ] {
            let found = destination(head.as_bytes()).map(|to| to.to_string());
            assert_eq!(found.as_deref(), expected, "{head}");
        }
    }

    #[test]
    fn only_a_question_asks_for_a_name() {
        let mut message = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x01A\x07example\0\0\x01\0\x01".to_vec();
        assert_eq!(question(&message).as_deref(), Some("a.example"));
        message[2] |= 0x80;
        assert_eq!(question(&message), None);
        assert_eq!(question(b""), None);
    }
}
