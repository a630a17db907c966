//! Random loads of prompts with images: any order of messages, cancelled requests, lost steps, a store that loses blocks
//! and dies, pools that are too small. Every request ends, gets each vector of its images once and in order, and leaves
//! nothing. Planted mistakes show that the checks of the world find each kind.
//!
//! `SOUFFLEUR_IMAGE_RUNS=1000 cargo test --test state images` makes more runs (44 otherwise), from other seeds.

use souffleur_state::scheduler::policy::PriorityOrder;

use super::prompts::{BROKEN, Prompt};
use super::tower::Mistake;
use super::world::{Setup, World};
use crate::chaos_load::Random;
use crate::panics;
use crate::scheduler_world::Outcome;
use crate::tiers::store::Disk;

const N_RUNS: usize = 44;
const N_REQUESTS: usize = 40;
/// Page sizes, and chunks of them.
const SIZES: [(u32, Option<usize>); 11] = [
    (1, Some(16)),
    (1, Some(64)),
    (1, Some(4096)),
    (1, None),
    (16, Some(16)),
    (16, Some(64)),
    (16, Some(4096)),
    (16, None),
    (256, Some(256)),
    (256, Some(4096)),
    (256, None),
];

/// How often things happened.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    encoded: usize,
    loaded: u64,
    retractions: u64,
    evicted_tokens: u64,
    starts_inside: usize,
    restarts_inside: usize,
    ends_inside: usize,
    cancelled: usize,
}

fn setup(run: usize, random: &mut Random) -> Setup {
    let (page_size, chunk_tokens) = SIZES[run % SIZES.len()];
    Setup {
        page_size,
        n_tokens: if page_size == 256 { 1280 } else { 640 },
        n_rows: 1 + random.below(8),
        chunk_tokens,
        conservativeness: [0.0, 0.3, 1.0][random.below(3)],
        decode_interval: random.below(3),
        priority: [PriorityOrder::Ignored, PriorityOrder::LargerFirst][random.below(2)],
        max_vectors: [1, 150, 4096][random.below(3)],
        cache_bytes: [0, 1 << 10, 1 << 20][random.below(3)],
        buffers: [0, 2, 8, 32][random.below(4)],
        blocks_per_load: [1, 3, 1 << 10][random.below(3)],
    }
}

/// A prompt of one of three families, with up to three of nine pictures; a few have one that is broken.
fn prompt(random: &mut Random) -> Prompt {
    let family = random.below(3) as u32;
    let mut pictures: Vec<u8> = (0..random.below(4))
        .map(|at| family as u8 * 3 + at as u8)
        .collect();
    if random.percent(20) {
        pictures.reverse();
    }
    if random.percent(3) {
        pictures.push(BROKEN + family as u8);
    }
    let question: Vec<u32> = (0..random.within(1..20))
        .map(|_| 200 + random.below(40) as u32)
        .collect();
    let whole = Prompt::new(family, [0, 20, 55][random.below(3)], &pictures, &question);
    if random.percent(30) {
        whole.cut(random.below(whole.n_tokens()))
    } else {
        whole
    }
}

fn random_event(world: &mut World, random: &mut Random) {
    match random.below(100) {
        0..=34 => {
            let _ = world.end_step(match random.below(200) {
                0 => Outcome::Rejected,
                1 => Outcome::LostBeforeItRan,
                2 => Outcome::LostAfterItRan,
                _ => Outcome::Done,
            });
        }
        35..=74 => {
            let _ = world.deliver(random.below(3));
        }
        75..=92 => {
            let n_pending = world.store.pending.len();
            if n_pending > 0 {
                let is_short = random.percent(20);
                let limit = if is_short {
                    random.below(3)
                } else {
                    usize::MAX
                };
                world.answer(random.below(n_pending), limit);
            }
        }
        93..=95 => {
            let live = world.views.iter().rposition(|view| view.end.is_none());
            if let Some(last) = live {
                world.cancel(random.within(0..last + 1));
            }
        }
        96..=97 => world.store.evict(random.below(1 << 16)),
        98 if random.percent(10) => {
            world.kill_store();
            if random.percent(50) {
                world.start_store_again();
            }
        }
        _ => {}
    }
}

fn run(number: usize) -> Seen {
    let mut random = Random::new(number as u64 * 7919 + 1);
    let setup = setup(number, &mut random);
    let mut seen = Seen::default();
    let mut world = World::new(setup, Disk::default());
    world.is_slow = random.percent(80);
    let mut submitted = 0;
    while submitted < N_REQUESTS {
        if random.percent(8) {
            submitted += 1;
            let (prompt, max_new_tokens) = (prompt(&mut random), random.within(1..20));
            let priority = random.percent(50).then(|| random.below(3) as i64);
            world.submit_ranked(prompt, max_new_tokens, priority);
        } else {
            random_event(&mut world, &mut random);
        }
        if random.below(400) == 0 {
            add(&mut seen, &mut world);
            let is_slow = world.is_slow;
            world = world.restart();
            world.is_slow = is_slow;
        }
    }
    add(&mut seen, &mut world);
    seen
}

/// Ends all requests, and checks that nothing is left of them.
fn add(seen: &mut Seen, world: &mut World) {
    world.assert_clean();
    let stats = world.states.scheduler.stats();
    seen.encoded += world.tower.encoded.len();
    seen.loaded += stats.store.map_or(0, |tier| tier.loaded_tokens);
    seen.retractions += stats.retractions;
    seen.evicted_tokens += stats.evicted_tokens;
    seen.starts_inside += world.hand_out.starts_inside;
    seen.restarts_inside += world.hand_out.restarts_inside;
    seen.ends_inside += world.hand_out.ends_inside;
    let cancelled = world.views.iter().filter(|view| view.flag.is_raised());
    seen.cancelled += cancelled.count();
}

#[test]
#[allow(clippy::print_stdout)] // shows the number of a failed run
fn random_loads_of_images_leave_nothing() {
    let n_runs = std::env::var("SOUFFLEUR_IMAGE_RUNS").ok();
    let n_runs = n_runs.map_or(N_RUNS, |n_runs| n_runs.parse().expect("a number"));
    let mut sums = Seen::default();
    for number in 0..n_runs {
        println!("run {number}");
        let seen = run(number);
        sums.encoded += seen.encoded;
        sums.loaded += seen.loaded;
        sums.retractions += seen.retractions;
        sums.evicted_tokens += seen.evicted_tokens;
        sums.starts_inside += seen.starts_inside;
        sums.restarts_inside += seen.restarts_inside;
        sums.ends_inside += seen.ends_inside;
        sums.cancelled += seen.cancelled;
    }
    println!("{sums:?}");
    assert!(sums.encoded > 100 && sums.cancelled > 10, "{sums:?}");
    assert!(sums.loaded > 0 && sums.evicted_tokens > 0, "{sums:?}");
    assert!(sums.retractions > 0, "{sums:?}");
    let inside = sums.starts_inside.min(sums.ends_inside);
    assert!(inside > 0, "{sums:?}");
}

/// Two requests with an image each, in chunks and slices.
fn run_with(mistake: Option<Mistake>) {
    let mut world = World::new(
        Setup {
            chunk_tokens: Some(16),
            ..Setup::default()
        },
        Disk::default(),
    );
    world.tower.mistake = mistake;
    world.submit(Prompt::new(1, 10, &[2], &[200]), 3);
    world.submit(Prompt::new(2, 10, &[5], &[201]), 3);
    world.assert_clean();
}

#[test]
fn planted_mistakes_are_found() {
    let mistakes = [
        Mistake::LostRelease,
        Mistake::LostNews,
        Mistake::OtherVectors,
        Mistake::OtherOrder,
        Mistake::LostUnit,
    ];
    for mistake in mistakes {
        assert!(panics(|| run_with(Some(mistake))), "{mistake:?}");
    }
    run_with(None);
}
