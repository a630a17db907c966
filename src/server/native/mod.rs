//! SGLang's native request and response, for `/generate` over HTTP, WebSocket and gRPC.

mod call;
mod docs;
mod reply;

pub(super) use call::NativeCall;
pub(super) use docs::{components, operation};
pub(super) use reply::{LogprobsJson, Meta, Reply, ReplyForm};
