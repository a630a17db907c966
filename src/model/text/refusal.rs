//! The refusal of a request whose chat cannot be rendered.

use crate::error::RequestError;

pub(super) fn invalid<T>(text: String) -> Result<T, RequestError> {
    Err(RequestError::Invalid(text))
}
