//! The trait [`Executor`], which runs steps, and its implementations.
//!
//! A [`StepPlan`] contains rows, positions and pages only; tensors, weights and KV buffers are private to the executor.
//! Every implementation runs on its own OS thread and receives steps in the order of their
//! [`StepId`](souffleur_base::ids::StepId).

#[doc(hidden)]
pub mod calibration;
pub mod chaos;
mod check;
#[doc(hidden)]
pub mod cpu;
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub mod cuda;
pub mod ended;
pub mod fake;
pub mod host;
#[doc(hidden)]
pub mod logits;
#[doc(hidden)]
pub mod memory_plan;
#[doc(hidden)]
pub mod noise;
mod one_row;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, unused_imports))]
mod ranks;
mod results;
mod row;
mod rows;
mod script;
pub mod scripted;
pub mod speculation;
#[doc(hidden)]
pub mod taught;
pub mod vision;
mod wanted;

use std::sync::Arc;

pub use self::ranks::Ranks;
use crate::taught::Teacher;
use crate::vision::EncodedImage;
use souffleur_base::beat::Beat;
use souffleur_base::error::StepError;
use souffleur_state::step::{RowResult, StepOutput, StepPlan};

/// Runs steps: owns the weights, the KV buffers, the page table and the sampler.
///
/// [`Executor::launch`] takes steps in the order of their ids. An executor with an asynchronous device returns
/// [`Launch::UnderWay`], and gets the next step before [`Executor::finish`] returns the current step's result. An
/// executor that computes on the calling thread implements only [`Executor::run`].
pub trait Executor: Send {
    /// Runs one step to its end and returns one result for each row of the plan, in the plan's order. No step may be
    /// in flight.
    ///
    /// # Errors
    /// [`StepError::Rejected`] when nothing was launched: no KV was written and the rows may be planned
    /// again. [`StepError::Lost`] for anything later.
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError>;

    /// Begins a step, and returns the output if the step is already complete.
    ///
    /// At most [`PIPELINE_DEPTH`](souffleur_state::step::PIPELINE_DEPTH) steps are in flight at once. Rows, pages and
    /// tokens of a step may depend on the steps in flight: the device runs them in order.
    ///
    /// # Errors
    /// As [`Executor::run`]. The steps in flight are not affected by a plan that is rejected.
    fn launch(&mut self, plan: &StepPlan) -> Result<Launch, StepError> {
        self.run(plan).map(Launch::Done)
    }

    /// Whether [`Executor::finish`] would return without waiting.
    fn is_finished(&mut self) -> bool {
        true
    }

    /// Waits for the oldest step in flight and returns its output.
    ///
    /// # Errors
    /// [`StepError::Lost`], also when no step is in flight.
    fn finish(&mut self) -> Result<StepOutput, StepError> {
        Err(StepError::Lost("no step is in flight".to_owned()))
    }

    /// Takes back the results of an earlier step for reuse; by default they are dropped.
    fn recycle(&mut self, rows: Vec<RowResult>) {
        drop(rows);
    }

    /// Takes the images that steps have encoded to their end. Asked after each step that succeeded; by default there are
    /// none. An executor that wraps another one must call the other one's method.
    fn take_encoded(&mut self) -> Vec<EncodedImage> {
        Vec::new()
    }

    /// Frees the memory of an image that is encoded in part and whose requests were cancelled. Called twice a second while
    /// no step is in flight; a step does it by itself. By default there is none. An executor that wraps another one must
    /// call the other one's method.
    fn forget_unwanted(&mut self) {}

    /// Called once, before the first step. The engine counts each step as a sign of life; an executor whose steps can
    /// take longer than the watchdog's timeout must also beat during a step, for example at the end of each layer. An
    /// executor that wraps another one should call the other one's method.
    fn set_beat(&mut self, beat: Beat) {
        drop(beat);
    }

    /// Whether the device was lost although no step has failed, as when another engine of this process has lost the
    /// CUDA context that both share. Asked while no step is in flight; [`Executor::reset`] then returns an error. An
    /// executor that wraps another one must call the other one's method.
    fn is_lost(&self) -> bool {
        false
    }

    /// Forgets all rows, the steps in flight, and the partial work of a step that panicked. Weights and KV memory
    /// stay.
    ///
    /// Called after a lost step, after a panic in another method, and before the steps of another unit. Later plans
    /// start their rows anew; they may reuse ids of rows, but not of steps. An executor that wraps another one must
    /// call the other one's method.
    ///
    /// # Errors
    /// If the device cannot run further steps: a new executor must be loaded.
    fn reset(&mut self) -> Result<(), DeviceLost>;

    /// Runs a work item that panics on the executor's compute threads, as a faulty kernel does: for
    /// [`chaos`]. By default the calling thread panics.
    fn run_faulty_item(&mut self, cause: &str) {
        panic!("{cause}");
    }

    /// For measurements: takes the tokens of given outputs instead of the sampled ones, in rows that start from now on.
    /// Returns false if the executor cannot, as by default.
    #[doc(hidden)]
    fn teach(&mut self, teacher: Arc<Teacher>) -> bool {
        drop(teacher);
        false
    }
}

/// The device cannot run further steps, as after the loss of a CUDA context. The text says why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceLost(pub String);

#[derive(Debug)]
pub enum Launch {
    Done(StepOutput),
    /// The device runs the step, or will after the previous one; [`Executor::finish`] returns the output.
    UnderWay,
}
