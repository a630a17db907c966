//! Events of the prefix cache for routers and indexers outside: which blocks of tokens are cached and which are gone, over
//! ZeroMQ, as SGLang publishes them.
//!
//! - [`feed`]: changes of the tree's nodes go to the publisher's thread, in the order of the plans
//! - [`mirror`]: the blocks of nodes; changes of nodes become events, with ids from [`hash`](mod@hash)
//! - [`batch`], [`wire`]: events as batches, batches as MessagePack
//! - [`ring`]: the last batches; `sockets` and `zmtp`: where and how they are read
//! - [`subscription`]: readers in this process, for whom [`read`] makes events of batches again
//!
//! Whoever applies the events in order knows the blocks of the tree, no more and no less. A block that is stored has its K/V
//! in the pages of the tree. Where layers have windows or keep states, that does not mean that a prompt can go on behind it:
//! what these layers need there may be gone, which says nothing, as no other block is worth less for it.

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
