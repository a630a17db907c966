//! Checks and converts the token counts of traces.

use super::error::{Place, SimulateError};
use super::trace::MAX_TOKENS;

/// Converts a float with a whole value, such as 5.0.
pub(super) fn whole(number: f64) -> Option<u64> {
    let is_whole = number.fract() == 0.0 && (0.0..=9e15).contains(&number);
    is_whole.then_some(number as u64)
}

pub(super) fn tokens(place: Place<'_>, field: &str, value: u64) -> Result<u32, SimulateError> {
    let tokens = u32::try_from(value)
        .ok()
        .filter(|tokens| *tokens <= MAX_TOKENS);
    tokens.ok_or_else(|| place.error(field, format!("is {value}, must be at most {MAX_TOKENS}")))
}
