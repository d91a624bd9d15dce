//! What holds whatever bytes a guest sends, as functions that fail where it does not.
//!
//! Property tests run them here, and `tests/fuzz` on what a fuzzer finds. No program has them.
#![expect(clippy::panic, reason = "what does not hold fails")]

mod body;
mod head;
mod hello;

pub use body::request_body;
pub use head::request_head;
pub use hello::client_hello;

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
