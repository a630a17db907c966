//! How much may be inside the engine at once: requests and prompt tokens, counted by permits.
//!
//! A mailbox bounds nothing in actix, so the door does: a permit is taken before a request is sent to the
//! engine and given back when its last event goes out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::error::RequestError;

/// The two limits and what is taken of them.
#[derive(Debug)]
pub struct Admission {
    max_requests: usize,
    max_prompt_tokens: usize,
    requests: AtomicUsize,
    prompt_tokens: AtomicUsize,
    is_closed: AtomicBool,
}

impl Admission {
    /// Opens the door for at most so many requests and prompt tokens at once.
    pub fn new(max_requests: usize, max_prompt_tokens: usize) -> Arc<Self> {
        Arc::new(Self {
            max_requests,
            max_prompt_tokens,
            requests: AtomicUsize::new(0),
            prompt_tokens: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
        })
    }

    /// Takes a permit for one request.
    ///
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
        })
    }

    /// Takes no more requests.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// True once closed.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Requests inside.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Acquire)
    }

    /// Prompt tokens inside.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens.load(Ordering::Acquire)
    }
}

/// Adds `n` unless that passes `limit`; a single request larger than the limit is let in alone.
fn take(counter: &AtomicUsize, n: usize, limit: usize) -> bool {
    counter
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
            (taken == 0 || taken.saturating_add(n) <= limit).then_some(taken.saturating_add(n))
        })
        .is_ok()
}

/// The right of one request to be inside; given back on drop.
#[derive(Debug)]
#[must_use]
pub struct Permit {
    admission: Arc<Admission>,
    prompt_tokens: usize,
}

impl Permit {
    /// Counts the request's prompt: an estimate at the door, its length once it is encoded. Replaces what was counted.
    ///
    /// # Errors
    /// [`RequestError::Overloaded`] at the limit.
    pub fn charge_prompt(&mut self, prompt_tokens: usize) -> Result<(), RequestError> {
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
        self.admission.requests.fetch_sub(1, Ordering::AcqRel);
    }
}
