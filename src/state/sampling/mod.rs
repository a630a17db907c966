//! Sampling: parameters, penalties, seeded draws and logprobs, as pure functions of one row of logits.

mod draw;
mod exp;
mod filter;
mod logprobs;
mod mask;
mod params;
mod peak;
mod row;
mod rules;
mod wire;

pub use draw::seed_of_sample;
pub use filter::DrawScratch;
pub use logprobs::{LogprobWish, RowLogprobs, TokenLogprobs, token_logprobs};
pub use mask::TokenMask;
pub use params::MAX_SAMPLES;
pub use params::SamplingParams;
pub use peak::Peak;
pub use row::{RowSampler, Sampled};
pub use wire::{CONSTRAINTS, NOT_YET, ReadParams, SetParam};
