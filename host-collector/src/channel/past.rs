//! What another collector of the same run has left: its journal, and whom it had let in.

use std::path::Path;

use report::{Account, Answers, PeerEnd, Report, Seed};

use super::{admitted::Admitted, attendance::Reports, peer::Peer};

/// An account as far as it has come, and who was keeping it.
#[derive(Debug)]
pub(crate) struct Past {
    account: Account,
    /// Only where its hello is in the journal: a peer that was never welcomed cannot come back.
    admitted: Option<Admitted>,
}

impl Past {
    /// Reads the journal's lines. What is no report there was none when it came.
    pub(crate) fn of(run_dir: &Path, lines: &[u8], seed: Seed) -> Self {
        let mut account = Account::new(seed);
        for line in lines.split(|&b| b == b'\n').filter(|line| !line.is_empty()) {
            match Report::read(line) {
                Ok(report) => account.apply(&report.message),
                Err(_) => account.note_unreadable(),
            }
        }
        let admitted = Admitted::read(run_dir).filter(|_| account.hello().is_some());
        Self { account, admitted }
    }

    /// Whether the guest was started.
    pub(crate) const fn was_launched(&self) -> bool {
        self.account.enforcing().is_some()
    }

    /// What the container has said of lists that it was given.
    pub(crate) const fn answers(&self) -> &Answers {
        self.account.answers()
    }

    /// Who was welcomed, if anybody was, and a hold on it, if it is still there.
    ///
    /// Must be called within the runtime.
    pub(crate) fn standing(self) -> Standing {
        match self.admitted {
            None => Standing::Nobody(self.account),
            Some(admitted) => match admitted.find() {
                Some(peer) => Standing::Somebody(self.account, admitted, peer),
                None => Standing::Gone(Reports {
                    account: self.account,
                    peer: PeerEnd::Exited,
                    fault: None,
                    resumed: admitted.resumed,
                    transport: admitted.transport(),
                }),
            },
        }
    }
}

/// How a run stands when a collector takes it up.
#[derive(Debug)]
pub(crate) enum Standing {
    /// Its container has not introduced itself.
    Nobody(Account),
    /// Its container is there, and will come back.
    Somebody(Account, Admitted, Peer),
    /// Its container has ended: nothing more will be reported.
    Gone(Reports),
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const HELLO: &str =
        r#"{"type":"hello","protocol":1,"version":"1","guest_uid":1,"seq":1,"t":1}"#;
    const DENIED: &str = r#"{"type":"denied","host":"a.example","port":443,"proto":"tcp","reason":"not_allowed","count":3,"first":1,"last":1,"seq":2,"t":1}"#;

    fn past(dir: &Path, lines: &[&str]) -> Past {
        Past::of(dir, lines.join("\n").as_bytes(), Seed([0; 16]))
    }

    #[test]
    fn a_journal_has_no_secret_and_is_read_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let past = past(dir.path(), &[HELLO, DENIED]);
        assert_eq!(past.account.sequence().last(), 2);
        assert!(past.account.hello().is_some() && !past.was_launched());
        assert_eq!(past.account.totals().denied.values().sum::<u64>(), 3);
    }

    #[test]
    fn lines_that_were_no_messages_are_counted_again() {
        let dir = tempfile::tempdir().unwrap();
        let lines = [HELLO, super::super::session::UNREADABLE.trim_end(), DENIED];
        assert_eq!(past(dir.path(), &lines).account.unreadable(), 1);
    }

    #[tokio::test]
    async fn without_a_hello_in_the_journal_nobody_was_welcomed() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, _theirs) = tokio::net::UnixStream::pair().unwrap();
        let admitted = Admitted::of(&Peer::pin(&ours).unwrap()).unwrap();
        admitted.store(dir.path()).unwrap();
        assert!(matches!(
            past(dir.path(), &[]).standing(),
            Standing::Nobody(_)
        ));
        assert!(matches!(
            past(dir.path(), &[HELLO]).standing(),
            Standing::Somebody(..)
        ));
        fs::write(
            dir.path().join("admitted.json"),
            r#"{"pid":1,"start_time":0,"boot":"before","resumed":2}"#,
        )
        .unwrap();
        let Standing::Gone(reports) = past(dir.path(), &[HELLO]).standing() else {
            panic!("it is there")
        };
        assert_eq!((reports.peer, reports.resumed), (PeerEnd::Exited, 2));
    }
}
