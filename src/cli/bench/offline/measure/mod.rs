//! Measuring: starts of this program, loads in rounds, and how cost grows.

pub mod bench;
pub mod noise;
pub mod rounds;
pub mod scaling;
pub mod starts;
mod streams;
pub mod waits;
