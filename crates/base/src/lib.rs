//! Ids, errors, the fields of requests and the geometry of KV memory, which all parts of Souffleur share.

pub mod error;
#[doc(hidden)]
pub mod field;
pub mod ids;
pub mod kv_layout;
pub mod prompt_vectors;
pub mod request_limits;
pub mod row_state;
