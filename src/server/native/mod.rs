//! SGLang's native request and response, as `/generate` and the WebSocket have them.

mod call;
mod docs;
mod reply;

pub(super) use call::NativeCall;
pub(super) use docs::{components, operation};
pub(super) use reply::{Meta, Reply, Shape, Written};
