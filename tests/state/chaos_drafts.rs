//! Chaos tests of requests with drafts: as [`crate::chaos`], with at most one to eight query tokens for each request,
//! of whose drafts some are right. The fake executor detects reads of rejected drafts.

use crate::chaos_load::{Chaos, Random};
use crate::chaos_table::Factors;
use crate::drafts::drafts;
use crate::drafts_seen::DraftsSeen;
use crate::scheduler_world::{Ask, Setup, VOCAB, World};

/// Requests in each run.
const N_REQUESTS: usize = 300;

/// Runs with recurrent states, with windows, and without either.
#[allow(clippy::print_stdout)] // shows the setup of a failed run
fn run(page_size: u32) {
    let mut seen = DraftsSeen::default();
    let runs = [(0, 0.7), (1, 0.5), (3, 0.95), (4, 0.3), (5, 0.8), (7, 0.6)];
    for (number, (seed, accept)) in runs.into_iter().enumerate() {
        let factors = Factors {
            policy: if number.is_multiple_of(2) {
                "lpm"
            } else {
                "fcfs"
            },
            eviction: Some("lru"),
            page_size,
            mixed_chunk: number.is_multiple_of(3),
            chunk_tokens: Some(32),
            priority: number == 2,
            prefix_wait: true,
            decode_interval: number % 2,
        };
        let mut chaos = Chaos::with_drafts(factors, seed, Some(accept));
        println!("run {number}: {:?}", chaos.world.setup);
        chaos.run(N_REQUESTS);
        seen.add(&chaos.world.drafts_seen);
    }
    seen.assert_complete();
}

#[test]
fn chaos_with_drafts_keeps_every_guarantee_with_pages_of_1() {
    run(1);
}

#[test]
fn chaos_with_drafts_keeps_every_guarantee_with_pages_of_4() {
    run(4);
}

#[test]
fn chaos_with_drafts_keeps_every_guarantee_with_pages_of_16() {
    run(16);
}

#[test]
fn drafts_take_only_free_pages_of_a_pool_one_page_above_the_least() {
    const LONGEST: usize = 96;
    let mut seen = DraftsSeen::default();
    for page_size in [1, 4, 16] {
        for accept in [0.0, 0.5, 0.9] {
            let mut world = World::new(Setup {
                page_size,
                n_pages: LONGEST.div_ceil(page_size as usize) as u32 + 1,
                n_rows: 8,
                chunk_tokens: Some(32),
                conservativeness: 0.0,
                drafts: Some(drafts(accept, 5)),
                ..Setup::default()
            });
            let mut random = Random::new(u64::from(page_size));
            for number in 0..40 {
                let prompt = random.within(1..20);
                let max_new_tokens = random.within(1..LONGEST - prompt + 1);
                let prompt = (0..prompt as u32).map(|at| (number * 31 + at * 7) % VOCAB);
                world.submit(Ask {
                    num_draft_tokens: Some(random.below(9) as u32),
                    ..Ask::exactly(prompt.collect(), max_new_tokens)
                });
                for _ in 0..random.below(6) {
                    world.turn();
                }
            }
            world.assert_clean();
            seen.add(&world.drafts_seen);
        }
    }
    seen.assert_complete();
}
