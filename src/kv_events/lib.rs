//! Publishes the blocks that the prefix cache stores and removes, over ZeroMQ as SGLang does, for external routers.
//!
//! - [`publishers`]: one publisher for each replica, with its feed, numbers, replay buffer and sockets
//! - [`feed`]: sends the tree's node changes to the publisher's thread, in plan order
//! - [`mirror`]: keeps the blocks of each node; turns node changes into events, with ids from [`hash`](mod@hash)
//! - [`batch`], [`wire`]: group events into batches, and encode batches as MessagePack
//! - [`ring`]: keeps the last batches; `sockets` and `zmtp` send them to clients
//! - [`subscription`]: serves subscribers in this process, for whom [`read`] decodes batches into events
//!
//! A client that applies the events in order knows exactly the blocks of the tree. The tree holds the K/V of
//! these blocks. A prompt may still be unable to resume after a block, because window pages or recurrent states there
//! have been evicted. No event reports this.

pub mod batch;
mod complaints;
pub mod config;
pub mod feed;
pub mod hash;
mod listener;
pub mod mirror;
mod presence;
mod publisher;
pub mod publishers;
pub mod read;
mod replay_request;
mod replicas;
pub mod ring;
mod sockets;
pub mod subscription;
#[cfg(test)]
mod tests;
mod timeouts;
pub mod wire;
mod zmtp;

pub use config::KvEventsConfig;
pub use feed::ChangeFeed;
pub use publishers::{KvEventPublishers, KvEventsInfo, KvEventsOutlet};
pub use subscription::{KvEventSubscription, NumberedEvents, SubscribeError};
