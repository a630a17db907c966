//! Replays the prompts of a load one after another, with caches of several sizes (`--prompts-only`).

use serde_json::json;

use souffleur::config::EngineConfig;
use souffleur::simulate::SimulateError;
use souffleur::simulate::replay::{ReplayCache, replay_in_replicas, replay_prompts};
use souffleur::simulate::trace::{BLOCK_TOKENS, Trace};
use souffleur::state::pool::pages::PageSize;
use souffleur::state::router::LoadBalance;

use super::super::failure::Failure;
use super::report::{self, CurvePoint};
use super::{SimulateArgs, plot, replicas, write_json};

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
    let n_replicas = config.dp_size;
    let routing = (config.units(), config.load_balance_method);
    check_method(routing)?;
    let cache = |kv_tokens| ReplayCache {
        page_size,
        eviction,
        kv_tokens,
    };
    let replay = |kv_tokens| {
        let replays = replay_in_replicas(trace, cache(kv_tokens), routing)?;
        Ok::<_, SimulateError>(CurvePoint { kv_tokens, replays })
    };
    let unbounded = replay(None)?;
    let unique_tokens = match n_replicas {
        1 => unbounded.replays.all.cached_tokens,
        // Several replicas can hold the same tokens.
        _ => replay_prompts(trace, cache(None))?.cached_tokens,
    };
    let capacities = match args.kv_tokens.as_slice() {
        [] => default_capacities((page_size, unique_tokens), n_replicas),
        given => given.to_vec(),
    };
    let mut curve = Vec::with_capacity(capacities.len() + 1);
    for kv_tokens in capacities {
        curve.push(replay(Some(kv_tokens))?);
    }
    curve.push(unbounded);
    if !is_quiet {
        let title = title(config, page_size, eviction.name());
        report::print_curve(&title, (page_size, unique_tokens), &curve);
    }
    if let Some(file) = &args.json {
        let runs: Vec<_> = curve.iter().map(|point| point.json(page_size)).collect();
        let mut curve = json!({ "page_size": page_tokens, "radix_eviction_policy": eviction.name(), "curve": runs });
        if n_replicas > 1 {
            curve["dp_size"] = json!(n_replicas);
            curve["load_balance_method"] = json!(config.load_balance_method);
        }
        write_json(file, &report::json_of(&args.load.name(), trace, curve))?;
    }
    match &args.plot {
        Some(file) => plot::write(file, plot::curve(&args.load.name(), &curve)),
        None => Ok(()),
    }
}

/// The pool sizes of a curve, in tokens of each replica's pool.
fn default_capacities(
    (page_size, unique_tokens): (PageSize, usize),
    n_replicas: usize,
) -> Vec<usize> {
    let all_pages = page_size.full_pages(unique_tokens);
    let pages = |percent: usize| (all_pages * percent / 100 / n_replicas).max(1);
    let sizes = CURVE_PERCENT.map(|percent| page_size.tokens_in(pages(percent)));
    sizes.to_vec()
}

fn title(config: &EngineConfig, page_size: PageSize, eviction: &str) -> String {
    let place =
        replicas::name(config).map_or_else(String::new, |replicas| format!(" in {replicas}"));
    format!("prompts one after another{place}, pages of {page_size} tokens, {eviction} eviction")
}

/// Refuses a method that would choose the same replica for every prompt.
fn check_method((n_replicas, method): (u32, LoadBalance)) -> Result<(), Failure> {
    if n_replicas > 1 && method == LoadBalance::TotalTokens {
        let reason = "load_balance_method is total_tokens, which counts requests in flight, but --prompts-only \
                      replays one prompt at a time: set it to prefix or round_robin, or remove --prompts-only";
        return Err(Failure::Usage(reason.to_owned()));
    }
    Ok(())
}
