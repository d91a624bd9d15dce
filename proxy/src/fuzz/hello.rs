//! The first message of a TLS client.

use super::cuts;
use crate::{
    client_hello::{Assembly, HelloError, MAX_HELLO, ServerName},
    extensions::{Hello, SERVER_NAME, sized},
};

type Read = Result<Option<ServerName>, HelloError>;

/// However a stream is cut, on its way or into records, it names the same host or none, and no other
/// reading of it names another.
///
/// # Panics
/// Where it does not hold.
pub fn client_hello(bytes: &[u8]) {
    let whole = Assembly::default().read(bytes);
    for cut in cuts(bytes) {
        assert_eq!(in_two(bytes, cut), whole, "cut at {cut}");
    }
    let Ok(Some(name)) = &whole else { return };
    let hello = Hello::at_the_start_of(bytes);
    let named: Vec<_> = names(&hello).map(<[u8]>::to_ascii_lowercase).collect();
    match name {
        Some(name) => {
            // rustls takes a last dot off.
            let dotted = [name.as_bytes(), b"."].concat();
            assert!(
                named == [name.as_bytes()] || named == [dotted],
                "another reading than {name}"
            );
        }
        None => assert!(
            named.iter().all(|name| is_address(name)),
            "a name that was not seen"
        ),
    }
    for size in [1, 3, 255, 16_384] {
        let records = in_records(hello.message(), size);
        if records.len() <= MAX_HELLO {
            let read = Assembly::default().read(&records);
            assert_eq!(read, whole, "in records of {size}");
        }
    }
}

/// Reads a stream in two parts, the second only if the first is not enough.
fn in_two(bytes: &[u8], cut: usize) -> Read {
    let mut assembly = Assembly::default();
    let first = bytes.get(..cut).unwrap_or(bytes);
    match assembly.read(first) {
        Ok(None) => assembly.read(bytes),
        early => early,
    }
}

fn is_address(name: &[u8]) -> bool {
    str::from_utf8(name).is_ok_and(|name| name.parse::<std::net::IpAddr>().is_ok())
}

/// A handshake message in records of `size` bytes each (RFC 8446 section 5.1).
fn in_records(message: &[u8], size: usize) -> Vec<u8> {
    let records = message.chunks(size).flat_map(|part| {
        let length = u16::try_from(part.len()).unwrap_or(u16::MAX).to_be_bytes();
        [&[HANDSHAKE, 3, 1][..], &length, part].concat()
    });
    records.collect()
}

/// Every host name in every `server_name` extension, as the most lenient of readers would find them.
fn names(hello: &Hello) -> impl Iterator<Item = &[u8]> {
    let lists = hello.extensions().filter(|(kind, _)| *kind == SERVER_NAME);
    lists.flat_map(|(_, list)| {
        let mut rest = list.get(2..).unwrap_or_default();
        let entries = std::iter::from_fn(move || {
            let (&[kind], after) = rest.split_first_chunk::<1>()?;
            let (name, after) = sized(after)?;
            rest = after;
            Some((kind, name))
        });
        entries.filter_map(|(kind, name)| (kind == HOST_NAME).then_some(name))
    })
}

const HANDSHAKE: u8 = 22;
const HOST_NAME: u8 = 0;

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;
    use crate::client_hello::samples::hello;

    /// What a real client said first.
    struct Captured {
        expected: Expected,
        bytes: Vec<u8>,
    }

    /// A line of `hellos.jsonl`.
    #[derive(Deserialize)]
    struct Expected {
        file: String,
        name: String,
        ech: bool,
        post_quantum: bool,
        grease: bool,
    }

    fn captured() -> Vec<Captured> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hellos");
        let list = fs::read_to_string(directory.join("hellos.jsonl")).unwrap();
        let read = |line: &str| {
            let expected: Expected = serde_json::from_str(line).unwrap();
            let bytes = fs::read(directory.join(&expected.file)).unwrap();
            Captured { expected, bytes }
        };
        list.lines().map(read).collect()
    }

    fn chromium() -> Vec<u8> {
        let mut all = captured().into_iter();
        let found = all.find(|hello| hello.expected.file == "chromium.bin");
        found.unwrap().bytes
    }

    fn read(bytes: &[u8]) -> Read {
        Assembly::default().read(bytes)
    }

    #[expect(
        clippy::unnecessary_wraps,
        reason = "it is compared with what was read"
    )]
    fn named(name: &str) -> Read {
        Ok(Some(Some(name.to_owned())))
    }

    /// The hello with other extensions.
    fn rewritten(hello: &[u8], change: impl FnOnce(&mut Vec<(u16, Vec<u8>)>)) -> Vec<u8> {
        let hello = Hello::at_the_start_of(hello);
        let message = hello.message();
        let mut list: Vec<_> = hello
            .extensions()
            .map(|(kind, body)| (kind, body.to_vec()))
            .collect();
        let fixed = message.len() - 2 - list.iter().map(|(_, body)| 4 + body.len()).sum::<usize>();
        change(&mut list);
        let list: Vec<u8> = list
            .iter()
            .flat_map(|(kind, body)| [&kind.to_be_bytes()[..], &after_size(body)].concat())
            .collect();
        let body = [&message[4..fixed], &after_size(&list)].concat();
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        in_records(&[&[1], &length[1..], &body].concat(), 16_384)
    }

    fn after_size(bytes: &[u8]) -> Vec<u8> {
        [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
    }

    /// Entries of a server name list, by type.
    fn server_names(entries: &[(u8, &[u8])]) -> Vec<u8> {
        let entries: Vec<u8> = entries
            .iter()
            .flat_map(|(kind, name)| [&[*kind][..], &after_size(name)].concat())
            .collect();
        after_size(&entries)
    }

    fn with_server_names(hello: &[u8], entries: &[(u8, &[u8])]) -> Vec<u8> {
        rewritten(hello, |list| {
            for (_, body) in list.iter_mut().filter(|(kind, _)| *kind == SERVER_NAME) {
                *body = server_names(entries);
            }
        })
    }

    #[test]
    fn every_captured_hello_gives_its_name() {
        let all = captured();
        assert_eq!(all.len(), 14);
        for Captured { expected, bytes } in all {
            assert_eq!(read(&bytes), named(&expected.name), "{}", expected.file);
            assert_eq!(
                read(&rewritten(&bytes, |_| {})),
                named(&expected.name),
                "{}",
                expected.file
            );
        }
    }

    #[test]
    fn captured_hellos_carry_what_their_list_says() {
        for Captured { expected, bytes } in captured() {
            let hello = Hello::at_the_start_of(&bytes);
            assert_eq!(hello.message().len(), bytes.len() - 5, "{}", expected.file);
            let body = |kind: u16| hello.extension(kind);
            assert_eq!(body(0xfe0d).is_some(), expected.ech, "{}", expected.file);
            let shares = body(51).unwrap_or_default();
            let has = |share: &[u8]| shares.windows(share.len()).any(|at| at == share);
            assert_eq!(
                has(&[0x11, 0xec, 4, 192]),
                expected.post_quantum,
                "{}",
                expected.file
            );
            let groups = body(10).unwrap_or_default().get(2..).unwrap_or_default();
            let grease = groups
                .chunks(2)
                .any(|group| group[0] == group[1] && group[0] & 15 == 10);
            assert_eq!(grease, expected.grease, "{}", expected.file);
        }
    }

    #[test]
    fn a_captured_hello_cut_at_any_byte_is_not_whole_and_then_is() {
        for Captured { expected, bytes } in captured() {
            for cut in 0..bytes.len() {
                assert_eq!(
                    read(&bytes[..cut]),
                    Ok(None),
                    "{} cut at {cut}",
                    expected.file
                );
                assert_eq!(
                    in_two(&bytes, cut),
                    named(&expected.name),
                    "{} cut at {cut}",
                    expected.file
                );
            }
        }
    }

    #[test]
    fn a_captured_hello_that_comes_byte_by_byte_gives_its_name_at_its_last() {
        for Captured { expected, bytes } in captured() {
            let mut assembly = Assembly::default();
            for length in 0..bytes.len() {
                let read = assembly.read(&bytes[..length]);
                assert_eq!(read, Ok(None), "{}", expected.file);
            }
            assert_eq!(
                assembly.read(&bytes),
                named(&expected.name),
                "{}",
                expected.file
            );
        }
    }

    #[test]
    fn a_captured_hello_in_records_of_any_size_gives_its_name() {
        for Captured { expected, bytes } in captured() {
            let hello = Hello::at_the_start_of(&bytes);
            for size in 1..=hello.message().len() {
                let records = in_records(hello.message(), size);
                assert_eq!(
                    read(&records),
                    named(&expected.name),
                    "{} in records of {size}",
                    expected.file
                );
            }
        }
    }

    #[test]
    fn what_comes_early_after_a_hello_changes_nothing() {
        let early = [
            &[20, 3, 3, 0, 1, 1][..],
            &[23, 3, 3, 0, 2, 7, 7],
            &[23, 3, 3, 0x40, 0],
        ]
        .concat();
        for Captured { expected, bytes } in captured() {
            for length in 0..=early.len() {
                let sent = [&bytes, &early[..length]].concat();
                assert_eq!(
                    read(&sent),
                    named(&expected.name),
                    "{} and {length} bytes",
                    expected.file
                );
            }
        }
    }

    #[test]
    fn a_hello_whose_name_is_taken_out_has_none() {
        for Captured { expected, bytes } in captured() {
            let nameless = rewritten(&bytes, |list| list.retain(|(kind, _)| *kind != SERVER_NAME));
            assert_eq!(read(&nameless), Ok(Some(None)), "{}", expected.file);
        }
    }

    #[test]
    fn a_hello_with_more_than_one_reading_is_refused() {
        let hello = chromium();
        let (name, other) = (&b"allowed.example"[..], &b"evil.example"[..]);
        for entries in [
            &[(0, name), (0, other)][..],
            &[(0, name), (0, name)],
            &[(1, name)],
            &[(1, other), (0, name)],
            &[(0, name), (1, other)],
            &[(0, name), (1, b""), (0, other)],
        ] {
            assert_eq!(
                read(&with_server_names(&hello, entries)),
                Err(HelloError::BadName),
                "{entries:?}"
            );
        }
        let twice = rewritten(&hello, |list| {
            list.push((SERVER_NAME, server_names(&[(0, other)])));
        });
        assert_eq!(read(&twice), Err(HelloError::NotTls));
        for nothing in [&[][..], &[(0, &b""[..])]] {
            let empty = with_server_names(&hello, nothing);
            assert!(read(&empty).is_err(), "{nothing:?}");
        }
        let long = rewritten(&hello, |list| {
            list.iter_mut()
                .filter(|(kind, _)| *kind == SERVER_NAME)
                .for_each(|(_, body)| body.push(0));
        });
        assert_eq!(read(&long), Err(HelloError::NotTls));
    }

    #[test]
    fn a_name_is_a_host_name_in_any_case_and_nothing_else() {
        let hello = chromium();
        for (name, expected) in [
            (&b"ALLOWED.eXample"[..], named("allowed.example")),
            (b"a_b.example", named("a_b.example")),
            (b"allowed.example.", named("allowed.example")),
            (b"192.0.2.1", Ok(Some(None))),
            (b"2001:db8::1", Ok(Some(None))),
            (b"[2001:db8::1]", Err(HelloError::BadName)),
            (b"allowed.example\0.evil.example", Err(HelloError::BadName)),
            (b"allowed.example\n", Err(HelloError::BadName)),
            (b"allowed.example:443", Err(HelloError::BadName)),
            (b"allowed..example", Err(HelloError::BadName)),
            (b".allowed.example", Err(HelloError::BadName)),
            (b"*.example", Err(HelloError::BadName)),
            ("b\u{fc}cher.example".as_bytes(), Err(HelloError::BadName)),
            (b"\xff", Err(HelloError::BadName)),
            (&[b'a'; 64], Err(HelloError::BadName)),
        ] {
            let read = read(&with_server_names(&hello, &[(0, name)]));
            assert_eq!(read, expected, "{:?}", String::from_utf8_lossy(name));
        }
    }

    #[test]
    fn a_hello_is_padded_to_64_kib_and_no_further() {
        for Captured { expected, bytes } in captured() {
            let padded = |more: usize| {
                rewritten(&bytes, |list| {
                    list.retain(|(kind, _)| *kind != PADDING);
                    list.insert(0, (PADDING, vec![0; more]));
                })
            };
            for more in [1, 4_000, 16_000, 17_000, 40_000, 60_000] {
                assert_eq!(
                    read(&padded(more)),
                    named(&expected.name),
                    "{} and {more}",
                    expected.file
                );
            }
            // The message fits; in records of ten bytes the stream does not.
            let hello = Hello::at_the_start_of(&padded(50_000));
            let read = read(&in_records(hello.message(), 10));
            assert_eq!(read, Err(HelloError::NotTls), "{}", expected.file);
        }
    }

    #[test]
    fn empty_records_before_a_hello_are_not_endless() {
        let hello = hello("a.example");
        for count in [1, 100, 20_000] {
            let sent = [&[HANDSHAKE, 3, 1, 0, 0].repeat(count), &hello[..]].concat();
            assert_eq!(read(&sent), Err(HelloError::NotTls), "{count}");
        }
    }

    const PADDING: u16 = 21;

    proptest! {
        #[test]
        fn any_number_of_cuts_gives_the_same_name(which in 0usize..14, cuts in proptest::collection::vec(1usize..600, 1..40)) {
            let Captured { expected, bytes } = captured().remove(which);
            let (mut assembly, mut length, mut last) = (Assembly::default(), 0, Ok(None));
            for more in cuts.into_iter().chain([bytes.len()]) {
                if length < bytes.len() {
                    prop_assert_eq!(last, Ok(None));
                    length = bytes.len().min(length + more);
                    last = assembly.read(&bytes[..length]);
                }
            }
            prop_assert_eq!(last, named(&expected.name));
        }

        #[test]
        fn a_damaged_hello_has_one_reading_at_most(
            which in 0usize..14,
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = captured().remove(which).bytes;
            for (place, byte) in damage {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            client_hello(&bytes);
        }

        #[test]
        fn no_bytes_have_two_readings(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            client_hello(&bytes);
            client_hello(&[&[HANDSHAKE, 3, 1, 0, 250, 1, 0, 0, 246], &bytes[..]].concat());
        }
    }
}
