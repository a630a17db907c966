//! The table of chaos runs: any two values of any two factors occur together in at least one run (pairwise testing).

use std::collections::HashSet;

use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::scheduler::policy::schedule_policy_names;

use crate::chaos_load::Random;

pub const PAGE_SIZES: [u32; 4] = [1, 4, 16, 64];
const CHUNKS: [Option<usize>; 3] = [None, Some(32), Some(256)];
const N_FACTORS: usize = 8;
/// Random runs, after one run of each scheduling policy with each cache.
const N_RANDOM: usize = 12;
const CACHE: usize = 1;
const MIXED: usize = 3;
const CHUNK: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    pub policy: &'static str,
    /// `None` disables the prefix cache.
    pub eviction: Option<&'static str>,
    pub page_size: u32,
    pub mixed_chunk: bool,
    /// In whole pages, as in the configuration.
    pub chunk_tokens: Option<usize>,
    /// Priorities with preemption.
    pub priority: bool,
    pub prefix_wait: bool,
    pub decode_interval: usize,
}

fn policies() -> Vec<&'static str> {
    schedule_policy_names().collect()
}

fn evictions() -> Vec<Option<&'static str>> {
    EvictionPolicy::names().map(Some).chain([None]).collect()
}

pub fn n_runs() -> usize {
    policies().len() * evictions().len() + N_RANDOM
}

fn n_values() -> [usize; N_FACTORS] {
    [
        policies().len(),
        evictions().len(),
        PAGE_SIZES.len(),
        2,
        CHUNKS.len(),
        2,
        2,
        2,
    ]
}

type Row = [usize; N_FACTORS];
/// Two factors, the smaller index first, each with a value.
type Pair = [(usize, usize); 2];

/// Mixed batches require chunked prefill.
fn is_meaningful(pair: &Pair) -> bool {
    *pair != [(MIXED, 1), (CHUNK, 0)]
}

fn all_pairs() -> HashSet<Pair> {
    let n_values = n_values();
    let mut pairs = HashSet::new();
    for a in 0..N_FACTORS {
        for b in a + 1..N_FACTORS {
            let values = (0..n_values[a]).flat_map(|x| (0..n_values[b]).map(move |y| (x, y)));
            pairs.extend(values.map(|(x, y)| [(a, x), (b, y)]));
        }
    }
    pairs.retain(is_meaningful);
    pairs
}

fn pairs_of(row: &Row) -> impl Iterator<Item = Pair> + '_ {
    (0..N_FACTORS).flat_map(move |a| (a + 1..N_FACTORS).map(move |b| [(a, row[a]), (b, row[b])]))
}

/// One row for each policy with each cache, whose other values cover the most missing pairs; then random rows.
fn rows() -> Vec<Row> {
    let mut random = Random::new(1);
    let mut missing = all_pairs();
    let n_values = n_values();
    let mut rows = Vec::new();
    for policy in 0..n_values[0] {
        for cache in 0..n_values[CACHE] {
            let mut row = [policy, cache, 0, 0, 0, 0, 0, 0];
            for factor in 2..N_FACTORS {
                row[factor] = best_value(&row, factor, &missing, &mut random);
            }
            pairs_of(&row).for_each(|pair| {
                missing.remove(&pair);
            });
            rows.push(row);
        }
    }
    while rows.len() < n_runs() {
        let row: Row = std::array::from_fn(|factor| random.below(n_values[factor]));
        if pairs_of(&row).all(|pair| is_meaningful(&pair)) {
            rows.push(row);
        }
    }
    rows
}

fn best_value(row: &Row, factor: usize, missing: &HashSet<Pair>, random: &mut Random) -> usize {
    let gain = |value: usize| {
        let pairs = (0..factor).map(|other| [(other, row[other]), (factor, value)]);
        pairs.filter(|pair| missing.contains(pair)).count()
    };
    let is_allowed = |value: &usize| {
        let mut pairs = (0..factor).map(|other| [(other, row[other]), (factor, *value)]);
        pairs.all(|pair| is_meaningful(&pair))
    };
    let values = (0..n_values()[factor]).filter(is_allowed);
    let ranked = values.map(|value| (gain(value), random.below(1 << 16), value));
    ranked.max().map_or(0, |(_, _, value)| value)
}

fn factors_of(row: &Row) -> Factors {
    let page_size = PAGE_SIZES[row[2]];
    Factors {
        policy: policies()[row[0]],
        eviction: evictions()[row[CACHE]],
        page_size,
        mixed_chunk: row[MIXED] == 1,
        chunk_tokens: CHUNKS[row[CHUNK]].map(|chunk| chunk.max(page_size as usize)),
        priority: row[5] == 1,
        prefix_wait: row[6] == 1,
        decode_interval: row[7],
    }
}

pub fn table() -> Vec<Factors> {
    rows().iter().map(factors_of).collect()
}

#[test]
fn chaos_table_covers_every_pair_of_values() {
    let rows = rows();
    let covered: HashSet<Pair> = rows.iter().flat_map(pairs_of).collect();
    let missing: Vec<Pair> = all_pairs().difference(&covered).copied().collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(covered.iter().all(is_meaningful));
    assert_eq!(rows.len(), n_runs());
}
