//! What a request to the window asks for: a path, a form, and from where on.

use std::borrow::Cow;

use http::{header, uri::PathAndQuery};

use super::page::Problem;
use crate::head::Head;

/// A request to the window.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    /// As it was sent: what is percent-encoded in it still is.
    pub(super) path: &'a str,
    pub(super) form: Form,
    /// How many entries of a long list are left out.
    pub(super) from: usize,
}

/// In which form it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// For people, and for clients that do not say.
    Text,
    /// For programs.
    Json,
}

impl<'a> Asked<'a> {
    pub(super) fn read(head: &Head, path: &'a PathAndQuery) -> Result<Self, Problem> {
        let (mut form, mut from) = (None, 0);
        for pair in path.query().unwrap_or_default().split('&') {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("format", "json") => form = Some(Form::Json),
                ("format", "text") => form = Some(Form::Text),
                ("format", _) => return Err(Problem::format()),
                ("from", number) => from = number.parse().map_err(|_| Problem::from())?,
                // What others may add to a link, such as a number against caches.
                _ => {}
            }
        }
        Ok(Self {
            path: path.path(),
            form: form.unwrap_or_else(|| preferred(head)),
            from,
        })
    }
}

/// What the client likes best of the two; text unless JSON is named (RFC 9110 §12.5.1).
fn preferred(head: &Head) -> Form {
    let fields = head.headers.get_all(header::ACCEPT).iter();
    let ranges = fields
        .filter_map(|field| field.to_str().ok())
        .flat_map(|field| field.split(','));
    let (mut best, mut form) = (0.0, Form::Text);
    for range in ranges {
        let mut parts = range.split(';').map(str::trim);
        let named = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts.find_map(|part| part.strip_prefix("q="));
        let quality = quality.map_or(Ok(1.0), str::parse).unwrap_or(0.0_f32);
        if quality > best {
            let is_json = named == "application/json";
            (best, form) = (quality, if is_json { Form::Json } else { Form::Text });
        }
    }
    form
}

/// Text with its percent-encoding undone; what is no text then is for the host's parser to refuse.
pub(super) fn decoded(text: &str) -> Cow<'_, str> {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(target: &str, fields: &str) -> Result<(String, Form, usize), String> {
        let raw = format!("GET {target} HTTP/1.1\r\n{fields}\r\n");
        let (head, _) = Head::parse(raw.as_bytes()).unwrap().unwrap();
        let path = target.parse().unwrap();
        let asked = Asked::read(&head, &path).map_err(|problem| problem.to_string())?;
        Ok((asked.path.to_owned(), asked.form, asked.from))
    }

    #[test]
    fn a_client_that_names_json_before_all_else_gets_it() {
        for (accept, form) in [
            ("", Form::Text),
            ("Accept: */*\r\n", Form::Text),
            ("Accept: application/json\r\n", Form::Json),
            ("Accept: Application/JSON, text/plain, */*\r\n", Form::Json),
            (
                "Accept: text/plain\r\nAccept: application/json\r\n",
                Form::Text,
            ),
            (
                "Accept: text/plain;q=0.5, application/json;q=0.9\r\n",
                Form::Json,
            ),
            ("Accept: application/json;q=0, */*;q=0.1\r\n", Form::Text),
            ("Accept: application/json; q=x\r\n", Form::Text),
            (
                "Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n",
                Form::Text,
            ),
        ] {
            assert_eq!(read("/", accept).unwrap().1, form, "{accept:?}");
        }
    }

    #[test]
    fn the_query_wins_over_what_the_client_likes() {
        let json = "Accept: application/json\r\n";
        assert_eq!(read("/?format=text", json).unwrap().1, Form::Text);
        assert_eq!(read("/?format=json", "").unwrap().1, Form::Json);
        assert_eq!(
            read("/policy?x=1&from=20&format=json&", "").unwrap(),
            ("/policy".to_owned(), Form::Json, 20)
        );
    }

    #[test]
    fn what_the_query_gets_wrong_is_named() {
        for (query, words) in [
            ("format=yaml", "format="),
            ("format", "format="),
            ("from=", "from="),
            ("from=99999999999999999999999", "from="),
        ] {
            let problem = read(&format!("/?{query}"), "").unwrap_err();
            assert!(problem.contains(words), "{query}: {problem}");
        }
    }

    #[test]
    fn percent_encoding_is_undone_and_bytes_that_are_no_text_stay_visible() {
        assert_eq!(decoded("%5B::1%5D:443"), "[::1]:443");
        assert_eq!(decoded("b%C3%BCcher.example"), "bücher.example");
        assert_eq!(decoded("a%ff%0"), "a\u{fffd}%0");
    }
}
