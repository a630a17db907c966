//! Runs the probe request that all clients of `/health_generate` share.
//!
//! At most one probe is in the engine, regardless of how many clients ask or disconnect. The probe has a reserved
//! admission permit, and its outcome also answers the clients of the next second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use actix_web::rt;
use tokio::sync::watch;

use super::error::ApiError;
use souffleur_base::ids::RequestId;
use souffleur_engine::EngineHandle;
use souffleur_request::{Event, GenerateRequest, Prompt};

/// Time for which the outcome of a probe answers later clients.
const FRESH: Duration = Duration::from_secs(1);

/// The last probe, which may still be in flight.
#[derive(Default)]
pub(super) struct Probe(Mutex<Option<PendingProbe>>);

type PendingProbe = watch::Receiver<Option<ProbeEnd>>;

struct ProbeEnd {
    at: Instant,
    outcome: Result<(), ApiError>,
}

impl Probe {
    /// Returns the outcome of the last probe if that is in flight or fresh, otherwise of a new probe.
    pub(super) async fn outcome(
        &self,
        engine: &EngineHandle,
        timeout_s: u32,
    ) -> Result<(), ApiError> {
        let mut pending = self.join(|sender| {
            // Spawned, because this handler is dropped when its client disconnects.
            rt::spawn(run(engine.clone(), timeout_s, sender));
        });
        let lost = || ApiError::interrupted("the health check's server thread stopped: try again");
        let ended = pending.wait_for(Option::is_some).await;
        let ended = ended.map_err(|_| lost())?;
        let outcome = ended.as_ref().map(|ended| ended.outcome.clone());
        outcome.unwrap_or_else(|| Err(lost()))
    }

    fn join(&self, begin: impl FnOnce(watch::Sender<Option<ProbeEnd>>)) -> PendingProbe {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pending) = last.as_ref().filter(|pending| is_valid(pending)) {
            return pending.clone();
        }
        let (sender, pending) = watch::channel(None);
        *last = Some(pending.clone());
        begin(sender);
        pending
    }
}

fn is_valid(pending: &PendingProbe) -> bool {
    match pending.borrow().as_ref() {
        Some(ended) => ended.at.elapsed() < FRESH,
        // An error means that the worker of the probe has stopped: the probe will never end.
        None => pending.has_changed().is_ok(),
    }
}

async fn run(engine: EngineHandle, timeout_s: u32, sender: watch::Sender<Option<ProbeEnd>>) {
    let deadline = Duration::from_secs(timeout_s.into());
    let outcome = rt::time::timeout(deadline, one_token(&engine)).await;
    let outcome = outcome.unwrap_or_else(|_| Err(ApiError::no_token(timeout_s)));
    let at = Instant::now();
    sender.send_replace(Some(ProbeEnd { at, outcome }));
}

async fn one_token(engine: &EngineHandle) -> Result<(), ApiError> {
    let token = engine.model().eos_token_ids.first().copied().unwrap_or(0);
    let mut request = GenerateRequest::new(Prompt::Tokens([token].into()));
    request.rid = RequestId::new(format!("health-check-{}", RequestId::random()));
    request.sampling.max_new_tokens = 1;
    request.sampling.temperature = 0.0;
    request.is_streaming = false;
    let mut generation = engine.probe(request)?;
    while let Some(event) = generation.next().await {
        if let Event::Failed(error) = event {
            return Err(error.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_share_one_probe_and_its_outcome_while_it_is_fresh() {
        let probe = Probe::default();
        let senders = std::cell::RefCell::new(Vec::new());
        let join = || probe.join(|sender| senders.borrow_mut().push(sender));
        let ended_at = |at| ProbeEnd {
            at,
            outcome: Ok(()),
        };
        drop(join());
        join();
        assert_eq!(senders.borrow().len(), 1, "the first client has left");
        senders.borrow()[0].send_replace(Some(ended_at(Instant::now() + FRESH)));
        join();
        assert_eq!(senders.borrow().len(), 1, "the outcome is fresh");
        let long_ago = Instant::now().checked_sub(FRESH);
        senders.borrow()[0].send_replace(long_ago.map(ended_at));
        join();
        assert_eq!(senders.borrow().len(), 2, "the outcome is old");
        senders.borrow_mut().clear();
        join();
        assert_eq!(senders.borrow().len(), 1, "the last probe was lost");
    }
}
