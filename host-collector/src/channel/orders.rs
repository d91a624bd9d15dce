//! What a container is ordered. A channel that the engine brings may break with an order on its way,
//! so what was not answered is said again on the next one: process 1 does it once all the same.

use report::{Body, HostMessage, Received};
use tokio::sync::mpsc;

/// Orders that come in, and those that the container may not have heard.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    taken: Option<mpsc::Receiver<HostMessage>>,
    /// At most one list and one end: of each the latest counts.
    unanswered: Vec<HostMessage>,
}

impl Orders {
    /// Orders that come out of `taken`.
    pub(crate) fn of(taken: mpsc::Receiver<HostMessage>) -> Self {
        Self {
            taken: Some(taken),
            unanswered: Vec::new(),
        }
    }

    /// The next one, which is then taken for said; `None` if there will be none.
    ///
    /// Cancelled, it has taken none.
    pub(crate) async fn next(&mut self) -> Option<HostMessage> {
        let order = self.taken.as_mut()?.recv().await?;
        self.unanswered
            .retain(|said| std::mem::discriminant(said) != std::mem::discriminant(&order));
        self.unanswered.push(order.clone());
        Some(order)
    }

    /// Those that were said and not answered, the list before the end.
    pub(crate) fn unanswered(&self) -> &[HostMessage] {
        &self.unanswered
    }

    /// Takes note of an answer. An end is answered by the end.
    pub(crate) fn hear(&mut self, message: &Received) {
        let Body::Policy(report) = &message.body else {
            return;
        };
        self.unanswered.retain(|said| match said {
            HostMessage::Policy(order) => order.generation > report.generation,
            HostMessage::Welcome(_)
            | HostMessage::Ack { .. }
            | HostMessage::Stop { .. }
            | HostMessage::Unknown => true,
        });
    }
}

#[cfg(test)]
mod tests {
    use report::{List, PolicyOrder, PolicyOutcome, PolicyReport, Printable};

    use super::*;

    fn list(generation: u64) -> HostMessage {
        HostMessage::Policy(PolicyOrder {
            generation,
            digest: Printable::new("d"),
            list: List::Allow(vec!["a.test".into()]),
        })
    }

    fn answer(generation: u64, outcome: PolicyOutcome) -> Received {
        let report = PolicyReport {
            generation,
            digest: Printable::new("d"),
            outcome,
            detail: None,
        };
        Received {
            body: Body::Policy(report),
            seq: 1,
            t: 0,
        }
    }

    const STOP: HostMessage = HostMessage::Stop { grace_ms: 7 };

    async fn said(orders: &[HostMessage]) -> Orders {
        let (give, taken) = mpsc::channel(8);
        let mut said = Orders::of(taken);
        for order in orders {
            give.send(order.clone()).await.unwrap();
            assert_eq!(said.next().await.as_ref(), Some(order));
        }
        drop(give);
        assert_eq!(said.next().await, None);
        said
    }

    #[tokio::test]
    async fn what_was_said_is_unanswered_until_the_container_answers() {
        let mut orders = said(&[list(2), STOP]).await;
        assert_eq!(orders.unanswered(), [list(2), STOP]);
        orders.hear(&answer(1, PolicyOutcome::InForce));
        assert_eq!(orders.unanswered(), [list(2), STOP]);
        orders.hear(&answer(2, PolicyOutcome::Refused));
        assert_eq!(orders.unanswered(), [STOP]);
    }

    #[tokio::test]
    async fn of_several_the_latest_counts() {
        let later = HostMessage::Stop { grace_ms: 1 };
        let orders = said(&[list(2), STOP, list(3), later.clone()]).await;
        assert_eq!(orders.unanswered(), [list(3), later]);
    }

    #[tokio::test]
    async fn whoever_gives_no_orders_has_none_answered() {
        let mut orders = Orders::default();
        assert_eq!(orders.next().await, None);
        assert!(orders.unanswered().is_empty());
    }
}
