//! Measures the steps of an executor.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use souffleur::beat::Beat;
use souffleur::error::StepError;
use souffleur::executor::vision::EncodedImage;
use souffleur::executor::{DeviceLost, Executor};
use souffleur::state::step::{RowResult, StepOutput, StepPlan};

/// A step that was computed.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub ended: Instant,
    pub took: Duration,
    /// Tokens of prompts.
    pub prefilled: usize,
    /// Units of the tower's work.
    pub units: usize,
}

/// The steps so far. Clones share them.
#[derive(Clone, Default)]
pub struct Steps(Arc<Mutex<Vec<Step>>>);

impl Steps {
    fn push(&self, step: Step) {
        let mut steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        steps.push(step);
    }

    /// The steps that ended after `since`.
    pub fn since(&self, since: Instant) -> Vec<Step> {
        let steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let after = steps.iter().filter(|step| step.ended > since);
        after.copied().collect()
    }
}

/// An executor on a CPU, whose steps are complete when they return.
pub struct Measured {
    pub inner: Box<dyn Executor>,
    pub steps: Steps,
}

impl Executor for Measured {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        let began = Instant::now();
        let output = self.inner.run(plan);
        let ended = Instant::now();
        let (prefilled, _) = plan.query_tokens();
        self.steps.push(Step {
            ended,
            took: ended - began,
            prefilled,
            units: plan.vision.as_ref().map_or(0, |slice| slice.units.len()),
        });
        output
    }

    fn recycle(&mut self, rows: Vec<RowResult>) {
        self.inner.recycle(rows);
    }

    fn take_encoded(&mut self) -> Vec<EncodedImage> {
        self.inner.take_encoded()
    }

    fn forget_unwanted(&mut self) {
        self.inner.forget_unwanted();
    }

    fn set_beat(&mut self, beat: Beat) {
        self.inner.set_beat(beat);
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.inner.reset()
    }
}
