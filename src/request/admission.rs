//! Admission limits: permits count the requests and prompt tokens inside the engine.
//!
//! The actors' mailboxes are unbounded. So a request takes a permit before it is sent to the engine, and returns the
//! permit when its last event is sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use souffleur_base::error::RequestError;

#[derive(Debug)]
pub struct Admission {
    max_requests: usize,
    max_prompt_tokens: usize,
    requests: AtomicUsize,
    prompt_tokens: AtomicUsize,
    probes: AtomicUsize,
    is_closed: AtomicBool,
    /// Called for each admitted request that is dropped without its terminal event.
    on_loss: fn(),
    /// The host stops the engine: requests may be dropped.
    is_stopping: AtomicBool,
}

/// The number of permits reserved for health probes. Each server uses one; a process may run several servers.
const MAX_PROBES: usize = 8;

impl Admission {
    /// Admits at most `max_requests` requests and `max_prompt_tokens` prompt tokens at once. `on_loss` is called for each
    /// admitted request that is dropped without its terminal event, while its client waits and no host stops the engine.
    pub fn new(max_requests: usize, max_prompt_tokens: usize, on_loss: fn()) -> Arc<Self> {
        Arc::new(Self {
            max_requests,
            max_prompt_tokens,
            requests: AtomicUsize::new(0),
            prompt_tokens: AtomicUsize::new(0),
            probes: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            on_loss,
            is_stopping: AtomicBool::new(false),
        })
    }

    /// # Errors
    /// [`RequestError::Overloaded`] at the limit, [`RequestError::ShuttingDown`] once closed.
    pub fn admit(self: &Arc<Self>) -> Result<Permit, RequestError> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(RequestError::ShuttingDown);
        }
        if !take(&self.requests, 1, self.max_requests) {
            let queued = self.requests.load(Ordering::Relaxed);
            return Err(RequestError::Overloaded {
                what: "requests",
                queued,
                limit: self.max_requests,
            });
        }
        Ok(Permit {
            admission: self.clone(),
            prompt_tokens: 0,
            kind: PermitKind::Client,
        })
    }

    /// Takes a permit that is reserved for probes. So a full queue does not refuse the probe, and the probe takes no
    /// client's permit.
    ///
    /// # Errors
    /// As [`Admission::admit`].
    pub fn admit_probe(self: &Arc<Self>) -> Result<Permit, RequestError> {
        if self.is_closed() {
            return Err(RequestError::ShuttingDown);
        }
        if !take(&self.probes, 1, MAX_PROBES) {
            return Err(RequestError::Overloaded {
                what: "probes",
                queued: self.probes.load(Ordering::Relaxed),
                limit: MAX_PROBES,
            });
        }
        Ok(Permit {
            admission: self.clone(),
            prompt_tokens: 0,
            kind: PermitKind::Probe,
        })
    }

    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// The host stops the engine: a request that is dropped from now on is not lost.
    pub fn expect_drops(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Acquire)
    }

    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens.load(Ordering::Acquire)
    }
}

/// Adds `n` unless the sum exceeds `limit`. A request larger than the limit is admitted if it is alone.
fn take(counter: &AtomicUsize, n: usize, limit: usize) -> bool {
    counter
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
            (taken == 0 || taken.saturating_add(n) <= limit).then_some(taken.saturating_add(n))
        })
        .is_ok()
}

/// The permission for one request to be in the engine. A drop returns the permission.
#[derive(Debug)]
#[must_use]
pub struct Permit {
    admission: Arc<Admission>,
    prompt_tokens: usize,
    kind: PermitKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PermitKind {
    Client,
    Probe,
}

impl Permit {
    /// True for the permit of a probe, which does not count as a client's request.
    pub fn is_probe(&self) -> bool {
        self.kind == PermitKind::Probe
    }

    /// Takes note that the request is dropped without its terminal event.
    pub(crate) fn lost(&self) {
        let is_stopping = self.admission.is_stopping.load(Ordering::Acquire);
        if !self.is_probe() && !is_stopping {
            (self.admission.on_loss)();
        }
    }

    /// Counts the prompt's tokens: first an estimate, and the exact number once the prompt is encoded. Each count
    /// replaces the previous one.
    ///
    /// # Errors
    /// [`RequestError::Overloaded`] at the limit.
    pub fn charge_prompt(&mut self, prompt_tokens: usize) -> Result<(), RequestError> {
        if self.is_probe() {
            return Ok(());
        }
        let admission = &self.admission;
        admission
            .prompt_tokens
            .fetch_sub(std::mem::take(&mut self.prompt_tokens), Ordering::AcqRel);
        if !take(
            &admission.prompt_tokens,
            prompt_tokens,
            admission.max_prompt_tokens,
        ) {
            return Err(RequestError::Overloaded {
                what: "prompt tokens",
                queued: admission.prompt_tokens(),
                limit: admission.max_prompt_tokens,
            });
        }
        self.prompt_tokens = prompt_tokens;
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission
            .prompt_tokens
            .fetch_sub(self.prompt_tokens, Ordering::AcqRel);
        let counter = match self.kind {
            PermitKind::Client => &self.admission.requests,
            PermitKind::Probe => &self.admission.probes,
        };
        counter.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_and_clients_have_separate_permits() {
        let admission = Admission::new(1, 10, || ());
        let mut client = admission.admit().expect("the engine is empty");
        client.charge_prompt(10).expect("it fits");
        let mut probes: Vec<Permit> = (0..MAX_PROBES)
            .map(|_| admission.admit_probe().expect("a permit is reserved"))
            .collect();
        assert!(
            probes
                .iter_mut()
                .all(|probe| probe.charge_prompt(1).is_ok())
        );
        assert_eq!((admission.requests(), admission.prompt_tokens()), (1, 10));
        assert!(admission.admit_probe().is_err());
        drop(client);
        let client = admission.admit().expect("probes do not count");
        drop(probes);
        assert_eq!((admission.requests(), admission.prompt_tokens()), (1, 0));
        assert!(admission.admit_probe().is_ok_and(|probe| probe.is_probe()));
        drop(client);
        admission.close();
        assert_eq!(
            admission.admit_probe().err(),
            Some(RequestError::ShuttingDown)
        );
    }
}
