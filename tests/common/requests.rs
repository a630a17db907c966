//! Sixteen requests of different lengths and sampling parameters, and functions that run them.

use futures_util::future::join_all;
use souffleur_engine::Generation;
use souffleur_request::{Event, GenerateRequest, Prompt};
use souffleur_state::sampling::LogprobWish;

use crate::world::{World, within};

pub const REQUESTS: u32 = 16;
/// The smallest vocabulary size among the models.
pub const VOCAB: u32 = 288;
pub const SHARED_TOKENS: u32 = 33;

/// The output tokens, each with the bits of its log probability.
pub type Bits = Vec<(u32, u32)>;

/// One of sixteen requests of different lengths that share a prefix; half of them are greedy.
pub fn request(index: u32) -> GenerateRequest {
    let rest = (0..5 + 6 * index).map(|i| (i * 31 + index * 57 + 7) % VOCAB);
    let prompt = (0..SHARED_TOKENS)
        .map(|i| (i * 17 + 3) % VOCAB)
        .chain(rest)
        .collect();
    let mut request = GenerateRequest::new(Prompt::Tokens(prompt));
    request.logprobs = Some(LogprobWish::default());
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = 6 + 3 * (index % 8);
    sampling.ignore_eos = true;
    sampling.sampling_seed = Some(u64::from(index));
    match index % 2 {
        0 => sampling.temperature = 0.0,
        _ => {
            sampling.top_p = 0.95;
            sampling.repetition_penalty = 1.1;
            sampling.frequency_penalty = 0.2;
        }
    }
    request
}

/// Like [`request`], but longer and without `ignore_eos`: the scheduler reserves pages for only a part of the output.
pub fn long_request(index: u32) -> GenerateRequest {
    let mut request = request(index);
    let sampling = &mut request.sampling;
    sampling.ignore_eos = false;
    sampling.max_new_tokens = 40 + 5 * (index % 8);
    sampling.min_new_tokens = sampling.max_new_tokens;
    request
}

/// The indices of all requests, `first` before the others.
pub fn first_of<const N: usize>(first: [u32; N], requests: u32) -> Vec<u32> {
    let others = (0..requests).filter(|index| !first.contains(index));
    first.into_iter().chain(others).collect()
}

pub async fn bits(mut generation: Generation) -> (Bits, u32) {
    let mut deltas = Vec::new();
    loop {
        match within(generation.next())
            .await
            .expect("the stream ends with a terminal event")
        {
            Event::Delta(delta) => deltas.push(delta),
            Event::Finished(end) => {
                let cached = end.delta.usage.cached_tokens;
                deltas.push(end.delta);
                let entries = deltas.into_iter().flat_map(|delta| delta.output_logprobs);
                let bit = |logprob: Option<f32>| logprob.expect("a log probability").to_bits();
                return (
                    entries
                        .map(|entry| (entry.token, bit(entry.logprob)))
                        .collect(),
                    cached,
                );
            }
            other => panic!("ended with {other:?}"),
        }
    }
}

pub async fn one_after_another(world: &World) -> Vec<(Bits, u32)> {
    let mut all = Vec::new();
    for index in 0..REQUESTS {
        all.push(bits(world.generate(request(index))).await);
    }
    all
}

pub async fn at_once(world: &World) -> Vec<(Bits, u32)> {
    join_all((0..REQUESTS).map(|index| bits(world.generate(request(index))))).await
}
