//! The loads of the offline benchmark: the number of concurrent streams, and their prompt and output lengths.

use serde::Serialize;
use souffleur::engine::ModelInfo;

use super::args::OfflineArgs;

/// Tokens of the context and the pool that the engine keeps free in addition to a request's tokens.
pub const FREE_TOKENS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Load {
    pub streams: u32,
    pub prompt_tokens: u32,
    /// Tokens that each stream generates; with one token, the load measures the prefill.
    pub output_tokens: u32,
}

impl Load {
    pub fn name(&self) -> String {
        let Self {
            streams,
            prompt_tokens,
            output_tokens,
        } = self;
        match (streams, output_tokens) {
            (1, 1) => format!("prefill, {prompt_tokens} tokens"),
            (1, _) => format!("decode, {output_tokens} tokens after {prompt_tokens}"),
            _ => {
                format!(
                    "{streams} concurrent streams together, {output_tokens} tokens each after prompts of {prompt_tokens}"
                )
            }
        }
    }
}

/// The loads of a round, with prompts cut to the longest that the model allows.
pub fn loads(args: &OfflineArgs, model: &ModelInfo) -> Vec<Load> {
    let load = |streams, prompt_tokens: u32, output_tokens| Load {
        streams,
        prompt_tokens: prompt_tokens.min(longest_prompt(model, output_tokens)),
        output_tokens,
    };
    let prefills = args.prompt_tokens.iter().map(|&prompt| load(1, prompt, 1));
    let alone = load(1, first(&args.prompt_tokens), args.output_tokens);
    let together = args.batch_prompt_tokens.iter().flat_map(|&prompt| {
        let batches = args.batch.iter();
        batches.map(move |&streams| load(streams, prompt, args.output_tokens))
    });
    let mut loads = Vec::new();
    for load in prefills.chain([alone]).chain(together) {
        if !loads.contains(&load) {
            loads.push(load);
        }
    }
    loads
}

pub fn first(tokens: &[u32]) -> u32 {
    tokens.first().copied().unwrap_or(1)
}

/// The longest prompt after which `output_tokens` fit in the context and the KV pool; at least one token.
pub fn longest_prompt(model: &ModelInfo, output_tokens: u32) -> u32 {
    let pool = model.max_total_tokens.saturating_sub(2 * model.page_size);
    let tokens = model.context_length.min(pool);
    let tokens = tokens
        .saturating_sub(output_tokens as usize + FREE_TOKENS)
        .max(1);
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
