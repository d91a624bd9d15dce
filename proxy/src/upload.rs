//! The body of a request, on its way while its response may already come.

use std::pin::{Pin, pin};

use crate::body::{BodyError, Carried};

/// The carrying of a body, if there is one.
pub(crate) struct Upload<F> {
    carrying: Option<Pin<Box<F>>>,
    carried: Carried,
}

impl<F: Future<Output = Result<Carried, BodyError>>> Upload<F> {
    pub(crate) fn new(carrying: Option<F>) -> Self {
        Self {
            carrying: carrying.map(Box::pin),
            carried: Carried::Whole,
        }
    }

    /// Runs `other` to its end, and carries on with the body meanwhile.
    ///
    /// # Errors
    /// When the body cannot be had from the client; `other` is given up then.
    pub(crate) async fn beside<T>(
        &mut self,
        other: impl Future<Output = T>,
    ) -> Result<T, BodyError> {
        let mut other = pin!(other);
        while let Some(carrying) = &mut self.carrying {
            tokio::select! {
                biased;
                carried = carrying => {
                    self.carrying = None;
                    self.carried = carried?;
                }
                done = &mut other => return Ok(done),
            }
        }
        Ok(other.await)
    }

    /// Whether the whole body was taken from the client: then what follows is its next request.
    pub(crate) fn is_whole(&self) -> bool {
        self.carrying.is_none() && self.carried == Carried::Whole
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn the_body_is_carried_while_the_response_is_awaited() {
        let (sent, arrived) = tokio::sync::oneshot::channel();
        let carrying = async {
            sent.send(()).unwrap();
            Ok(Carried::Whole)
        };
        let mut upload = Upload::new(Some(carrying));
        upload.beside(arrived).await.unwrap().unwrap();
        assert!(upload.is_whole());
    }

    #[tokio::test]
    async fn a_response_does_not_wait_for_the_body() {
        let mut upload = Upload::new(Some(pending()));
        assert_eq!(upload.beside(ready(7)).await.unwrap(), 7);
        assert!(!upload.is_whole());
    }

    #[tokio::test]
    async fn a_body_that_was_carried_in_part_is_not_whole() {
        let mut upload = Upload::new(Some(ready(Ok(Carried::Partly))));
        upload.beside(tokio::task::yield_now()).await.unwrap();
        assert!(!upload.is_whole());
    }

    #[tokio::test]
    async fn a_client_that_fails_ends_the_waiting() {
        let mut upload = Upload::new(Some(ready(Err(BodyError::Chunks))));
        assert!(upload.beside(pending::<()>()).await.is_err());
    }

    #[tokio::test]
    async fn no_body_is_a_whole_one() {
        let mut upload = Upload::new(None::<std::future::Pending<_>>);
        assert!(upload.is_whole());
        assert_eq!(upload.beside(ready(7)).await.unwrap(), 7);
    }
}
