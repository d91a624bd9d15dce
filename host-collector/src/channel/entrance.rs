//! Lets the container in: for the first time, or again after its collector was killed.

use std::{io, pin::Pin, sync::Arc};

use report::{Account, PeerEnd};

use super::{
    admitted::Admitted,
    attendance::{Refusals, Reports},
    door::Door,
    greeting::{Expected, Greeted, Refusal},
    past::Standing,
    terms::Terms,
    way::{Transport, Way},
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

/// The ways between a container and this process.
#[derive(Debug)]
pub(crate) struct Entrances {
    /// It comes out and knocks. Closed for good behind the first who is let in.
    pub(crate) door: Option<Door>,
    /// It is called on.
    pub(crate) way: Option<Way>,
    /// What came of calling on it in vain.
    pub(crate) in_vain: Refusals,
}

impl Entrances {
    /// Leaves one open only: whoever was welcomed comes back the way that it came.
    fn keep_to(&mut self, transport: Transport) {
        match transport {
            Transport::Socket => self.way = None,
            Transport::Exec => self.door = None,
            Transport::Auto => {}
        }
    }

    /// Waits for the peer that says the right thing, whichever way it takes.
    async fn admit(&mut self, expected: Expected, refusals: &mut Refusals) -> io::Result<Greeted> {
        let expected = Arc::new(expected);
        let Self { door, way, in_vain } = self;
        let door = door.take();
        let knocked = async {
            match door {
                Some(door) => door.admit(Arc::clone(&expected), refusals).await,
                None => std::future::pending().await,
            }
        };
        let called_on = async {
            match way {
                Some(way) => way.come_in(&expected, in_vain).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            admitted = knocked => admitted,
            greeted = called_on => Ok(greeted),
        }
    }
}

/// Waits for whoever is due, until it cannot come any more or the run is `over`.
///
/// # Errors
/// The reports that there are, where nobody came.
pub(crate) async fn enter(
    entrances: &mut Entrances,
    terms: &Terms,
    standing: Standing,
    refusals: &mut Refusals,
    over: Pin<&mut impl Future<Output = PeerEnd>>,
) -> Result<Entered, Option<Reports>> {
    match standing {
        Standing::Gone(reports) => Err(Some(reports)),
        Standing::Nobody(account) => {
            let expected = Expected::Newcomer {
                nonce: terms.nonce.clone(),
                policy_digest: terms.policy_digest.clone(),
            };
            let greeted = tokio::select! {
                admitted = entrances.admit(expected, refusals) => admitted,
                _ = over => return Err(None),
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
            entrances.keep_to(who.transport());
            let expected = Expected::Returner {
                token: terms.resume_token.clone(),
                process: who.identity(),
            };
            let greeted: Result<io::Result<Greeted>, PeerEnd> = tokio::select! {
                admitted = entrances.admit(expected, refusals) => Ok(admitted),
                () = peer.exited() => Err(PeerEnd::Exited),
                container = over => Err(container),
            };
            let greeted = match greeted {
                Ok(Ok(greeted)) => greeted,
                Ok(Err(_)) => return Err(Some(left(account, &who, peer.state(PeerEnd::Alive)))),
                Err(container) => {
                    let end = peer.settled(container).await;
                    return Err(Some(left(account, &who, end)));
                }
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
fn left(account: Account, who: &Admitted, peer: PeerEnd) -> Reports {
    Reports {
        account,
        peer,
        fault: None,
        resumed: who.resumed,
        transport: who.transport(),
    }
}
