//! Slices of a vision tower, which computes on the host: their vectors come back with the starts of rows.
//!
//! A slice runs on the executor's thread when its step is finished: the GPU computes the step meanwhile, and the next one
//! if that was launched before.

use super::CudaExecutor;
use crate::cpu::HostTower;
use crate::vision::{check_form, refuse_slice};
use souffleur_base::error::StepError;
use souffleur_state::step::{StepPlan, VisionSlice};

impl CudaExecutor {
    /// Enables slices of images in plans: `tower` encodes them.
    pub fn with_tower(mut self, tower: HostTower) -> Self {
        self.tower = Some(tower);
        self
    }

    pub(super) fn check_slice(&self, plan: &StepPlan) -> Result<(), StepError> {
        match (&self.tower, &plan.vision) {
            (Some(_), Some(slice)) => check_form(slice),
            (Some(_), None) => Ok(()),
            (None, _) => refuse_slice(plan),
        }
    }

    /// Runs the slice of a step that was launched.
    pub(super) fn run_slice(&mut self, slice: Option<&VisionSlice>) -> Result<(), StepError> {
        let (Some(tower), Some(slice)) = (&mut self.tower, slice) else {
            return Ok(());
        };
        tower.run(slice).map_err(|error| match error {
            StepError::Rejected(reason) | StepError::Lost(reason) => self.lose(reason),
        })
    }

    /// Drops the image that is encoded, and those that were not taken.
    pub(super) fn forget_image(&mut self) {
        if let Some(tower) = &mut self.tower {
            tower.forget();
        }
    }
}
