//! Replays the prompts of a load one after another, with caches of several sizes (`--prompts-only`).

use serde_json::json;

use souffleur::config::EngineConfig;
use souffleur::simulate::SimulateError;
use souffleur::simulate::replay::{ReplayCache, replay_prompts};
use souffleur::simulate::trace::{BLOCK_TOKENS, Trace};
use souffleur::state::pool::pages::PageSize;

use super::super::failure::Failure;
use super::report::{self, CurvePoint};
use super::{SimulateArgs, plot, write_json};

/// Pool sizes of a curve, in percent of the keys and values of all prompts.
const CURVE_PERCENT: [usize; 5] = [1, 5, 10, 25, 50];

pub fn run(
    args: &SimulateArgs,
    config: &EngineConfig,
    trace: &Trace,
    is_quiet: bool,
) -> Result<(), Failure> {
    // By default, a page is as large as a block of the trace, since a trace identifies only whole blocks.
    let page_tokens = args
        .flags
        .engine
        .get("page_size")
        .unwrap_or(BLOCK_TOKENS as u32);
    let page_size = PageSize::new(page_tokens)
        .ok_or_else(|| Failure::Usage("--page-size is 0, must be at least 1".into()))?;
    let eviction = config.eviction_policy().map_err(SimulateError::from)?;
    let eviction = eviction.ok_or_else(|| {
        Failure::Usage(
            "--prompts-only measures the prefix cache, which disable_radix_cache turns off: remove one of the two"
                .into(),
        )
    })?;
    let replay = |kv_tokens| {
        let cache = ReplayCache {
            page_size,
            eviction,
            kv_tokens,
        };
        replay_prompts(trace, cache).map(|replayed| CurvePoint {
            kv_tokens,
            replayed,
        })
    };
    let unbounded = replay(None)?;
    let all_pages = page_size.full_pages(unbounded.replayed.cached_tokens);
    let capacities: Vec<usize> = if !args.kv_tokens.is_empty() {
        args.kv_tokens.clone()
    } else {
        CURVE_PERCENT
            .iter()
            .map(|percent| page_size.tokens_in((all_pages * percent / 100).max(1)))
            .collect()
    };
    let mut curve = Vec::with_capacity(capacities.len() + 1);
    for kv_tokens in capacities {
        curve.push(replay(Some(kv_tokens))?);
    }
    curve.push(unbounded);
    if !is_quiet {
        report::print_curve(page_size, eviction, &curve);
    }
    if let Some(file) = &args.json {
        let runs: Vec<_> = curve.iter().map(|point| point.json(page_size)).collect();
        let curve = json!({ "page_size": page_tokens, "radix_eviction_policy": eviction.name(), "curve": runs });
        write_json(file, &report::json_of(&args.load.name(), trace, curve))?;
    }
    match &args.plot {
        Some(file) => plot::write(file, plot::curve(&args.load.name(), &curve)),
        None => Ok(()),
    }
}
