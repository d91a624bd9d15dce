//! What the host orders while the guest runs: another list, in its two steps, or the end.

use std::time::Duration;

use report::{Body, PolicyReport};
use tokio::time::Instant;

use super::Session;
use crate::{
    guest::Guest,
    steering::{Next, Order, Step},
};

impl Session {
    /// Does what the host orders.
    pub(super) fn obey(&mut self, orders: Vec<Order>, guest: &Guest) {
        for order in orders {
            match order {
                Order::Policy(order) => {
                    let refused = self.steering.take(order);
                    self.tell(refused);
                }
                Order::Stop { grace_ms } => {
                    // Said again by the next collector, or by another verb, it is the same end.
                    if self.kill_at.is_none() {
                        guest.stop();
                    }
                    let at = Instant::now() + Duration::from_millis(grace_ms).min(LONGEST_GRACE);
                    self.kill_at = Some(self.kill_at.map_or(at, |sooner| sooner.min(at)));
                }
            }
        }
        self.steer();
    }

    /// Brings lists into force as far as that goes now.
    pub(super) fn steer(&mut self) {
        loop {
            let decider = &self.decider;
            let arrived = self
                .steering
                .arrived(decider.decides_by(), || decider.shortfall());
            self.tell(arrived);
            match self.steering.step() {
                Some(Step::Follow(next)) => self.follow(*next),
                Some(Step::Tell(report)) => self.tell(Some(report)),
                None => return,
            }
        }
    }

    /// The rules first: whatever comes of the rest, they hold the guest to the new list.
    fn follow(&mut self, next: Next) {
        if self.decider.has_ended() {
            let refused = self
                .steering
                .give_up("nobody can follow it any more: the run ends");
            return self.tell(refused);
        }
        if let Err(failure) = self.decider.follow(next, &mut self.firewall) {
            let refused = self.steering.give_up(&failure.one_line());
            self.tell(refused);
        }
    }

    /// What was counted before is reported before, so that it counts by the list before.
    fn tell(&mut self, report: Option<PolicyReport>) {
        if let Some(report) = report {
            self.flush();
            self.account.outbox.push(Body::Policy(report));
        }
    }
}

/// However patient the host is.
const LONGEST_GRACE: Duration = Duration::from_secs(24 * 60 * 60);
