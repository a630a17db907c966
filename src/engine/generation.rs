//! A request in flight, as its host sees it.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

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
    /// When the last events must have arrived, once the failure of the engine was noticed.
    last_events_by: Option<Instant>,
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
            last_events_by: None,
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
            () = silence(&mut self.failure, &mut self.last_events_by) => None,
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

/// Returns when the engine has failed, and its last events should have arrived. A host may drop this and call it again
/// at short intervals, so the time is kept in `last_events_by`.
async fn silence(failure: &mut FailureWatch, last_events_by: &mut Option<Instant>) {
    let by = match *last_events_by {
        Some(by) => by,
        None => {
            let has_failed = failure.wait_for(Option::is_some).await.is_ok();
            if !has_failed {
                // It has stopped in order, with all events.
                std::future::pending::<()>().await;
            }
            *last_events_by.insert(Instant::now() + LAST_EVENTS)
        }
    };
    tokio::time::sleep_until(by).await;
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failed_engine_ends_a_request_whose_host_waits_for_short_times() {
        // The hung Tokenizer keeps the sender.
        let (_events, received) = mpsc::channel(1);
        let (failure, failed) = watch::channel(None);
        let flag = CancelFlag::default();
        let canceller = Canceller::new(RequestId::new("a"), flag, AddressSlot::default());
        let mut generation = Generation::new(received, canceller, failed);
        let tick = Duration::from_millis(100);
        assert!(timeout(tick, generation.next()).await.is_err());
        failure.send_replace(Some("a thread hangs".into()));
        let mut n_ticks = 0;
        let event = loop {
            match timeout(tick, generation.next()).await {
                Ok(event) => break event,
                Err(_) => n_ticks += 1,
            }
            assert!(n_ticks < 10, "the request does not end");
        };
        let is_down = matches!(event, Some(Event::Failed(RequestError::EngineDown(_))));
        assert!(is_down, "{event:?}");
        assert!(n_ticks > 0, "the last events have no time to arrive");
        assert!(generation.next().await.is_none());
    }
}
