//! What holds whatever a guest sends for a question.
#![expect(clippy::panic, reason = "what does not hold fails")]

use std::net::Ipv4Addr;

use hickory_resolver::proto::op::{Message, MessageType};

use super::{Question, RData, Records, Reply, Step, Transport, consider, rdata, reply::LIMIT};
use crate::proxy::Proxy;

/// Whatever is answered can be read, is an answer to this question and to no other, and fits the way
/// that it goes; only a plain question about a name on the list is asked of anybody.
///
/// # Panics
/// Where it does not hold.
pub fn question(message: &[u8]) {
    for via in [Transport::Udp, Transport::Tcp] {
        let proxy = Proxy::allowing("a.example, *.b.example, c.example:22, !d.b.example");
        match consider(message, via, &proxy) {
            Step::Silence => {
                let is_answer = message.get(2).is_some_and(|flags| flags & 0x80 != 0);
                assert!(
                    message.len() < 12 || is_answer,
                    "a question without an answer"
                );
            }
            Step::Answer(answer) => assert_answers(message, &answer, via),
            Step::Ask(lookup) => {
                let name = lookup.permit.name().as_str().to_owned();
                let listed =
                    matches!(&*name, "a.example" | "c.example") || name.ends_with(".b.example");
                assert!(listed && name != "d.b.example", "{name}");
                assert_eq!(name, lookup.question.name());
                assert_eq!(proxy.denials(), [], "asked for, and denied");
                assert_answers(message, &lookup.give_up(&proxy), via);
            }
        }
    }
    if let Ok(question) = Question::read(message) {
        for count in [1, 16, 255] {
            answered(&question, count, message);
        }
    }
}

fn answered(question: &Question, count: u8, message: &[u8]) {
    let data = (0..count).map(|n| RData::A(rdata::A(Ipv4Addr::new(203, 0, 113, n))));
    let reply = Reply::records(Records {
        data: data.collect(),
        ttl: 60,
    });
    for via in [Transport::Udp, Transport::Tcp] {
        let answer = reply.write(question, via);
        assert_answers(message, &answer, via);
        let read = parsed(&answer);
        let whole = read.answers.len() == usize::from(count);
        assert!(
            whole != read.metadata.truncation,
            "neither whole nor cut: {read:?}"
        );
        assert!(whole || via == Transport::Udp);
    }
}

/// Judged by the bytes, as a client would.
fn assert_answers(message: &[u8], answer: &[u8], via: Transport) {
    let read = parsed(answer);
    assert_eq!(read.metadata.message_type, MessageType::Response);
    assert_eq!(
        answer.first_chunk::<2>(),
        message.first_chunk::<2>(),
        "of another number"
    );
    let operation = |bytes: &[u8]| bytes.get(2).map(|flags| flags & 0x79);
    assert_eq!(
        operation(answer),
        operation(message),
        "of another operation"
    );
    match read.queries.as_slice() {
        // A header alone says that the question could not be read.
        [] => assert_eq!(answer.len(), 12),
        [query] => {
            let Ok(asked) = Question::read(message) else {
                panic!("an answer to what is no question: {read:?}")
            };
            assert_eq!(*query, asked.query);
            assert_eq!(
                query.name().to_ascii(),
                asked.query.name().to_ascii(),
                "in other letters"
            );
            for record in &read.answers {
                assert_eq!(record.name, *query.name());
            }
        }
        several => panic!("{} questions", several.len()),
    }
    assert!(
        via == Transport::Tcp || answer.len() <= usize::from(LIMIT),
        "{} bytes",
        answer.len()
    );
}

fn parsed(answer: &[u8]) -> Message {
    match Message::from_vec(answer) {
        Ok(message) => message,
        Err(error) => panic!("an answer that cannot be read: {error}: {answer:02x?}"),
    }
}

#[cfg(test)]
mod tests {
    use hickory_resolver::proto::rr::RecordType;
    use proptest::prelude::*;

    use super::{super::question::asking, *};

    fn name() -> impl Strategy<Value = String> {
        let label = prop::sample::select(vec![
            "a",
            "B",
            "c",
            "d",
            "example",
            "b",
            "_x",
            "xn--bcher-kva",
        ]);
        proptest::collection::vec(label, 0..5).prop_map(|labels| format!("{}.", labels.join(".")))
    }

    fn kind() -> impl Strategy<Value = RecordType> {
        any::<u16>().prop_map(|kind| RecordType::from(kind % 300))
    }

    proptest! {
        #[test]
        fn every_question_is_answered_as_it_was_asked(name in name(), kind in kind()) {
            question(&asking(&name, kind));
        }

        #[test]
        fn a_question_with_edns_is_answered_within_what_is_offered(name in name(), offered: u16, flags: u16, version in 0u8..2) {
            let mut message = asking(&name, RecordType::A);
            message[11] = 1;
            let [[high, low], [flag, s]] = [offered.to_be_bytes(), flags.to_be_bytes()];
            message.extend([0, 0, 41, high, low, 0, version, flag, s, 0, 0]);
            question(&message);
        }

        #[test]
        fn a_damaged_question_is_answered_or_refused(
            name in name(),
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut message = asking(&name, RecordType::AAAA);
            for (place, byte) in damage {
                let place = place.index(message.len());
                message[place] = byte;
            }
            question(&message);
        }

        #[test]
        fn any_bytes_are_a_question_or_are_not(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            question(&bytes);
            question(&[&[0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0], &bytes[..]].concat());
        }
    }
}
