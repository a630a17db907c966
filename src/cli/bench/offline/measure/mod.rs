//! The offline benchmark's measurements: starts of this program, loads in rounds, and scaling.

pub mod bench;
pub mod noise;
pub mod rounds;
pub mod scaling;
pub mod starts;
pub mod streams;
pub mod waits;
