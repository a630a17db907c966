//! The cache emptied for a host, by SGLang's rule: only while nothing runs and nothing waits.

use serde::Serialize;

use crate::error::RequestError;
use crate::state::plan::PlanStep;

use super::pipeline::OpenPlan;
use super::{Next, Scheduler};

/// The outcome of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CacheFlushed {
    /// Tokens that were cached and are forgotten.
    pub flushed_tokens: usize,
    /// Their pages, which are free now.
    pub flushed_pages: usize,
    /// Tokens that stay cached: those of pinned prefixes, and of a request that came in meanwhile.
    pub kept_tokens: usize,
}

/// Flushes by number: each plan of one carries out all that were asked for before it.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    asked: u64,
    planned: u64,
    done: Vec<(u64, CacheFlushed)>,
}

impl Flushes {
    pub(super) fn are_asked(&self) -> bool {
        self.asked > self.planned
    }

    fn ask(&mut self) -> u64 {
        self.asked += 1;
        self.asked
    }

    /// Has the next plan carry out all that were asked for, and returns the number of the last one.
    fn plan(&mut self) -> u64 {
        self.planned = self.asked;
        self.planned
    }
}

impl Scheduler {
    /// Asks to forget every cached prefix that no pin keeps; soft pins keep none. The answer comes with the next plan, in
    /// [`Scheduler::take_flushed`], under the number that is returned.
    ///
    /// # Errors
    /// [`RequestError::Busy`] while a request runs or waits; nothing is flushed then.
    pub fn flush_cache(&mut self) -> Result<u64, RequestError> {
        let (running, waiting) = (self.batch.len(), self.queue.len());
        if running + waiting > 0 {
            return Err(RequestError::Busy { running, waiting });
        }
        self.pipeline.note_change();
        Ok(self.hosts.flushes_mut().ask())
    }

    /// Takes the flushes that were carried out: the number of the last one of a plan, and what they did together.
    pub fn take_flushed(&mut self) -> Vec<(u64, CacheFlushed)> {
        std::mem::take(&mut self.hosts.flushes_mut().done)
    }

    /// Opens the plan of a flush, which admits nobody and decodes nothing.
    pub(super) fn flush(&mut self) -> Next {
        // Requests that came in since the flush was asked for are looked at by the plan after it.
        self.pipeline.note_change();
        let number = self.hosts.flushes_mut().plan();
        self.hosts.pins_mut().yield_all();
        // What a sequence would publish once its steps are done is forgotten too.
        for &seq in self.batch.ended() {
            if self.awaits_its_state(seq) {
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

    /// Notes what the plan that was answered has flushed.
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
