//! The guest's own window, `http://egress.sandbox/`: what is let out, what was refused lately, and
//! what would be decided on a host.
//!
//! It only looks. Nothing that is asked here is counted, used up, resolved or sent anywhere, and
//! nothing that it says is the record: that is kept where the guest cannot write. It speaks text to
//! people and JSON to programs.

mod asked;
mod denials;
mod listing;
mod page;
mod why;

use std::{
    fmt::Write as _,
    net::{Ipv4Addr, Ipv6Addr},
};

use http::{Method, uri::PathAndQuery};
use policy::Destination;

use self::{
    asked::{Asked, Form},
    page::{Page, Problem},
};
use crate::{
    answer::{After, Body, Manner},
    head::Head,
    proxy::Proxy,
    ruling::Ruling,
};

/// What the name is said to resolve to: addresses that nobody has (RFC 5737, RFC 6666), so that
/// whatever is sent there is either redirected to this proxy or reaches nobody.
pub(crate) const ADDRESSES: (Ipv4Addr, Ipv6Addr) = (
    Ipv4Addr::new(192, 0, 2, 80),
    Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0x80),
);

/// Whether a request for this destination is for the window.
pub(crate) fn is_at(destination: &Destination) -> bool {
    destination.host.is_window() && destination.port == PORT
}

/// The response to a request for the window.
pub(crate) fn answer(head: &Head, path: &PathAndQuery, manner: Manner, proxy: &Proxy) -> Vec<u8> {
    let asked = Asked::read(head, path);
    let form = asked.as_ref().map_or(Form::Text, |asked| asked.form);
    let ruling = proxy.rulings.now();
    let page = asked.and_then(|asked| page(head, &asked, &ruling, proxy));
    write(&page.unwrap_or_else(Page::Problem), form, manner)
}

fn page<'p>(
    head: &Head,
    asked: &Asked<'_>,
    ruling: &'p Ruling,
    proxy: &Proxy,
) -> Result<Page<'p>, Problem> {
    if !matches!(head.method, Method::GET | Method::HEAD) {
        return Err(Problem::method());
    }
    if let Some(host) = asked.path.strip_prefix("/why/") {
        return Ok(Page::Why(why::of(host, proxy)?));
    }
    match asked.path {
        "/" => Ok(Page::Index(page::Index::new())),
        "/policy" => Ok(Page::Policy(listing::of(ruling, asked.from))),
        "/denials" => Ok(Page::Denials(denials::of(&proxy.account.recent()))),
        _ => Err(Problem::path()),
    }
}

fn write(page: &Page<'_>, form: Form, manner: Manner) -> Vec<u8> {
    let (kind, body) = match form {
        Form::Text => ("text/plain; charset=utf-8", page.to_string()),
        Form::Json => (
            "application/json",
            serde_json::to_string(page).unwrap_or_default() + "\n",
        ),
    };
    let mut head = String::with_capacity(256 + body.len());
    // Writing to a String cannot fail.
    let _ = write!(
        head,
        "HTTP/1.1 {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n",
        page.status_line(),
        body.len(),
    );
    if page.is_about_the_method() {
        head.push_str("Allow: GET, HEAD\r\n");
    }
    if manner.after == After::Close {
        head.push_str("Connection: close\r\n");
    }
    head.push_str("\r\n");
    if manner.body == Body::Sent {
        head.push_str(&body);
    }
    head.into_bytes()
}

/// The one port of the window.
pub(crate) const PORT: u16 = 80;

#[cfg(test)]
mod tests {
    use policy::DenyReason;

    use super::*;
    use crate::answer::LAST;

    /// Status line, fields and body of the answer.
    fn asked(proxy: &Proxy, method: &str, target: &str, fields: &str) -> (String, String) {
        let raw = format!("{method} {target} HTTP/1.1\r\n{fields}\r\n");
        let (head, _) = Head::parse(raw.as_bytes()).unwrap().unwrap();
        let path = target.parse().unwrap();
        let answer = String::from_utf8(answer(&head, &path, LAST, proxy)).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    #[test]
    fn only_port_80_of_the_window_is_the_window() {
        for (host, port, is) in [
            ("egress.sandbox", 80, true),
            ("EGRESS.sandbox.", 80, true),
            ("egress.sandbox", 443, false),
            ("x.egress.sandbox", 80, false),
            ("192.0.2.80", 80, false),
        ] {
            let destination = Destination::parse(host, port).unwrap();
            assert_eq!(is_at(&destination), is, "{destination}");
        }
    }

    #[test]
    fn every_page_has_a_text_and_a_json() {
        let proxy = Proxy::allowing("a.example");
        for target in ["/", "/policy", "/denials", "/why/a.example"] {
            let (head, body) = asked(&proxy, "GET", target, "");
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{target}: {head}");
            assert!(head.contains("\r\nContent-Type: text/plain"), "{head}");
            assert!(
                body.contains("not the record") && body.ends_with('\n'),
                "{body}"
            );
            for (target, fields) in [
                (target.to_owned(), "Accept: application/json\r\n"),
                (format!("{target}?format=json"), ""),
            ] {
                let (head, body) = asked(&proxy, "GET", &target, fields);
                assert!(
                    head.contains("\r\nContent-Type: application/json\r\n"),
                    "{head}"
                );
                assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())));
                let json: serde_json::Value = serde_json::from_str(&body).unwrap();
                let note = json["note"].as_str().unwrap();
                assert!(note.contains("not the record"), "{body}");
            }
        }
    }

    #[test]
    fn what_it_has_not_is_told_with_what_it_has() {
        let proxy = Proxy::allowing("a.example");
        for (method, target, status, words) in [
            ("GET", "/nothing", "404 Not Found", "/denials"),
            ("GET", "/why", "404 Not Found", "/why/HOST"),
            ("POST", "/policy", "405 Method Not Allowed", "GET"),
            ("DELETE", "/denials", "405 Method Not Allowed", "GET"),
            ("GET", "/why/", "400 Bad Request", "/why/HOST"),
            ("GET", "/why/a_%20b", "400 Bad Request", "' '"),
            ("GET", "/why/a.example:0", "400 Bad Request", "65535"),
            (
                "GET",
                "/policy?format=xml",
                "400 Bad Request",
                "format=json",
            ),
            ("GET", "/policy?from=-1", "400 Bad Request", "from="),
        ] {
            let (head, body) = asked(&proxy, method, target, "");
            let line = format!("HTTP/1.1 {status}\r\n");
            assert!(head.starts_with(&line), "{method} {target}: {head}");
            assert!(body.contains(words), "{method} {target}: {body}");
            let is_method = status.starts_with("405");
            assert_eq!(head.contains("\r\nAllow: GET, HEAD\r\n"), is_method);
        }
        assert_eq!(proxy.denials(), [], "looking is no attempt at anything");
    }

    #[test]
    fn a_question_about_a_host_uses_nothing_up() {
        let proxy = Proxy::allowing("*.a.example");
        for n in 0..600 {
            let (_, body) = asked(&proxy, "GET", &format!("/why/n{n}.a.example:443"), "");
            assert!(
                body.contains(&format!("allow n{n}.a.example:443")),
                "{body}"
            );
        }
        let first = Destination::parse("n600.a.example", 443).unwrap();
        assert!(proxy.decide(&first).is_ok());
        assert_eq!(proxy.denials(), []);
    }

    #[test]
    fn a_wildcard_that_is_used_up_is_told_as_it_would_be_decided() {
        let proxy = Proxy::allowing("*.a.example");
        for n in 0..512 {
            let name = format!("n{n}.a.example");
            let _permit = proxy.decide(&Destination::parse(&name, 443).unwrap());
        }
        let (_, body) = asked(&proxy, "GET", "/why/new.a.example:443", "");
        assert!(body.contains("deny new.a.example:443: limit"), "{body}");
        let (_, body) = asked(&proxy, "GET", "/why/n7.a.example:443", "");
        assert!(body.contains("allow n7.a.example:443"), "{body}");
    }

    #[test]
    fn a_head_request_gets_the_fields_alone() {
        let proxy = Proxy::allowing("a.example");
        let (head, _) = Head::parse(b"HEAD / HTTP/1.1\r\n\r\n").unwrap().unwrap();
        let manner = Manner {
            body: Body::Withheld,
            after: After::Keep,
        };
        let answer = answer(&head, &PathAndQuery::from_static("/"), manner, &proxy);
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.ends_with("\r\n\r\n"), "{answer}");
        assert!(!answer.contains("Connection") && !answer.contains("Content-Length: 0"));
    }

    #[test]
    fn what_a_guest_invented_stays_on_its_line() {
        let proxy = Proxy::allowing("a.example");
        let target = crate::authority::target("x\r\n\u{1b}[2J\u{202e}", Some(80));
        let hint = Some("1\n2\u{7}");
        let (proto, reason) = (report::Transport::Tcp, DenyReason::Malformed);
        proxy.account.deny_over(proto, target, reason, hint);
        for target in ["/denials", "/denials?format=json"] {
            let (_, body) = asked(&proxy, "GET", target, "");
            let raw = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
            assert!(!body.contains(raw), "{body:?}");
            assert!(!body.contains("\r\n") && !body.contains("1\n2"), "{body:?}");
        }
    }
}
