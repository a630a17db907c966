//! Flushes the cache for a host, by SGLang's rule: only while no request runs or waits.

use serde::Serialize;

use crate::plan::PlanStep;
use souffleur_base::error::RequestError;

use super::pipeline::OpenPlan;
use super::{Next, Scheduler};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CacheFlushed {
    pub flushed_tokens: usize,
    /// Pages of the removed tokens, which are now free.
    pub flushed_pages: usize,
    /// Tokens that stay cached: pinned prefixes, and prefixes of requests that arrived meanwhile.
    pub kept_tokens: usize,
}

/// Numbers of flush requests: a plan with a flush carries out all requests made before it.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    requested: u64,
    planned: u64,
    done: Vec<(u64, CacheFlushed)>,
}

impl Flushes {
    pub(super) fn are_requested(&self) -> bool {
        self.requested > self.planned
    }

    fn request(&mut self) -> u64 {
        self.requested += 1;
        self.requested
    }

    /// Assigns all requested flushes to the next plan, and returns the last one's number.
    fn plan(&mut self) -> u64 {
        self.planned = self.requested;
        self.planned
    }
}

impl Scheduler {
    /// Requests the eviction of every cached prefix without a pin; soft pins do not count. [`Scheduler::take_flushed`]
    /// returns the outcome after the next plan, under the returned number.
    ///
    /// # Errors
    /// [`RequestError::Busy`] while a request runs or waits; nothing is flushed then.
    pub fn flush_cache(&mut self) -> Result<u64, RequestError> {
        let (running, waiting) = (self.batch.len(), self.queue.len());
        if running + waiting > 0 {
            return Err(RequestError::Busy { running, waiting });
        }
        self.pipeline.note_change();
        Ok(self.hosts.flushes_mut().request())
    }

    /// Takes the completed flushes: the last number of each plan, and their joint outcome.
    pub fn take_flushed(&mut self) -> Vec<(u64, CacheFlushed)> {
        std::mem::take(&mut self.hosts.flushes_mut().done)
    }

    /// Opens a flush plan, which admits and decodes nothing.
    pub(super) fn flush(&mut self) -> Next {
        // The next plan considers requests that arrived since the flush was requested.
        self.pipeline.note_change();
        let number = self.hosts.flushes_mut().plan();
        self.hosts.pins_mut().release_all_soft();
        // K/V that a sequence would publish after its steps is dropped as well.
        for &seq in self.batch.ended() {
            if self.awaits_state(seq) {
                self.requests[seq].publish = false;
            }
        }
        let settle = self.take_settlements();
        let request = PlanStep {
            settle,
            flush: true,
            ..self.empty_request()
        };
        self.pipeline.open(Vec::new(), Some(number));
        Next::PlanStep(Box::new(request))
    }

    pub(super) fn take_flushed_pages(&mut self, open: &OpenPlan, flushed_pages: Option<usize>) {
        let (Some(number), Some(flushed_pages)) = (open.flush, flushed_pages) else {
            return;
        };
        let flushed = CacheFlushed {
            flushed_tokens: self.limits.page_size.tokens_in(flushed_pages),
            flushed_pages,
            kept_tokens: self.memory.protected_tokens(),
        };
        self.hosts.flushes_mut().done.push((number, flushed));
    }
}
