//! Refuses unsupported `modalities` and unsupported fields inside `extra_body`.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::foreign;
use crate::raw::Raw;
use souffleur_base::field::{Keep, Shallow};
use souffleur_state::sampling;

pub(super) fn modalities(fields: &mut Fields) -> Result<(), ApiError> {
    const NAME: &str = "modalities";
    let Some(raw) = fields.take_raw(NAME) else {
        return Ok(());
    };
    let value = raw.parse_with(NAME, Keep(1))?;
    match &value {
        Shallow::List { items, len: 1, .. } if items[0].as_str() == Some("text") => Ok(()),
        value if value.has_no_effect() => Ok(()),
        _ => Err(ApiError::unsupported(NAME)),
    }
}

/// Refuses unsupported fields inside `extra_body`. OpenAI's library merges it into the body; other clients send it.
pub(super) fn inside_extra_body(fields: &mut Fields) -> Result<(), ApiError> {
    const NAME: &str = "extra_body";
    match fields.take_raw(NAME).filter(Raw::is_object) {
        Some(raw) => {
            let mut nested = fields.nested(NAME, &raw)?;
            foreign::refuse(&mut nested, &[])?;
            nested.refuse(&sampling::CONSTRAINTS)
        }
        None => Ok(()),
    }
}
