//! Chaos tests of an engine with a store that is slow, drops blocks and dies, but never returns wrong data: pages and
//! buffers are accounted for in any order of events, and every request gets the same tokens as without a store.

use super::world::{TierSetup, TierWorld, prompt};
use crate::chaos_load::Random;
use crate::scheduler_world::Outcome;

const N_REQUESTS: usize = 150;

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    loaded: u64,
    late: u64,
    retractions: u64,
    dropped: u64,
    evicted: u64,
}

fn run(setup: TierSetup, seed: u64) -> Seen {
    let mut random = Random::new(seed);
    let mut world = TierWorld::new(setup, Default::default());
    let mut seen = Seen::default();
    let mut submitted = 0;
    while submitted < N_REQUESTS {
        match random.below(100) {
            0..=14 => {
                submitted += 1;
                let family = random.below(6) as u32;
                let (len, own) = (random.within(1..160), random.below(40));
                world.submit(prompt(family, len, own), random.within(1..30));
            }
            15..=54 => {
                let _ = world.end_step(match random.below(150) {
                    0 => Outcome::Rejected,
                    1 => Outcome::LostBeforeItRan,
                    2 => Outcome::LostAfterItRan,
                    _ => Outcome::Done,
                });
            }
            55..=89 => {
                let n_pending = world.store.pending.len();
                if n_pending > 0 {
                    let max_blocks = if random.percent(20) {
                        random.below(3)
                    } else {
                        usize::MAX
                    };
                    world.answer_with(random.below(n_pending), max_blocks);
                }
            }
            90..=93 => {
                let running = world.views.iter().position(|view| view.end.is_none());
                if let Some(number) = running.filter(|_| random.percent(40)) {
                    world.cancel(number);
                }
            }
            94..=97 => world.store.evict(random.below(1 << 16)),
            98 if random.percent(10) => world.kill_store(),
            _ => {
                if random.percent(10) {
                    add(&mut seen, &mut world);
                    world = world.restart();
                }
            }
        }
        if random.percent(1) {
            world.drain();
        }
    }
    add(&mut seen, &mut world);
    seen
}

fn add(seen: &mut Seen, world: &mut TierWorld) {
    world.assert_clean();
    let (stats, tier) = (world.stats(), world.tier());
    seen.loaded += tier.loaded_tokens;
    seen.late += tier.late_fetches;
    seen.retractions += stats.retractions;
    seen.dropped += tier.dropped_tokens;
    seen.evicted += stats.evicted_tokens;
}

#[allow(clippy::print_stdout)] // shows the setup of a failed run
fn run_all(page_size: u32, block_tokens: usize, n_states: usize) {
    let mut sums = Seen::default();
    for seed in 0..12 {
        let setup = TierSetup {
            page_size,
            block_tokens,
            n_pages: 448 / page_size as usize,
            n_rows: 6,
            chunk_tokens: (seed % 2 == 0).then_some(48 - 48 % page_size as usize),
            mixed_chunk: seed % 4 == 0,
            prefix_wait: seed % 3 > 0,
            min_hits: 1 + u32::from(seed % 5 == 4),
            buffers: [2, 8, 40][seed as usize % 3],
            blocks_per_load: [1, 3, 1 << 10][seed as usize / 3 % 3],
            n_states,
        };
        println!("seed {seed}: {setup:?}");
        let seen = run(setup, seed << 8 | u64::from(page_size));
        println!("{seen:?}");
        sums.loaded += seen.loaded;
        sums.late += seen.late;
        sums.retractions += seen.retractions;
        sums.evicted += seen.evicted;
    }
    assert!(
        sums.loaded > 0 && sums.late > 0 && sums.evicted > 0,
        "{sums:?}"
    );
}

#[test]
fn chaos_with_a_store_keeps_every_guarantee_with_pages_of_1() {
    run_all(1, 16, 0);
}

#[test]
fn chaos_with_a_store_keeps_every_guarantee_with_pages_of_4() {
    run_all(4, 16, 0);
}

#[test]
fn chaos_with_a_store_keeps_every_guarantee_with_pages_of_16() {
    run_all(16, 16, 0);
}

#[test]
fn chaos_with_a_store_keeps_every_guarantee_with_pages_of_32() {
    run_all(32, 32, 0);
}

#[test]
fn chaos_with_a_store_keeps_every_guarantee_for_a_model_with_states() {
    run_all(1, 16, 20);
    run_all(8, 16, 20);
}
