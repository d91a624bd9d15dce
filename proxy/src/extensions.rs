//! The extensions of a `ClientHello`, for what rustls reads past.
//!
//! Only of a hello that rustls has accepted: what does not fit here ends the walk and is no error of
//! its own.

/// A `ClientHello` taken out of its records.
#[derive(Debug)]
pub(crate) struct Hello(Vec<u8>);

impl Hello {
    /// The handshake message that `stream` begins with (RFC 8446 section 5.1).
    pub(crate) fn at_the_start_of(stream: &[u8]) -> Self {
        let (mut message, mut rest) = (Vec::new(), stream);
        while let Some((&[HANDSHAKE, _, _, high, low], body)) = rest.split_first_chunk::<5>() {
            let length = usize::from(u16::from_be_bytes([high, low]));
            let Some((part, after)) = body.split_at_checked(length) else {
                break;
            };
            message.extend_from_slice(part);
            if is_whole(&message) {
                break;
            }
            rest = after;
        }
        Self(message)
    }

    /// The handshake message with its header.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn message(&self) -> &[u8] {
        &self.0
    }

    /// What is carried under `kind` (RFC 8446 section 4.2).
    pub(crate) fn extension(&self, kind: u16) -> Option<&[u8]> {
        let mut all = self.extensions();
        all.find_map(|(found, body)| (found == kind).then_some(body))
    }

    /// All of them, in their order.
    pub(crate) fn extensions(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let mut rest = after_the_fixed_part(&self.0).unwrap_or_default();
        std::iter::from_fn(move || {
            let (&kind, after) = rest.split_first_chunk::<2>()?;
            let (body, after) = sized(after)?;
            rest = after;
            Some((u16::from_be_bytes(kind), body))
        })
    }

    /// Whether it offers Encrypted `ClientHello` (RFC 9849 section 5): in earnest, or with random
    /// bytes for practice, which nobody can tell apart who has not the key.
    pub(crate) fn offers_ech(&self) -> bool {
        let offer = self.extension(ENCRYPTED_CLIENT_HELLO);
        offer.is_some_and(|body| body.first() == Some(&OUTER))
    }

    /// Whether what rustls read for a name is all that any reader could: one host name with nothing
    /// beside it (RFC 6066 section 3), or no `server_name` at all.
    ///
    /// rustls takes the first host name and reads past what follows an entry of another type; a
    /// server that takes the last would be sent to a name that nobody decided on.
    pub(crate) fn bears_out(&self, name: Option<&str>) -> bool {
        match self.extension(SERVER_NAME) {
            None => name.is_none(),
            Some(body) => is_one_host_name(body),
        }
    }
}

fn is_one_host_name(body: &[u8]) -> bool {
    let entry = sized(body).and_then(|(list, _)| list.split_first_chunk::<1>());
    let name = entry.and_then(|(&[kind], name)| (kind == HOST_NAME).then_some(name));
    name.and_then(sized)
        .is_some_and(|(_, after)| after.is_empty())
}

fn is_whole(message: &[u8]) -> bool {
    message
        .split_first_chunk::<4>()
        .is_some_and(|(header, body)| {
            let &[_, high, middle, low] = header;
            let length = u32::from_be_bytes([0, high, middle, low]);
            usize::try_from(length).is_ok_and(|length| body.len() >= length)
        })
}

/// The list of extensions, which the fixed fields stand before (RFC 8446 section 4.1.2).
fn after_the_fixed_part(message: &[u8]) -> Option<&[u8]> {
    let session = message.get(BEFORE_THE_SESSION..)?;
    let (&[length], session) = session.split_first_chunk::<1>()?;
    let (_suites, rest) = sized(session.get(usize::from(length)..)?)?;
    let (&[length], compressions) = rest.split_first_chunk::<1>()?;
    let (extensions, _) = sized(compressions.get(usize::from(length)..)?)?;
    Some(extensions)
}

/// What follows its length in two bytes, and what follows that.
pub(crate) fn sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(length)))
}

/// The record type of a handshake (RFC 8446 section 5.1).
const HANDSHAKE: u8 = 22;
/// The header of the message, its version and its random bytes.
const BEFORE_THE_SESSION: usize = 4 + 2 + 32;
pub(crate) const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
/// The type of the hello that travels in the clear; the other stands inside the encrypted one.
const OUTER: u8 = 0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_hello::samples::{hello, nameless_hello};

    /// The same hello with another list of server names, of the same length.
    fn with_list(change: impl Fn(&mut [u8])) -> Hello {
        let mut bytes = hello("a.example");
        let name = bytes.windows(9).position(|at| at == b"a.example").unwrap();
        change(&mut bytes[name - 5..name + 9]);
        Hello::at_the_start_of(&bytes)
    }

    #[test]
    fn a_server_name_is_one_host_name_with_nothing_beside_it() {
        assert!(with_list(|_| {}).bears_out(Some("a.example")));
        // The list, its length first: a type, a length, a name.
        for (what, change) in [
            (
                "a type that is none",
                &(|list: &mut [u8]| list[2] = 1) as &dyn Fn(&mut [u8]),
            ),
            ("a name and an empty one", &|list| {
                list[4] = 6;
                list[11..].fill(0);
            }),
            ("a name that is longer than its list", &|list| list[4] = 10),
            ("an empty list", &|list| list[..2].fill(0)),
            ("a list that is longer than it is", &|list| list[1] = 13),
        ] {
            let changed = with_list(change);
            assert!(!changed.bears_out(Some("a.example")), "{what}");
            assert!(!changed.bears_out(None), "{what}");
        }
    }

    #[test]
    fn a_name_that_is_nowhere_is_not_borne_out() {
        let nameless = Hello::at_the_start_of(&nameless_hello());
        assert!(nameless.bears_out(None) && !nameless.bears_out(Some("a.example")));
    }

    #[test]
    fn extensions_are_found_by_their_type() {
        let hello = Hello::at_the_start_of(&hello("a.example"));
        let name = hello.extension(SERVER_NAME).unwrap();
        assert_eq!(&name[5..], b"a.example");
        // supported_versions, which says TLS 1.3.
        assert_eq!(hello.extension(43), Some(&[2, 3, 4][..]));
        assert_eq!(hello.extension(0xfafa), None);
    }

    #[test]
    fn an_offer_to_hide_the_name_is_seen_and_nothing_else_is_taken_for_one() {
        for (client, offers) in [
            (&include_bytes!("../tests/hellos/rustls-ech.bin")[..], true),
            (include_bytes!("../tests/hellos/rustls-grease.bin"), true),
            (include_bytes!("../tests/hellos/chromium.bin"), true),
            (include_bytes!("../tests/hellos/firefox.bin"), true),
            (include_bytes!("../tests/hellos/rustls.bin"), false),
            (include_bytes!("../tests/hellos/curl.bin"), false),
        ] {
            assert_eq!(Hello::at_the_start_of(client).offers_ech(), offers);
        }
        let mut inner = include_bytes!("../tests/hellos/rustls-ech.bin").to_vec();
        let offer = Hello::at_the_start_of(&inner);
        let offer = offer.extension(ENCRYPTED_CLIENT_HELLO).unwrap().to_vec();
        let length = offer.len();
        let place = inner.windows(length).position(|at| at == offer).unwrap();
        inner[place] = 1;
        assert!(!Hello::at_the_start_of(&inner).offers_ech());
    }

    #[test]
    fn a_walk_over_anything_ends() {
        let whole = hello("a.example");
        for cut in 0..whole.len() {
            let cut = Hello::at_the_start_of(&whole[..cut]);
            assert_eq!((cut.extensions().count(), cut.message().len()), (0, 0));
        }
        let (record, message) = whole.split_at(5);
        for cut in 0..message.len() {
            let length = u16::try_from(cut).unwrap().to_be_bytes();
            let sent = [&record[..3], &length, &message[..cut]].concat();
            assert!(
                Hello::at_the_start_of(&sent).extensions().count() == 0,
                "{cut}"
            );
        }
    }

    #[test]
    fn what_follows_the_hello_is_not_part_of_it() {
        let whole = hello("a.example");
        let twice = [&whole[..], &whole].concat();
        assert_eq!(Hello::at_the_start_of(&twice).message(), &whole[5..]);
    }
}
