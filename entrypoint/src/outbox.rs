//! What is to be reported, kept until the host has stored it.
//!
//! Counts never wait for a reader: what is counted goes into a bounded ledger first, and becomes a
//! numbered message when the window to the host has room. A collector that stalls costs detail.

use std::{collections::VecDeque, io::IoSlice};

use report::{
    Allowed, Body, Bye, Denied, Ledger, MAX_FRAME, Message, RunClock, Seed, Totals, encode,
};

/// Reports on their way to the host, and the totals of all there ever were.
#[derive(Debug)]
pub(crate) struct Outbox {
    clock: RunClock,
    last_seq: u64,
    totals: Totals,
    pending: Ledger,
    /// Messages that the host has not acknowledged, oldest first.
    unacknowledged: VecDeque<Frame>,
    /// How many of them are written whole.
    written: usize,
    /// How much of the next one is.
    offset: usize,
    window: usize,
    /// The last that was ever written whole, on whatever connection.
    last_written: u64,
}

#[derive(Debug)]
struct Frame {
    seq: u64,
    bytes: Vec<u8>,
}

impl Outbox {
    /// An empty outbox on the run's time axis, which names refused targets in the order of `seed` if
    /// there are too many.
    pub(crate) fn new(clock: RunClock, seed: Seed) -> Self {
        Self {
            clock,
            last_seq: 0,
            // Whoever counts from the start says so by a zero.
            totals: Totals {
                ech_offered: Some(0),
                ..Totals::default()
            },
            pending: Ledger::new(seed, PENDING_KEYS),
            unacknowledged: VecDeque::new(),
            written: 0,
            offset: 0,
            window: 0,
            last_written: 0,
        }
    }

    /// The run's time axis.
    pub(crate) const fn clock(&self) -> RunClock {
        self.clock
    }

    /// The order in which refused targets are chosen to be named, which the guest must not know.
    pub(crate) const fn seed(&self) -> Seed {
        self.pending.seed()
    }

    /// Chooses in the collector's order, if it says which that is. Nothing was refused yet.
    pub(crate) fn welcomed(&mut self, seed: Option<Seed>) {
        if let Some(seed) = seed {
            self.pending.choose_by(seed);
        }
    }

    /// Everything that was counted so far.
    #[cfg(test)]
    pub(crate) const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Counts refused attempts.
    pub(crate) fn deny(&mut self, denied: Denied) {
        self.totals.deny(&denied);
        self.pending.deny(denied);
    }

    /// Counts attempts that were let through.
    pub(crate) fn allow(&mut self, allowed: Allowed) {
        self.totals.allow(&allowed);
        self.pending.allow(allowed);
    }

    /// Says of how many refused packets no target is known.
    pub(crate) fn leave_unsampled(&mut self, packets: u64) {
        self.totals.unsampled = self.totals.unsampled.saturating_add(packets);
    }

    /// Whether there is something that no message carries yet.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Turns what is pending into messages while the window has room, and says how many of them are
    /// of refused attempts.
    pub(crate) fn flush(&mut self) -> u32 {
        let mut refusals = 0;
        while self.window < WINDOW && self.flush_denied() {
            refusals += 1;
        }
        self.flush_allowed();
        refusals
    }

    /// Turns what was let through into messages while the window has room.
    pub(crate) fn flush_allowed(&mut self) {
        while self.window < WINDOW && self.flush_one_allowed() {}
    }

    /// Turns all that is pending into messages: the end of a run waits for no window, and what the
    /// ledger can hold is bounded.
    pub(crate) fn flush_all(&mut self) {
        while self.flush_denied() || self.flush_one_allowed() {}
    }

    fn flush_denied(&mut self) -> bool {
        let denied = self.pending.pop_denied();
        denied
            .map(|denied| self.push(Body::Denied(denied)))
            .is_some()
    }

    fn flush_one_allowed(&mut self) -> bool {
        let allowed = self.pending.pop_allowed();
        allowed
            .map(|allowed| self.push(Body::Allowed(allowed)))
            .is_some()
    }

    /// Adds a message.
    pub(crate) fn push(&mut self, body: Body) {
        let message = Message {
            body,
            seq: self.last_seq + 1,
            t: self.clock.elapsed_ms(),
        };
        match encode(&message, MAX_FRAME) {
            Ok(bytes) => {
                self.last_seq += 1;
                self.window += bytes.len();
                self.unacknowledged.push_back(Frame {
                    seq: self.last_seq,
                    bytes,
                });
            }
            // No message can grow so long: its texts are `Printable` and its lists short. If one
            // does, its number is not used, so that the host sees the totals disagree.
            Err(_unsendable) => {}
        }
    }

    /// Adds the heartbeat, unless the host does not even read what there is.
    pub(crate) fn push_totals(&mut self) {
        if self.window < WINDOW {
            self.push(Body::Totals(self.totals.clone()));
        }
    }

    /// Adds the last message.
    pub(crate) fn push_bye(&mut self) {
        let bye = Bye {
            last_seq: self.last_seq + 1,
            totals: self.totals.clone(),
        };
        self.push(Body::Bye(bye));
    }

    /// The bytes to write next.
    pub(crate) fn next_bytes(&self) -> Option<&[u8]> {
        self.unacknowledged
            .get(self.written)?
            .bytes
            .get(self.offset..)
    }

    /// The same of several messages, which one call can write.
    pub(crate) fn next_slices(&self) -> Vec<IoSlice<'_>> {
        let mut skipped = self.offset;
        let frames = self.unacknowledged.range(self.written..).take(AT_ONCE);
        let slices = frames.filter_map(|frame| frame.bytes.get(std::mem::take(&mut skipped)..));
        slices.map(IoSlice::new).collect()
    }

    /// Takes note that `count` bytes more are written, of however many messages.
    pub(crate) fn advance(&mut self, count: usize) {
        self.offset += count;
        while let Some(frame) = self.unacknowledged.get(self.written)
            && let Some(beyond) = self.offset.checked_sub(frame.bytes.len())
        {
            self.last_written = self.last_written.max(frame.seq);
            self.written += 1;
            self.offset = beyond;
        }
    }

    /// Forgets what the host has stored.
    pub(crate) fn acknowledge(&mut self, seq: u64) {
        // Only what was written can have been stored, whatever the peer claims.
        while self.written > 0 && self.forget_first(seq) {
            self.written -= 1;
        }
    }

    /// Starts anew on another connection, with the first message that the host has not stored.
    pub(crate) fn resume(&mut self, stored: u64) {
        (self.written, self.offset) = (0, 0);
        while self.forget_first(stored.min(self.last_written)) {}
    }

    fn forget_first(&mut self, seq: u64) -> bool {
        let first = self.unacknowledged.front().filter(|frame| frame.seq <= seq);
        let Some(size) = first.map(|frame| frame.bytes.len()) else {
            return false;
        };
        self.unacknowledged.pop_front();
        self.window -= size;
        true
    }

    /// How many messages the host has not stored.
    pub(crate) fn unacknowledged(&self) -> usize {
        self.unacknowledged.len()
    }

    /// Whether the host has stored everything.
    pub(crate) fn is_settled(&self) -> bool {
        self.unacknowledged.is_empty()
    }
}

/// Unacknowledged bytes beyond which what is counted stays in the ledger.
const WINDOW: usize = 1024 * 1024;
const PENDING_KEYS: usize = 1024;
/// As many messages are written by one call.
const AT_ONCE: usize = 64;

#[cfg(test)]
mod tests {
    use policy::DenyReason;
    use report::{Printable, Target, Transport};

    use super::*;

    fn denied(host: u32) -> Denied {
        Denied {
            target: Target {
                host: Some(Printable::new(&host.to_string())),
                ..Target::default()
            },
            proto: Transport::Tcp,
            reason: DenyReason::NotAllowed,
            count: 1,
            first: 0,
            last: 0,
            uid: None,
        }
    }

    fn outbox() -> Outbox {
        Outbox::new(RunClock::start(), Seed([0; 16]))
    }

    fn read_all(outbox: &mut Outbox) -> Vec<Message> {
        let mut messages = Vec::new();
        while let Some(bytes) = outbox.next_bytes() {
            let bytes = bytes.to_vec();
            messages.push(serde_json::from_slice(&bytes).unwrap());
            outbox.advance(bytes.len());
        }
        messages
    }

    #[test]
    fn sequence_numbers_are_contiguous_from_one() {
        let mut outbox = outbox();
        for host in 0..5 {
            outbox.deny(denied(host));
        }
        outbox.flush();
        outbox.push_bye();
        let seqs: Vec<_> = read_all(&mut outbox).iter().map(|m| m.seq).collect();
        assert_eq!(seqs, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_host_that_stalls_costs_detail_and_no_count() {
        let mut outbox = outbox();
        for host in 0..100_000 {
            outbox.deny(denied(host));
            outbox.flush();
        }
        assert!(outbox.window <= WINDOW + MAX_FRAME, "{}", outbox.window);
        outbox.flush_all();
        outbox.push_bye();
        let counted: u64 = read_all(&mut outbox)
            .iter()
            .filter_map(|message| {
                if let Body::Denied(denied) = &message.body {
                    Some(denied.count)
                } else {
                    None
                }
            })
            .sum();
        assert_eq!(counted, 100_000);
        assert_eq!(outbox.totals().denied[&DenyReason::NotAllowed], 100_000);
    }

    #[test]
    fn a_message_written_in_pieces_is_whole() {
        let mut outbox = outbox();
        outbox.push_bye();
        let mut bytes = Vec::new();
        while let Some(rest) = outbox.next_bytes() {
            bytes.extend(rest.iter().take(7));
            outbox.advance(rest.len().min(7));
        }
        assert!(serde_json::from_slice::<Message>(&bytes).is_ok());
    }

    #[test]
    fn several_messages_are_written_by_one_call_and_wherever_it_ended_gone_on_with() {
        let mut whole = outbox();
        for host in 0..100 {
            whole.deny(denied(host));
        }
        assert_eq!(whole.flush(), 100);
        let slices = whole.next_slices();
        assert_eq!(slices.len(), AT_ONCE);
        let all: usize = slices.iter().map(|slice| slice.len()).sum();
        for step in [1, 7, 200, all, all * 2] {
            whole.resume(0);
            let mut bytes = Vec::new();
            loop {
                let next: Vec<u8> = whole
                    .next_slices()
                    .iter()
                    .flat_map(|s| s.to_vec())
                    .collect();
                if next.is_empty() {
                    break;
                }
                let count = next.len().min(step);
                bytes.extend(&next[..count]);
                whole.advance(count);
            }
            let seqs = bytes
                .split_inclusive(|&b| b == b'\n')
                .map(|line| serde_json::from_slice::<Message>(line).unwrap().seq);
            assert!(seqs.eq(1..=100), "{step}");
        }
        whole.acknowledge(100);
        assert!(whole.is_settled());
    }

    #[test]
    fn what_is_let_through_need_not_wait_for_what_is_refused() {
        let mut outbox = outbox();
        outbox.deny(denied(1));
        outbox.allow(Allowed {
            target: denied(2).target,
            connections: 1,
            failures: 0,
            bytes_up: 0,
            bytes_down: 0,
            ech_offered: 0,
        });
        outbox.flush_allowed();
        let [message] = &read_all(&mut outbox)[..] else {
            panic!("not one message")
        };
        assert!(matches!(message.body, Body::Allowed(_)), "{message:?}");
        assert_eq!(outbox.flush(), 1);
    }

    #[test]
    fn only_what_was_written_can_be_acknowledged() {
        let mut outbox = outbox();
        outbox.push_bye();
        outbox.acknowledge(99);
        assert!(!outbox.is_settled());
        read_all(&mut outbox);
        outbox.acknowledge(1);
        assert!(outbox.is_settled());
    }

    #[test]
    fn on_another_connection_everything_is_sent_that_the_host_has_not_stored() {
        for stored in 0..=3 {
            let mut outbox = outbox();
            for host in 0..3 {
                outbox.deny(denied(host));
            }
            outbox.flush();
            read_all(&mut outbox);
            outbox.resume(stored);
            let seqs: Vec<_> = read_all(&mut outbox).iter().map(|m| m.seq).collect();
            assert_eq!(seqs, (stored + 1..=3).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_message_that_was_cut_off_is_sent_whole_on_the_next_connection() {
        let mut outbox = outbox();
        outbox.push_totals();
        outbox.push_totals();
        let half = outbox.next_bytes().unwrap().len() / 2;
        outbox.advance(half);
        outbox.resume(0);
        let seqs: Vec<_> = read_all(&mut outbox).iter().map(|m| m.seq).collect();
        assert_eq!(seqs, [1, 2]);
        outbox.acknowledge(2);
        assert!(outbox.is_settled() && outbox.window == 0);
    }

    #[test]
    fn a_host_that_claims_to_have_what_was_never_sent_gets_it() {
        let mut outbox = outbox();
        outbox.push_totals();
        outbox.push_totals();
        let first = outbox.next_bytes().unwrap().len();
        outbox.advance(first);
        outbox.resume(99);
        let seqs: Vec<_> = read_all(&mut outbox).iter().map(|m| m.seq).collect();
        assert_eq!(seqs, [2]);
    }

    #[test]
    fn an_acknowledgement_does_not_take_a_message_out_of_the_middle_of_its_writing() {
        let mut outbox = outbox();
        outbox.push_totals();
        read_all(&mut outbox);
        outbox.resume(0);
        outbox.advance(3);
        // A host that stored it on the connection before may say so late.
        outbox.acknowledge(1);
        let rest = outbox.next_bytes().unwrap().len();
        outbox.advance(rest);
        outbox.acknowledge(1);
        assert!(outbox.is_settled());
    }

    #[test]
    fn nothing_pending_makes_no_message() {
        let mut outbox = outbox();
        outbox.flush();
        assert!(outbox.next_bytes().is_none() && outbox.is_settled() && !outbox.has_pending());
    }

    #[test]
    fn a_heartbeat_is_left_out_while_the_host_reads_nothing() {
        let mut outbox = outbox();
        for host in 0..20_000 {
            outbox.deny(denied(host));
            outbox.flush();
        }
        let before = outbox.last_seq;
        outbox.push_totals();
        assert_eq!(outbox.last_seq, before);
    }

    #[test]
    fn the_window_opens_again_when_the_host_has_stored_what_it_got() {
        let mut outbox = outbox();
        for host in 0..20_000 {
            outbox.deny(denied(host));
            outbox.flush();
        }
        assert!(outbox.has_pending());
        read_all(&mut outbox);
        outbox.acknowledge(u64::MAX);
        assert_eq!(outbox.window, 0);
        outbox.flush();
        assert!(!outbox.has_pending());
    }

    #[test]
    fn an_acknowledgement_that_is_repeated_or_old_changes_nothing() {
        let mut outbox = outbox();
        outbox.push_totals();
        outbox.push_totals();
        read_all(&mut outbox);
        outbox.acknowledge(1);
        outbox.acknowledge(1);
        outbox.acknowledge(0);
        assert!(!outbox.is_settled());
        outbox.acknowledge(2);
        assert!(outbox.is_settled());
    }

    #[test]
    fn the_last_message_names_its_own_number_and_the_final_totals() {
        let mut outbox = outbox();
        outbox.deny(denied(1));
        outbox.leave_unsampled(3);
        outbox.flush_all();
        outbox.push_bye();
        let last = read_all(&mut outbox).pop().unwrap();
        let Body::Bye(bye) = last.body else {
            panic!("{last:?}")
        };
        assert_eq!((bye.last_seq, bye.totals.unsampled), (last.seq, 3));
        assert_eq!(bye.totals.denied[&DenyReason::NotAllowed], 1);
    }

    #[test]
    fn what_was_let_through_is_counted_and_sent() {
        let mut outbox = outbox();
        for bytes in [10, 20] {
            let target = denied(1).target;
            outbox.allow(Allowed {
                target,
                connections: 1,
                failures: 0,
                bytes_up: bytes,
                bytes_down: 0,
                ech_offered: 1,
            });
        }
        outbox.flush();
        let messages = read_all(&mut outbox);
        let [
            Message {
                body: Body::Allowed(sum),
                ..
            },
        ] = messages.as_slice()
        else {
            panic!("{messages:?}")
        };
        assert_eq!((sum.connections, sum.bytes_up), (2, 30));
        assert_eq!(outbox.totals().bytes_up, 30);
    }
}
