//! Images in requests: their parts in messages, the policy that admits them, and their bytes.
//!
//! Parsing leaves an image in its message as a part with its place, its URL or base64, and the text by which the API
//! refuses it. [`take`] decides: a model without a tower refuses images, or gets a note in their places. Otherwise the
//! prompt gets the files, and the messages keep a part `{"type": "image"}` for each.

mod content;
mod settle;

pub(crate) use content::{Content, Encoding, image_part, url_of};
pub(crate) use settle::{Media, Pending, Wanted, check, take};
