//! A request in flight, as its host sees it.

use std::time::Duration;

use tokio::sync::mpsc;

use souffleur_actors::messages::CancelRequest;
use souffleur_actors::watchdog::{AddressSlot, FailureWatch};
use souffleur_base::error::RequestError;
use souffleur_base::ids::RequestId;
use souffleur_request::{CancelFlag, Event};

/// The time in which the Tokenizer of an engine that has failed must send the last events.
const LAST_EVENTS: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub struct Canceller {
    rid: RequestId,
    flag: CancelFlag,
    doors: AddressSlot,
}

impl Canceller {
    pub(super) fn new(rid: RequestId, flag: CancelFlag, doors: AddressSlot) -> Self {
        Self { rid, flag, doors }
    }

    pub fn rid(&self) -> &RequestId {
        &self.rid
    }

    /// Cancels; the terminal event still comes.
    pub fn cancel(&self) {
        self.flag.raise();
        let doors = self.doors.read();
        // Without actors, the next Scheduler reads the flag when it resumes the request.
        if let Some(doors) = doors.ok().as_ref().and_then(|doors| doors.as_ref()) {
            doors.cancel.do_send(CancelRequest {
                rid: self.rid.clone(),
                flag: Some(self.flag.clone()),
            });
        }
    }
}

/// One request in flight. Dropping it before its terminal event cancels the request.
pub struct Generation {
    events: mpsc::Receiver<Event>,
    canceller: Canceller,
    failure: FailureWatch,
    has_ended: bool,
}

impl Generation {
    pub(super) fn new(
        events: mpsc::Receiver<Event>,
        canceller: Canceller,
        failure: FailureWatch,
    ) -> Self {
        Self {
            events,
            canceller,
            failure,
            has_ended: false,
        }
    }

    pub fn rid(&self) -> &RequestId {
        self.canceller.rid()
    }

    /// A handle that cancels the request from elsewhere, even before the engine has handled it.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// The next event; `None` after the terminal one. Cancel-safe. When the engine has failed, it needs a tokio runtime
    /// with a timer: the thread that sends the events may hang.
    pub async fn next(&mut self) -> Option<Event> {
        if self.has_ended {
            return None;
        }
        let event = tokio::select! {
            biased;
            event = self.events.recv() => event,
            () = silence(&mut self.failure) => None,
        };
        let event = event.unwrap_or_else(|| {
            Event::Failed(RequestError::EngineDown(
                "it stopped before the request had ended: send the request again".to_owned(),
            ))
        });
        self.has_ended = event.is_terminal();
        Some(event)
    }

    /// Cancels; the terminal event still comes.
    pub fn cancel(&self) {
        self.canceller.cancel();
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.has_ended {
            self.cancel();
        }
    }
}

/// Returns when the engine has failed, and its last events should have arrived.
async fn silence(failure: &mut FailureWatch) {
    let has_failed = failure.wait_for(Option::is_some).await.is_ok();
    if !has_failed {
        // It has stopped in order, with all events.
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(LAST_EVENTS).await;
}
