//! Builds the error for a request whose chat cannot be rendered.

use souffleur_base::error::RequestError;

pub(super) fn invalid<T>(text: String) -> Result<T, RequestError> {
    Err(RequestError::Invalid(text))
}
