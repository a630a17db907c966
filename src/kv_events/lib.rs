//! Publishes the blocks that the prefix cache stores and removes, over ZeroMQ as SGLang does, for external routers.
//!
//! - [`feed`]: sends the tree's node changes to the publisher's thread, in plan order
//! - [`mirror`]: keeps the blocks of each node; turns node changes into events, with ids from [`hash`](mod@hash)
//! - [`batch`], [`wire`]: group events into batches, and encode batches as MessagePack
//! - [`ring`]: keeps the last batches; `sockets` and `zmtp`: send them to clients
//! - [`subscription`]: serves subscribers in this process, for whom [`read`] decodes batches into events
//!
//! A client that applies the events in order knows exactly the blocks of the tree. The keys and values of a stored
//! block are in the tree's pages. A prompt may still be unable to resume after the block, if layers with windows or
//! states have lost their data there. No event reports this, since other blocks stay usable.

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
