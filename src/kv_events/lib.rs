//! Events of the prefix cache for external routers and indexers: blocks stored and removed, over ZeroMQ, as SGLang
//! publishes them.
//!
//! - [`feed`]: sends the tree's node changes to the publisher's thread, in plan order
//! - [`mirror`]: the blocks of each node; turns node changes into events, with ids from [`hash`](mod@hash)
//! - [`batch`], [`wire`]: events as batches, batches as MessagePack
//! - [`ring`]: the last batches; `sockets` and `zmtp`: serve them
//! - [`subscription`]: subscribers in this process, for whom [`read`] decodes batches into events
//!
//! A client that applies the events in order knows exactly the blocks of the tree. A stored block has its K/V in the
//! tree's pages. A prompt may still be unable to resume after it: layers with windows or states may have lost their
//! data at that point. No event reports this, as it devalues no other block.

pub mod batch;
mod complaints;
pub mod config;
pub mod feed;
pub mod hash;
mod listener;
pub mod mirror;
mod patience;
mod presence;
pub mod publisher;
mod question;
pub mod read;
pub mod ring;
mod sockets;
pub mod subscription;
#[cfg(test)]
mod tests;
pub mod wire;
mod zmtp;

pub use config::KvEventsConfig;
pub use feed::ChangeFeed;
pub use publisher::{KvEventPublisher, KvEventsInfo, KvEventsOutlet};
pub use subscription::{KvEventSubscription, NumberedEvents, SubscribeError};
