#![doc = include_str!("../README.md")]

pub mod cache;
pub mod pool;
mod prefetch;
pub mod tiers;
