//! SGLang's native request and response, as `/generate` and the WebSocket have them.

mod call;
mod reply;

pub(super) use call::NativeCall;
pub(super) use reply::{Meta, Reply, Shape, Written};
