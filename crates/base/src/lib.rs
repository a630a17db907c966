//! Types that the crates of Souffleur share: ids, errors, request fields and the layout of KV memory.

pub mod beat;
pub mod error;
#[doc(hidden)]
pub mod field;
pub mod ids;
pub mod in_hand;
pub mod kv_layout;
pub mod prompt_images;
pub mod prompt_vectors;
pub mod request_limits;
pub mod row_state;
