//! The engine and the limits of a call, which all readers of fields get.

use crate::call::CallLimits;
use crate::error::ApiError;
use crate::scoring;
use crate::state::{AppState, Loaded};

/// The engine that a call is for, and the limits of the call.
pub(super) struct Target<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) limits: CallLimits<'a>,
}

impl<'a> Target<'a> {
    /// Fails if no engine is loaded, or while the server drains.
    pub(super) fn of(state: &'a AppState) -> Result<Self, ApiError> {
        Ok(Self {
            loaded: state.serving()?,
            limits: scoring::limits(state)?,
        })
    }

    pub(super) fn served_name(&self) -> &str {
        &self.loaded.engine.model().served_model_name
    }
}
