//! Lets the container in: for the first time, or again after its collector was killed.

use std::{io, pin::Pin, sync::Arc};

use report::Account;

use super::{
    admitted::Admitted,
    attendance::{Refusals, Reports},
    door::Door,
    greeting::{Expected, Greeted, Refusal},
    past::{Past, Standing},
    peer::Peer,
    terms::Terms,
};

/// A container that was let in.
#[derive(Debug)]
pub(crate) struct Entered {
    pub(crate) greeted: Greeted,
    /// As another collector could find it again.
    pub(crate) who: Option<Admitted>,
    /// What it has reported so far.
    pub(crate) account: Account,
}

/// Waits for whoever is due, until it cannot come any more or the run is `over`.
///
/// # Errors
/// The reports that there are, where nobody came.
pub(crate) async fn enter(
    door: Door,
    terms: &Terms,
    past: Past,
    refusals: &mut Refusals,
    over: Pin<&mut impl Future<Output = ()>>,
) -> Result<Entered, Option<Reports>> {
    match past.standing() {
        Standing::Gone(reports) => Err(Some(reports)),
        Standing::Nobody(account) => {
            let expected = Expected::Newcomer {
                nonce: terms.nonce.clone(),
                policy_digest: terms.policy_digest.clone(),
            };
            let greeted = tokio::select! {
                admitted = door.admit(Arc::new(expected), refusals) => admitted,
                () = over => return Err(None),
            };
            let greeted = greeted.map_err(|error| {
                refusals.note(Refusal::Gone(error));
                None
            })?;
            let who = Admitted::of(&greeted.peer);
            Ok(Entered {
                greeted,
                who,
                account,
            })
        }
        Standing::Somebody(account, mut who, peer) => {
            let expected = Expected::Returner {
                token: terms.resume_token.clone(),
                process: who.identity(),
            };
            let greeted: Option<io::Result<Greeted>> = tokio::select! {
                admitted = door.admit(Arc::new(expected), refusals) => Some(admitted),
                () = peer.exited() => None,
                () = over => None,
            };
            let Some(Ok(greeted)) = greeted else {
                return Err(Some(left(account, &who, &peer)));
            };
            who.resumed = who.resumed.saturating_add(1);
            Ok(Entered {
                greeted,
                who: Some(who),
                account,
            })
        }
    }
}

/// What there is of a container that did not come back.
fn left(account: Account, who: &Admitted, peer: &Peer) -> Reports {
    Reports {
        account,
        peer: peer.state(),
        fault: None,
        resumed: who.resumed,
    }
}
