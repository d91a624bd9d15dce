//! What holds whatever bytes a guest sends, as functions that fail where it does not.
//!
//! Property tests run them here, and `tests/fuzz` on what a fuzzer finds. No program has them.
#![expect(clippy::panic, reason = "what does not hold fails")]

mod body;
mod head;
mod hello;
mod socks;

pub use body::request_body;
pub use head::request_head;
pub use hello::client_hello;
pub use socks::socks;

pub use crate::dns::fuzz::question;

/// Where to cut bytes in two: everywhere if they are few, else at the ends, in the middle, and at
/// places that the bytes themselves choose.
fn cuts(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let length = bytes.len();
    let few = (length <= 32).then_some(0..=length);
    let sum = |step: usize| {
        bytes.iter().step_by(step).fold(0_usize, |sum, &b| {
            sum.wrapping_mul(31).wrapping_add(usize::from(b))
        })
    };
    let some = [1, 5, length / 2, length.saturating_sub(1)].into_iter();
    let chosen = [1, 2].map(|step| sum(step) % (length + 1));
    few.into_iter().flatten().chain(
        some.chain(chosen)
            .filter(move |cut| length > 32 && *cut <= length),
    )
}

#[cfg(test)]
#[path = "../../tests/fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::{replay::replay, *};

    #[test]
    fn everything_that_fuzzers_have_found_holds() {
        replay("client_hello", client_hello);
        replay("dns_question", question);
        replay("request_body", request_body);
        replay("request_head", request_head);
        replay("socks", socks);
    }

    #[test]
    fn few_bytes_are_cut_everywhere_and_many_at_both_ends() {
        assert_eq!(cuts(b"abc").collect::<Vec<_>>(), [0, 1, 2, 3]);
        let many: Vec<_> = cuts(&[7; 100]).collect();
        assert!(
            [1, 5, 50, 99].iter().all(|cut| many.contains(cut)),
            "{many:?}"
        );
        assert!(many.iter().all(|cut| *cut <= 100), "{many:?}");
    }
}
