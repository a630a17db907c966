//! Features that a call may ask for in OpenAI's terms and does not get yet.

use crate::field::{Field, Keep, Shallow};
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use crate::server::raw::Raw;
use crate::state::sampling;

/// Refuses tools that may be called. Those that none is chosen of ask for nothing, and the model is not told of them.
pub(super) fn tools(fields: &mut Fields) -> Result<(), ApiError> {
    for (choice_name, tools) in [("tool_choice", "tools"), ("function_call", "functions")] {
        let choice = fields.take(choice_name)?;
        match choice.as_ref().map(Shallow::as_str) {
            Some(Some("none")) => drop(fields.take_raw(tools)),
            None | Some(Some("auto")) => fields.refuse(&[tools])?,
            Some(_) => {
                fields.refuse(&[tools])?;
                return Err(ApiError::unsupported(choice_name));
            }
        }
    }
    Ok(())
}

/// Refuses modalities other than text, which is what there is anyway.
pub(super) fn modalities(fields: &mut Fields) -> Result<(), ApiError> {
    const NAME: &str = "modalities";
    let Some(raw) = fields.take_raw(NAME) else {
        return Ok(());
    };
    let value = raw.parse_seed(NAME, Keep(1))?;
    match &value {
        Shallow::List { items, len: 1, .. } if items[0].as_str() == Some("text") => Ok(()),
        value if value.asks_for_nothing() => Ok(()),
        _ => Err(ApiError::unsupported(NAME)),
    }
}

/// Refuses formats other than text.
pub(super) fn response_format(fields: &mut Fields) -> Result<(), ApiError> {
    const NAME: &str = "response_format";
    let Some(raw) = fields.take_raw(NAME) else {
        return Ok(());
    };
    let kind = match raw.is_object() {
        true => fields.inside(NAME, &raw)?.text("type"),
        false => None,
    };
    match kind.as_deref() {
        Some("text") => Ok(()),
        Some(_) => Err(ApiError::unsupported(NAME)),
        None => Err(Field::new(NAME, &raw.shallow(NAME)?)
            .must_be("{\"type\": \"text\"}")
            .into()),
    }
}

/// Refuses what is not here yet also where a client without OpenAI's library leaves its `extra_body` as it is.
pub(super) fn inside_extra_body(fields: &mut Fields) -> Result<(), ApiError> {
    const NAME: &str = "extra_body";
    match fields.take_raw(NAME).filter(Raw::is_object) {
        Some(raw) => fields.inside(NAME, &raw)?.refuse(&sampling::NOT_YET),
        None => Ok(()),
    }
}
