//! The whole engine through its handle, on fake executors.

mod flow;
mod identity;
mod world;
