//! Features that a call may ask for in OpenAI's terms and does not get yet.

use crate::field::{Keep, Shallow};
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use crate::server::foreign;
use crate::server::raw::Raw;
use crate::state::sampling;

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

/// Refuses what changes the answer also where a client without OpenAI's library leaves its `extra_body` as it is.
pub(super) fn inside_extra_body(fields: &mut Fields) -> Result<(), ApiError> {
    const NAME: &str = "extra_body";
    match fields.take_raw(NAME).filter(Raw::is_object) {
        Some(raw) => {
            let mut inside = fields.inside(NAME, &raw)?;
            foreign::refuse(&mut inside, &[])?;
            inside.refuse(&sampling::CONSTRAINTS)
        }
        None => Ok(()),
    }
}
