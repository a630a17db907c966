//! Tests of `PrefillAdder`, the admission arithmetic, against values computed by hand.

use std::ops::Range;
use std::sync::Arc;

use souffleur_state::plan::prefill_adder::Budget::{Continue, NoToken, Other};
use souffleur_state::plan::prefill_adder::{
    Budget, Decision, PrefillAdder, PrefillLimits, RunningReserve,
};
use souffleur_state::plan::token_ratio::NewTokenRatio;

fn adder_with(
    page_size: usize,
    chunk: Option<usize>,
    ratio: f64,
    running: &[(usize, bool)],
) -> PrefillAdder {
    let limits = PrefillLimits {
        page_size,
        max_prefill_tokens: 1000,
        chunked_prefill_size: chunk,
        mixed_rows: 0,
    };
    let running = running
        .iter()
        .map(|&(remaining_new_tokens, ignore_eos)| RunningReserve {
            remaining_new_tokens,
            ignore_eos,
            output_tokens: 0,
            held_tokens: 0,
        });
    PrefillAdder::new(limits, ratio, running)
}

fn adder(page_size: usize, chunk: Option<usize>) -> PrefillAdder {
    adder_with(page_size, chunk, 0.7, &[])
}

fn whole(end: usize) -> Decision {
    Decision::Admit {
        end,
        chunked: false,
    }
}

fn part(end: usize) -> Decision {
    Decision::Admit { end, chunked: true }
}

fn refused(budget: Budget) -> Decision {
    Decision::Refuse(budget)
}

#[test]
fn request_must_leave_one_token_of_the_pool_unused() {
    // extend + max_new + page_size < 256 on an idle engine of 256 tokens, page size 1.
    let cases = [
        // 200 + 100 + 1 = 301
        (200, 100, refused(NoToken)),
        // 200 + 55 + 1 = 256: not less
        (200, 55, refused(NoToken)),
        // 200 + 54 + 1 = 255
        (200, 54, whole(200)),
    ];
    for (len, max_new, expected) in cases {
        let decision = adder(1, None).add(len, 0, max_new, 256, true);
        assert_eq!(decision, expected, "{len} + {max_new}");
    }
}

#[test]
fn cached_prefix_costs_nothing_and_generation_is_reserved_up_to_4096() {
    // (300 - 200) + 50 + 1 = 151 < 152
    assert_eq!(adder(1, None).add(300, 200, 50, 152, true), whole(300));
    assert_eq!(
        adder(1, None).add(300, 200, 50, 151, true),
        refused(NoToken)
    );
    // 10 + min(100_000, 4096) + 1 = 4107 < 4108
    assert_eq!(adder(1, None).add(10, 0, 100_000, 4108, true), whole(10));
    assert_eq!(
        adder(1, None).add(10, 0, 100_000, 4107, true),
        refused(NoToken)
    );
}

#[test]
fn running_requests_reserve_by_the_ratio_and_fully_if_they_ignore_eos() {
    // 0.5 * 100 + 1.0 * 30 + 0.5 * min(9000, 4096) = 50 + 30 + 2048 = 2128; 10 + 5 + 1 = 16 < 2145 - 2128 = 17
    let running = [(100, false), (30, true), (9000, false)];
    let fresh = || adder_with(1, None, 0.5, &running);
    assert_eq!(fresh().add(10, 0, 5, 2145, true), whole(10));
    assert_eq!(fresh().add(10, 0, 5, 2144, true), refused(NoToken));
    assert_eq!(fresh().budget(2128), NoToken);
    assert_eq!(fresh().budget(2129), Continue);
}

#[test]
fn admission_reserves_whole_pages_and_one_more() {
    let mut adder = adder(16, None);
    // ceil(20) = 32, + 16 + 10 generated = 58 of 200: 142 are left.
    assert_eq!(adder.add(20, 0, 10, 200, true), whole(20));
    assert_eq!(adder.budget(58), NoToken);
    assert_eq!(adder.budget(59), Continue);
    // 100 + 25 + 16 = 141 < 142
    assert_eq!(adder.clone().add(100, 0, 25, 200, false), whole(100));
    assert_eq!(adder.add(100, 0, 26, 200, false), refused(NoToken));
}

#[test]
fn step_without_chunks_takes_any_first_request_and_then_up_to_its_input_limit() {
    let available = 100_000;
    // The limit is 1000. The first request is taken at any length; then nothing fits.
    let mut long = adder(1, None);
    assert_eq!(long.add(1500, 0, 1, available, true), whole(1500));
    assert_eq!(long.budget(available), Other);
    // 1000 - 600 = 400: a request of 400 fills the rest exactly and is refused; one of 399 is admitted.
    let mut short = adder(1, None);
    assert_eq!(short.add(600, 0, 1, available, true), whole(600));
    assert_eq!(
        short.clone().add(400, 0, 1, available, false),
        refused(Other)
    );
    assert_eq!(short.add(399, 0, 1, available, false), whole(399));
    assert_eq!(short.budget(available), Continue);
}

#[test]
fn chunk_is_floored_to_pages_and_reserves_no_output() {
    let mut adder = adder(16, Some(100));
    // floor(100) = 96 after 32 cached tokens; 96 + 16 reserved and none of the 500 to generate.
    assert_eq!(adder.add(300, 32, 500, 2000, true), part(128));
    // 100 - 96 = 4 are left: less than a page.
    assert_eq!(adder.budget(113), Continue);
    assert_eq!(adder.budget(112), NoToken);
    assert_eq!(adder.add(40, 0, 1, 2000, false), refused(Other));
    // A whole request counts in pages too: ceil(97) = 112 > 100.
    let mut adder = self::adder(16, Some(100));
    assert_eq!(adder.add(97, 0, 1, 2000, true), part(96));
}

#[test]
fn chunk_that_is_used_up_ends_the_step() {
    let mut adder = adder(16, Some(96));
    assert_eq!(adder.add(96, 0, 1, 2000, true), whole(96));
    assert_eq!(adder.budget(2000), Other);
}

#[test]
fn continued_chunk_is_limited_by_free_memory_unless_none_is_free() {
    // 0.5 * 40 = 20 reserved.
    let fresh = || adder_with(1, Some(100), 0.5, &[(40, false)]);
    // rem_total = 200 - 20 = 180: the chunk of 100 is the limit.
    assert_eq!(fresh().add_chunked(500, 100, 9, 200), part(200));
    // rem_total = 50 - 20 = 30 < 100.
    assert_eq!(fresh().add_chunked(500, 100, 9, 50), part(130));
    // rem_total <= 0: the request continues nevertheless, since only its end frees its memory.
    assert_eq!(fresh().add_chunked(500, 100, 9, 20), part(200));
    // The rest of the prompt is shorter than both limits.
    assert_eq!(fresh().add_chunked(125, 100, 9, 200), whole(125));
}

#[test]
fn continued_chunk_reserves_its_output_only_at_its_end() {
    // Continues: 100 + 1 reserved. Ends: 25 + 1 + 9.
    let mut continues = adder(1, Some(100));
    assert_eq!(continues.add_chunked(500, 100, 9, 1000), part(200));
    assert_eq!(continues.budget(1000), Other);
    assert_eq!(continues.budget(101), NoToken);
    let mut ends = adder(1, Some(100));
    assert_eq!(ends.add_chunked(125, 100, 9, 1000), whole(125));
    assert_eq!((ends.budget(35), ends.budget(36)), (NoToken, Continue));
}

#[test]
fn token_ratio_decays_in_600_steps_to_a_seventh_and_jumps_after_a_retraction() {
    let near = |ratio: &NewTokenRatio, expected: f64| {
        assert!((ratio.get() - expected).abs() < 1e-9, "{ratio:?}");
    };
    let mut ratio = NewTokenRatio::new(1.0);
    near(&ratio, 0.7);
    ratio.decay();
    // min = 0.7 * 0.14 = 0.098; (0.7 - 0.098) / 600
    near(&ratio, 0.7 - 0.602 / 600.0);
    (0..700).for_each(|_| ratio.decay());
    near(&ratio, 0.098);
    // (10 + 30 + 2 * 20) / (100 + 59 + 1) = 80 / 160
    ratio.after_retraction([(10, 100), (30, 59)].into_iter());
    near(&ratio, 0.5);
    // (5 + 20) / (9 + 1) is above 1, the upper bound.
    ratio.after_retraction([(5, 9)].into_iter());
    near(&ratio, 1.0);
    ratio.reset();
    near(&ratio, 0.7);
    near(&NewTokenRatio::new(2.0), 1.0);
}

#[test]
fn without_a_cache_requests_that_ignore_eos_must_fit_until_each_end() {
    // Two requests of 10 tokens that generate 50 each, in a pool of 121 tokens, pages of 1.
    // All at once: 2 * (10 + 50 + 1) = 122 > 121. One after the other: the second needs 10 of 121 - 11 = 110;
    // with 100 left, the first end comes after 50 steps of two: 100 - 100 = 0 <= 2.
    let mut adder = adder(1, None);
    assert_eq!(adder.add_ignoring_eos(10, 0, 50, 121), whole(10));
    assert_eq!(adder.add_ignoring_eos(10, 0, 50, 121), refused(NoToken));
    // A second request that ends after 20 steps frees its 10 tokens: at 20, 100 - 2 * 20 = 60; at 50, 100 + 10 - 50 =
    // 60.
    let mut adder = adder_with(1, None, 0.7, &[]);
    assert_eq!(adder.add_ignoring_eos(10, 0, 50, 121), whole(10));
    assert_eq!(adder.add_ignoring_eos(10, 0, 20, 121), whole(10));
    // The chunk size limits such a request like any other.
    let mut adder = adder_with(4, Some(8), 0.7, &[]);
    assert_eq!(
        adder.add_ignoring_eos(20, 0, 5, 500),
        Decision::Admit {
            end: 8,
            chunked: true
        }
    );
}

#[test]
fn a_load_in_rounds_takes_pages_and_the_place_of_the_chunked_request() {
    // The whole request must fit: 100 + 20 + 4 < 125.
    let mut full = adder(4, Some(32));
    assert_eq!(full.add_round(100, (0, 64), 20, 124), refused(NoToken));
    let mut adder = adder(4, Some(32));
    assert_eq!(adder.add_round(100, (0, 64), 20, 125), part(64));
    // The load takes none of the step's input, but no other request may be chunked or loaded in rounds.
    assert_eq!(adder.rem_chunk(), 32);
    assert_eq!(adder.add_round(100, (0, 64), 20, 1000), refused(Other));
    assert_eq!(adder.add(40, 0, 1, 1000, false), refused(Other));
    assert_eq!(adder.add(20, 0, 1, 1000, false), whole(20));
}

#[test]
fn a_round_is_loaded_as_far_as_there_are_pages() {
    assert_eq!(adder(4, Some(32)).load_chunked(64, 1000), 64);
    assert_eq!(adder(4, Some(32)).load_chunked(64, 30), 28);
    assert_eq!(adder(4, Some(32)).load_chunked(64, 3), 0);
    let mut waits = adder(4, Some(32));
    waits.reserve_chunked(60, 10);
    // 60 and 10 of 100 are reserved: 24 + 1 + 4 < 30.
    assert_eq!(waits.add(25, 0, 1, 100, true), refused(NoToken));
    assert_eq!(waits.add(24, 0, 1, 100, true), whole(24));
}

fn mixed(chunk: usize, mixed_rows: usize) -> PrefillAdder {
    let limits = PrefillLimits {
        page_size: 1,
        max_prefill_tokens: 1000,
        chunked_prefill_size: Some(chunk),
        mixed_rows,
    };
    PrefillAdder::new(limits, 0.7, std::iter::empty())
}

/// The decision on a candidate with `prefix` cached tokens, and with runs that no chunk may cut.
fn add(
    adder: &mut PrefillAdder,
    (len, prefix): (usize, usize),
    runs: &[Range<u32>],
    is_first: bool,
) -> Decision {
    adder.keep_whole(Some(&runs.into()));
    adder.add(len, prefix, 5, 1000, is_first)
}

#[test]
fn chunks_end_before_a_run_that_does_not_fit() {
    let runs = [70..120, 150..170];
    // The chunk would end within, at the beginning, at the end, and between runs.
    for (chunk, end) in [(96, 70), (70, 70), (120, 120), (130, 130), (160, 150)] {
        let mut adder = adder(1, Some(chunk));
        assert_eq!(add(&mut adder, (300, 0), &runs, true), part(end), "{chunk}");
    }
    // Not a page's end: no earlier one is better.
    let mut paged = adder(16, Some(96));
    assert_eq!(add(&mut paged, (300, 0), &runs, true), part(70));
    // The next candidate has no runs.
    let mut other = adder(1, Some(96));
    other.keep_whole(Some(&runs.as_slice().into()));
    other.keep_whole(None);
    assert_eq!(other.add(300, 0, 5, 1000, true), part(96));
}

#[test]
fn a_run_at_the_beginning_exceeds_the_budget_only_alone() {
    // Decodes have a part of the chunk's tokens.
    let run = [0..100, 200..201];
    assert_eq!(add(&mut mixed(100, 8), (300, 0), &run, true), part(100));
    // The cached prefix cuts the run, and the rest of the prompt is the rest of the run.
    let mut paged = adder(16, Some(64));
    let run = [30..100, 200..201];
    assert_eq!(add(&mut paged, (100, 32), &run, true), whole(100));
    // After another candidate only what fits is admitted.
    for (runs, decision) in [
        ([5..50, 60..61], part(5)),
        ([0..50, 60..61], refused(Other)),
        ([0..40, 60..61], part(40)),
    ] {
        let mut adder = adder(1, Some(100));
        assert_eq!(adder.add(60, 0, 5, 1000, true), whole(60));
        assert_eq!(add(&mut adder, (300, 0), &runs, false), decision);
    }
}

#[test]
fn the_chunked_request_continues_whole_runs() {
    let runs: Arc<[Range<u32>]> = [50..110, 114..120].into();
    for (mixed_rows, prefix, available, end) in [
        (0, 0, 1000, 50),
        (0, 50, 1000, 114),
        // The prefix ended within the run, as one from the store.
        (0, 60, 1000, 124),
        (8, 50, 1000, 110),
        // Neither less memory than the run takes, nor a chunk of one token, cuts it.
        (0, 50, 20, 110),
        (63, 50, 1000, 110),
    ] {
        let mut adder = mixed(64, mixed_rows);
        adder.keep_whole(Some(&runs));
        let decision = adder.add_chunked(300, prefix, 5, available);
        assert_eq!(decision, part(end), "{mixed_rows}, {prefix}, {available}");
    }
    let mut adder = mixed(64, 8);
    adder.keep_whole(Some(&runs));
    assert_eq!(adder.add_chunked(110, 50, 5, 1000), whole(110));
}
