//! The cache emptied for a host, by SGLang's rule: only while nothing runs and nothing waits.

use serde::Serialize;

use crate::error::RequestError;
use crate::state::plan::PlanRequest;

use super::{Next, OpenPlan, Scheduler};

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
}

impl Scheduler {
    /// Asks to forget every cached prefix that no pin keeps. The answer comes with the next plan, in
    /// [`Scheduler::take_flushed`], under the number that is returned.
    ///
    /// # Errors
    /// [`RequestError::Busy`] while a request runs or waits; nothing is flushed then.
    pub fn flush_cache(&mut self) -> Result<u64, RequestError> {
        let running = self.running.len() + usize::from(self.chunked.is_some());
        let waiting = self.waiting.len() + self.retracted.len();
        if running + waiting > 0 {
            return Err(RequestError::Busy { running, waiting });
        }
        self.is_dirty = true;
        self.flushes.asked += 1;
        Ok(self.flushes.asked)
    }

    /// Takes the flushes that were carried out: the number of the last one of a plan, and what they did together.
    pub fn take_flushed(&mut self) -> Vec<(u64, CacheFlushed)> {
        std::mem::take(&mut self.flushes.done)
    }

    /// Pins that were asked for earlier are granted by a plan before that of the flush.
    pub(super) fn flush_is_due(&self) -> bool {
        self.flushes.are_asked() && !self.pins.has_demands()
    }

    /// Opens the plan of a flush, which admits nobody and decodes nothing.
    pub(super) fn flush(&mut self) -> Next {
        // Requests that came in since the flush was asked for are looked at by the plan after it.
        self.is_dirty = true;
        self.flushes.planned = self.flushes.asked;
        let settle = self.take_settlements();
        self.open = Some(OpenPlan {
            step: self.next_step,
            decode: Vec::new(),
            flush: Some(self.flushes.planned),
        });
        let request = PlanRequest {
            settle,
            flush: true,
            ..self.empty_request()
        };
        Next::Plan(Box::new(request))
    }

    /// Notes what the plan that was answered has flushed.
    pub(super) fn take_flushed_pages(&mut self, open: &OpenPlan, flushed_pages: Option<usize>) {
        let (Some(number), Some(flushed_pages)) = (open.flush, flushed_pages) else {
            return;
        };
        let flushed = CacheFlushed {
            flushed_tokens: self.limits.page_size.tokens_in(flushed_pages),
            flushed_pages,
            kept_tokens: self.cache.protected_tokens,
        };
        self.flushes.done.push((number, flushed));
    }
}
