//! Parses `think` of a call: whether and how much the model reasons before its answer.

use serde_json::{Map, Value};

use super::target::Target;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::chat::reasoning::EFFORTS;
use souffleur_base::field::Field;

const NAME: &str = "think";
/// The effort that turns thinking off.
const NONE: &str = "none";

/// Returns the variables of the chat template that `think` sets; none without it, so that the template decides.
///
/// # Errors
/// 400 for an unknown level, and for thinking of a model that has no format of reasoning.
pub(super) fn read(
    fields: &mut Fields,
    model: &str,
    target: &Target<'_>,
) -> Result<Map<String, Value>, ApiError> {
    let mut variables = Map::new();
    let Some(value) = fields.take(NAME)? else {
        return Ok(variables);
    };
    let level = value.as_str().filter(|level| EFFORTS.contains(level));
    let thinks = match (value.as_bool(), level) {
        (Some(thinks), _) => thinks,
        (None, Some(level)) => level != NONE,
        (None, None) => {
            let wanted = format!("true, false, or one of {}", EFFORTS.join(", "));
            return Err(Field::new(NAME, &value).must_be(&wanted).into());
        }
    };
    if thinks && target.loaded.engine.model().formats.reasoning.is_none() {
        let text = format!("{model:?} does not support thinking: leave think out, or send false");
        return Err(ApiError::field(NAME, text));
    }
    for name in ["thinking", "enable_thinking"] {
        variables.insert(name.to_owned(), thinks.into());
    }
    if let Some(level) = level.filter(|_| thinks) {
        variables.insert("reasoning_effort".to_owned(), level.into());
    }
    Ok(variables)
}
