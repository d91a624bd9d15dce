//! The body of a request, carried from the client to the origin.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;

use super::cuts;
use crate::{
    body::{BodyError, Carried, RequestBody, carry},
    head::Framing,
};

/// What became of a body: its bytes and what followed it, or that it looked unfinished.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Whole(Bytes, Vec<u8>),
    CutShort,
    NotChunks,
}

/// However a body in chunks is cut on its way the origin gets the same bytes of it, those that a
/// plain reader finds; and one whose end was not seen never looks whole.
///
/// # Panics
/// Where it does not hold.
pub fn request_body(bytes: &[u8]) {
    let whole = carried(bytes, 0, Framing::Chunked);
    for cut in cuts(bytes) {
        assert_eq!(carried(bytes, cut, Framing::Chunked), whole, "cut at {cut}");
    }
    if let Outcome::Whole(body, rest) = whole {
        assert_eq!(plainly(bytes), Some((body.to_vec(), rest)));
    }
    let length = u64::try_from(bytes.len()).unwrap_or_default();
    let half = Framing::Length(length / 2);
    if length > 1 {
        let (body, rest) = bytes.split_at(bytes.len() / 2);
        let expected = Outcome::Whole(Bytes::copy_from_slice(body), rest.to_vec());
        assert_eq!(carried(bytes, bytes.len() / 3, half), expected);
    }
    assert_eq!(
        carried(bytes, 0, Framing::Length(length + 1)),
        Outcome::CutShort
    );
}

/// Carries a body of which `cut` bytes came with its head.
fn carried(raw: &[u8], cut: usize, framing: Framing) -> Outcome {
    let (early, mut late) = raw.split_at(cut);
    let mut pending = BytesMut::from(early);
    let (body, Some(feed)) = RequestBody::new(framing) else {
        panic!("{framing:?} has no feed");
    };
    let (carried, collected) = now(async {
        tokio::join!(
            carry(&mut late, &mut pending, framing, feed),
            body.collect()
        )
    });
    pending.extend_from_slice(late);
    match (carried, collected) {
        (Ok(Carried::Whole), Ok(body)) => Outcome::Whole(body.to_bytes(), pending.to_vec()),
        (Err(BodyError::Gone(_)), Err(_)) => Outcome::CutShort,
        (Err(BodyError::Chunks), Err(_)) => Outcome::NotChunks,
        (carried, collected) => panic!("{carried:?}, and the origin saw {collected:?}"),
    }
}

/// Runs what waits for nothing outside.
fn now<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    match runtime {
        Ok(runtime) => runtime.block_on(future),
        Err(error) => panic!("{error}"),
    }
}

/// The body and what follows it, read in the plainest way (RFC 9112 section 7.1).
fn plainly(mut rest: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut body = Vec::new();
    loop {
        let size = line(&mut rest)?;
        let size = size.split(|&b| b == b';').next()?;
        let size = usize::from_str_radix(str::from_utf8(size).ok()?, 16).ok()?;
        if size == 0 {
            break;
        }
        let (chunk, after) = rest.split_at_checked(size)?;
        body.extend_from_slice(chunk);
        rest = after.strip_prefix(b"\r\n")?;
    }
    while !line(&mut rest)?.is_empty() {}
    Some((body, rest.to_vec()))
}

fn line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let (line, after) = rest.split_at_checked(end)?;
    *rest = after.get(2..)?;
    Some(line)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn a_body_in_any_chunks_arrives_whole(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..6),
            extension in "(;[a-z=\"]{0,8})?",
            trailer in "([A-Z]: [a-z]{0,5}\r\n)?",
            after in "[A-Z ]{0,10}",
        ) {
            let mut raw = Vec::new();
            for chunk in &chunks {
                raw.extend(format!("{:x}{extension}\r\n", chunk.len()).into_bytes());
                raw.extend([chunk.as_slice(), b"\r\n"].concat());
            }
            raw.extend(format!("0\r\n{trailer}\r\n{after}").into_bytes());
            request_body(&raw);
            let expected = Outcome::Whole(chunks.concat().into(), after.into_bytes());
            prop_assert_eq!(carried(&raw, 0, Framing::Chunked), expected);
        }

        #[test]
        fn bytes_that_look_like_chunks_have_one_reading(raw in "[0-9a-f;\r\n x]{0,60}") {
            request_body(raw.as_bytes());
        }

        #[test]
        fn any_bytes_are_a_body_or_are_not(raw in proptest::collection::vec(any::<u8>(), 0..120)) {
            request_body(&raw);
        }
    }
}
