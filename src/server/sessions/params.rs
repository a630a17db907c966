//! `session_params` of a request: the session, and the part of it that the request continues.

use crate::call::{MAX_RID_BYTES, read_rid};
use crate::error::ApiError;
use crate::fields::Fields;
use souffleur_base::field::check_bytes;
use souffleur_base::ids::RequestId;

#[derive(Clone, Debug, Default)]
pub(crate) struct SessionParams {
    pub(super) id: String,
    /// The request that this request continues; `None` for the first request.
    pub(super) rid: Option<RequestId>,
    /// Number of earlier tokens to keep from the front, or, if negative, to drop from the end. `None` and 0 keep all.
    pub(super) offset: Option<i64>,
    /// Earlier continuations of the request `rid` are deleted.
    pub(super) replace: bool,
    /// The output of the request `rid` is left out.
    pub(super) drop_previous_output: bool,
}

impl SessionParams {
    pub(crate) fn take(fields: &mut Fields) -> Result<Option<Self>, ApiError> {
        const NAME: &str = "session_params";
        let Some(raw) = fields.take_raw(NAME).filter(|raw| !raw.has_no_effect()) else {
            return Ok(None);
        };
        let mut object = fields.nested(NAME, &raw)?;
        let Some(id) = object.string("id")? else {
            let text = "session_params.id is missing: send the id that /open_session returned";
            return Err(ApiError::field(NAME, text));
        };
        check_bytes("session_params.id", &id, MAX_RID_BYTES)?;
        Ok(Some(Self {
            id,
            rid: object.take("rid")?.map(read_rid).transpose()?,
            offset: object.integer("offset")?,
            replace: object.flag("replace")?,
            drop_previous_output: object.flag("drop_previous_output")?,
        }))
    }

    /// Number of earlier tokens to keep, out of `tokens`.
    pub(super) fn kept_of(&self, tokens: usize) -> usize {
        match self.offset {
            None | Some(0) => tokens,
            Some(offset) => {
                let distance = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
                if offset > 0 {
                    tokens.min(distance)
                } else {
                    tokens.saturating_sub(distance)
                }
            }
        }
    }

    pub(super) fn is_continuation(&self) -> bool {
        self.rid.is_some()
    }
}
