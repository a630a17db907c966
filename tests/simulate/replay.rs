//! Tests of replays of prompts: hit rates on Mooncake's synthetic trace equal those of SGLang's radix tree.

use souffleur::simulate::replay::{ReplayCache, Replayed, replay_prompts};
use souffleur::state::cache::eviction::EvictionPolicy;
use souffleur::state::pool::pages::PageSize;

use crate::{azure, mooncake};

fn cache(blocks: Option<usize>, page_tokens: u32) -> ReplayCache {
    ReplayCache {
        page_size: PageSize::new(page_tokens).expect("the page size is positive"),
        eviction: EvictionPolicy::default(),
        kv_tokens: blocks.map(|blocks| blocks * 512),
    }
}

#[test]
fn the_synthetic_trace_hits_as_often_and_evicts_as_many_nodes_as_the_reference() {
    let trace = mooncake(None);
    assert_eq!(
        (trace.requests.len(), trace.prompt_tokens()),
        (3993, 61_194_628)
    );
    let reference = [
        (Some(401), 0.03438, 2797),
        (Some(2007), 0.15124, 2506),
        (Some(4014), 0.24732, 2268),
        (Some(10_037), 0.44313, 1705),
        (Some(20_074), 0.59280, 954),
        (None, 0.65043, 0),
    ];
    for (blocks, hit_rate, evicted_nodes) in reference {
        let replayed = replay_prompts(&trace, cache(blocks, 512)).expect("the cache is valid");
        let rounded = (replayed.hit_rate() * 1e5).round() / 1e5;
        assert_eq!(
            (rounded, replayed.evicted_nodes),
            (hit_rate, evicted_nodes),
            "{blocks:?}"
        );
        assert_eq!((replayed.prompts, replayed.too_long), (3993, 0));
    }
}

#[test]
fn prompts_longer_than_the_cache_miss_and_do_not_change_it() {
    let trace = mooncake(Some(40));
    let whole = replay_prompts(&trace, cache(None, 512)).expect("the cache is valid");
    let tiny = replay_prompts(&trace, cache(Some(20), 512)).expect("the cache is valid");
    let too_long = trace
        .requests
        .iter()
        .filter(|request| request.prompt.len() >= 21 * 512)
        .count();
    assert!(too_long > 0 && too_long < 40);
    assert_eq!(tiny.too_long, too_long);
    assert_eq!(
        (tiny.prompt_tokens, whole.too_long),
        (whole.prompt_tokens, 0)
    );
    assert!(tiny.cached_tokens <= 20 * 512);
    assert!(replay_prompts(&trace, cache(Some(0), 512)).is_err());
    assert!(replay_prompts(&trace, cache(Some(usize::MAX / 512), 1)).is_err());
}

#[test]
fn smaller_pages_hit_at_least_as_much() {
    let trace = mooncake(Some(300));
    let hits = |page| {
        replay_prompts(&trace, cache(None, page))
            .expect("the cache is valid")
            .hit_tokens
    };
    assert!(hits(16) >= hits(512));
    assert!(hits(1) >= hits(16));
}

#[test]
fn prompts_without_known_contents_share_nothing() {
    let replayed: Replayed =
        replay_prompts(&azure(Some(500)), cache(None, 16)).expect("the cache is valid");
    assert_eq!((replayed.prompts, replayed.hit_tokens), (500, 0));
}
