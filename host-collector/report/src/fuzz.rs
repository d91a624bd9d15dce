//! What holds whatever a container, or who has taken it over, sends for reports.
//!
//! Property tests run it here, and `tests/fuzz` on what a fuzzer finds. No program has it.
#![expect(clippy::panic, reason = "what does not hold fails")]

use crate::{
    Account, Evidence, FrameError, FrameReader, MAX_FRAME, PeerEnd, Report, Seed, link::FromProxy,
    verdict,
};

/// However a stream is cut it gives the same lines; each is no message, or one whose record is one
/// harmless line that means the same; and the journal gives the account that the messages gave.
///
/// # Panics
/// Where it does not hold.
pub fn report_frames(bytes: &[u8]) {
    for limit in [MAX_FRAME, 64] {
        let (lines, error) = lines(&[bytes], limit);
        for cut in [
            1,
            bytes.len() / 3,
            bytes.len() / 2,
            bytes.len().saturating_sub(1),
        ] {
            let (first, second) = bytes.split_at(cut.min(bytes.len()));
            let (again, error_again) = self::lines(&[first, second], limit);
            assert_eq!(again, lines, "cut at {cut}");
            assert_eq!(error_again.is_some(), error.is_some(), "cut at {cut}");
        }
        assert!(
            lines
                .iter()
                .all(|line| line.len() < limit && !line.contains(&b'\n'))
        );
    }
    accounted(&lines(&[bytes], MAX_FRAME).0);
}

/// The lines that come of these reads, and what ended them.
fn lines(reads: &[&[u8]], limit: usize) -> (Vec<Vec<u8>>, Option<FrameError>) {
    let (mut reader, mut lines) = (FrameReader::new(limit), Vec::new());
    for read in reads {
        reader.push(read);
        loop {
            match reader.next_line() {
                Ok(Some(line)) => lines.push(line.to_vec()),
                Ok(None) => break,
                Err(error) => return (lines, Some(error)),
            }
        }
    }
    (lines, None)
}

fn accounted(lines: &[Vec<u8>]) {
    let seed = Seed([7; 16]);
    let (mut heard, mut replayed) = (Account::new(seed), Account::new(seed));
    let mut refused = 0;
    for line in lines {
        link(line);
        let Ok(report) = Report::read(line) else {
            heard.note_unreadable();
            replayed.note_unreadable();
            continue;
        };
        heard.apply(&report.message);
        replayed.apply(&recorded(&report).message);
        let now = heard
            .totals()
            .denied
            .values()
            .fold(0_u64, |sum, n| sum.saturating_add(*n));
        assert!(now >= refused, "{now} refused, after {refused}");
        refused = now;
    }
    assert_eq!(heard.totals(), replayed.totals());
    assert_eq!(heard.sequence(), replayed.sequence());
    assert_eq!(heard.closing(), replayed.closing());
    assert_eq!(heard.gaps().list(), replayed.gaps().list());
    assert_eq!(heard.exit(), replayed.exit());
    assert!(heard.refused(32).len() <= 32 && heard.reached().pick(32).len() <= 32);
    for peer in [PeerEnd::Exited, PeerEnd::Alive] {
        let told = verdict(Evidence::Reports {
            account: &heard,
            peer,
        });
        assert!(
            !told.state.is_final() || heard.closing().is_some(),
            "{told:?} without a bye"
        );
    }
}

/// The report as the journal has it.
fn recorded(report: &Report) -> Report {
    let line = report.journal_line();
    let Some(text) = line.strip_suffix('\n') else {
        panic!("no line: {line:?}")
    };
    assert!(
        !text.contains(|c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}')),
        "{text:?}"
    );
    match Report::read(text.as_bytes()) {
        Ok(again) => {
            assert_eq!(again.record, report.record);
            assert_eq!(
                (again.message.seq, again.message.t),
                (report.message.seq, report.message.t)
            );
            again
        }
        Err(error) => panic!("{text} cannot be read back: {error}"),
    }
}

/// The same bytes as a word of the proxy's, which PID 1 believes no more.
fn link(line: &[u8]) {
    let Ok(said) = serde_json::from_slice::<FromProxy>(line) else {
        return;
    };
    let again =
        serde_json::to_vec(&said).and_then(|line| serde_json::from_slice::<FromProxy>(&line));
    assert!(again.is_ok_and(|again| again == said), "{said:?}");
}

#[cfg(test)]
#[path = "../../../tests/fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{replay::replay, *};

    fn message() -> impl Strategy<Value = String> {
        let body = prop_oneof![
            Just(r#""type":"hello","protocol":1,"nonce":"s","version":"1","guest_uid":1"#.to_owned()),
            (".{0,8}", any::<u64>(), "[a-z_]{0,12}").prop_map(|(host, count, reason)| {
                let host = serde_json::to_string(&host).unwrap();
                format!(r#""type":"denied","host":{host},"proto":"tcp","reason":"{reason}","count":{count},"first":1,"last":2"#)
            }),
            (any::<u64>(), any::<u64>()).prop_map(|(count, bytes)| {
                format!(r#""type":"totals","denied":{{"packet":{count},"new":1}},"connections":1,"failures":0,"bytes_up":{bytes},"bytes_down":0"#)
            }),
            Just(r#""type":"gap","kind":"outage","from":1,"to":2,"detail":"x\u202e""#.to_owned()),
            Just(r#""type":"exit","code":3,"signal":null,"end_reason":"exited""#.to_owned()),
            Just(r#""type":"bye","last_seq":3,"totals":{"denied":{},"connections":0,"failures":0,"bytes_up":0,"bytes_down":0}"#.to_owned()),
            Just(r#""type":"news","x":[{"y":"\u001b[0m"}]"#.to_owned()),
        ];
        (body, 0u64..9).prop_map(|(body, seq)| format!("{{{body},\"seq\":{seq},\"t\":{seq}}}\n"))
    }

    proptest! {
        #[test]
        fn messages_in_any_order_give_an_account_that_its_journal_gives(messages in proptest::collection::vec(message(), 0..9)) {
            report_frames(messages.concat().as_bytes());
        }

        #[test]
        fn damaged_messages_are_read_or_are_not(
            messages in proptest::collection::vec(message(), 1..4),
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        ) {
            let mut bytes = messages.concat().into_bytes();
            for (place, byte) in damage {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            report_frames(&bytes);
        }

        #[test]
        fn any_bytes_are_frames_or_are_not(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            report_frames(&bytes);
        }
    }

    #[test]
    fn an_account_is_final_only_if_it_was_closed() {
        report_frames(b"{\"seq\":1,\"t\":1}\n{\"type\":\"news\",\"seq\":2,\"t\":1}\n");
    }

    #[test]
    fn everything_that_fuzzers_have_found_holds() {
        replay("report_frames", report_frames);
    }
}
