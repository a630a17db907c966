//! Sampling: parameters, penalties, seeded draws and logprobs, as pure functions of one row of logits.

mod params;

pub use params::SamplingParams;
