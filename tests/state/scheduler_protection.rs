//! Tests that queued prompts do not delay the tokens of streams, and themselves wait no longer than needed.

use souffleur_state::scheduler::BatchRules;
use souffleur_state::step::RowWork;

use crate::scheduler_world::{Ask, Setup, VOCAB, World};

const PROMPTS: u32 = 64;
const PROMPT_TOKENS: u32 = 4096;
const CHUNK_TOKENS: usize = 4096;

/// A prompt that shares no prefix with the prompts of other numbers.
fn prompt(number: u32, tokens: u32) -> Vec<u32> {
    let own = [number % VOCAB, number / VOCAB];
    let rest = (2..tokens).map(|at| (at * 7 + at / 11 + number) % VOCAB);
    own.into_iter().chain(rest).collect()
}

/// Rules under which a prefill never waits for decodes.
fn without_protection() -> BatchRules {
    BatchRules {
        prefill_decode_interval: 0,
        ..BatchRules::default()
    }
}

fn mixed() -> BatchRules {
    BatchRules {
        mixed_chunk: true,
        ..without_protection()
    }
}

fn world(rules: BatchRules) -> World {
    World::new(Setup {
        page_size: 16,
        n_pages: 20_000,
        n_rows: 128,
        chunk_tokens: Some(CHUNK_TOKENS),
        rules,
        ..Setup::default()
    })
}

/// The most steps between two tokens of this request, from the steps that sample for it.
fn worst_gap(world: &World, number: usize) -> u64 {
    let steps = world.history.iter().filter(|step| {
        let mut rows = step.rows.iter().filter(|row| row.sample);
        rows.any(|row| world.number_of(row.seq) == number)
    });
    let steps: Vec<u64> = steps.map(|step| step.step.get()).collect();
    let gaps = steps.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().expect("it generates more than one token")
}

fn first_token_step(world: &World, number: usize) -> u64 {
    let step = world.history.iter().find(|step| {
        let mut rows = step.rows.iter().filter(|row| row.sample);
        rows.any(|row| world.number_of(row.seq) == number)
    });
    step.expect("it generates a token").step.get()
}

fn gap_of_a_stream(rules: BatchRules) -> u64 {
    let mut world = world(rules);
    let stream = world
        .submit(Ask::exactly(prompt(1000, 32), 200))
        .expect("it fits");
    for _ in 0..5 {
        world.turn();
    }
    let prompts = (0..PROMPTS).map(|number| Ask::exactly(prompt(number, PROMPT_TOKENS), 2));
    world.submit_all(&mut prompts.into_iter());
    world.drain();
    let gap = worst_gap(&world, stream);
    assert_eq!(gap, world.watch.worst_gap(stream) as u64);
    world.assert_clean();
    gap
}

#[test]
#[allow(clippy::print_stdout)] // prints the compared figures
fn stream_gets_a_token_at_least_every_other_step_while_64_prompts_of_4k_tokens_arrive() {
    let configured = gap_of_a_stream(BatchRules::default());
    let unprotected = gap_of_a_stream(without_protection());
    let in_mixed_steps = gap_of_a_stream(mixed());
    println!(
        "worst gap between two tokens of a stream while {PROMPTS} prompts of {PROMPT_TOKENS} tokens arrive: \
         {configured} steps as configured, {unprotected} with the protection off, {in_mixed_steps} in mixed steps"
    );
    // Between two decodes of the stream: one prefill step; the steps of all prompts; no step.
    assert_eq!(
        (configured, unprotected, in_mixed_steps),
        (2, u64::from(PROMPTS) + 1, 1)
    );
}

#[test]
fn interval_of_k_gives_k_decodes_between_two_prefills() {
    for interval in 1..5 {
        let rules = BatchRules {
            prefill_decode_interval: interval,
            ..BatchRules::default()
        };
        let mut world = world(rules);
        world.submit(Ask::exactly(prompt(1000, 32), 100));
        world.turn();
        world.submit_all(&mut (0..6).map(|number| Ask::exactly(prompt(number, 4096), 40)));
        world.drain();
        let is_prefill = |step: &souffleur_state::step::StepPlan| {
            let mut rows = step.rows.iter();
            rows.any(|row| matches!(row.work, RowWork::Prefill { .. }))
        };
        let prefills = world.history.iter().filter(|step| is_prefill(step));
        let steps: Vec<u64> = prefills.map(|step| step.step.get()).collect();
        // The first prefill leaves no stream out; the following ones do.
        let gaps: Vec<u64> = steps[1..].windows(2).map(|two| two[1] - two[0]).collect();
        assert_eq!(gaps, vec![interval as u64 + 1; 5], "{steps:?}");
        world.assert_clean();
    }
}

#[test]
fn fewer_streams_than_the_minimum_do_not_hold_up_a_prefill() {
    for (streams, gap) in [(1, 5), (2, 5), (3, 2)] {
        let rules = BatchRules {
            prefill_decode_interval_min_bs: 3,
            ..BatchRules::default()
        };
        let mut world = world(rules);
        world.submit_all(
            &mut (0..streams).map(|number| Ask::exactly(prompt(1000 + number, 32), 60)),
        );
        for _ in 0..6 {
            world.turn();
        }
        // These requests generate one token, so they never count as streams.
        world.submit_all(&mut (0..4).map(|number| Ask::exactly(prompt(number, 4096), 1)));
        world.drain();
        assert_eq!(worst_gap(&world, 0), gap, "{streams} streams");
        world.assert_clean();
    }
}

#[test]
#[allow(clippy::print_stdout)] // prints the compared figures
fn protection_of_streams_delays_sixteen_users_at_once_only_from_the_third_chunk_on() {
    let first_tokens = |rules, prompt_tokens, shared: u32| {
        let mut world = world(rules);
        let ask = |number| {
            let mut tokens = prompt(2000, shared.max(2));
            tokens.extend(prompt(number, prompt_tokens));
            Ask::exactly(tokens, 8)
        };
        world.submit_all(&mut (0..16).map(ask));
        world.drain();
        let steps: Vec<u64> = (0..16)
            .map(|number| first_token_step(&world, number))
            .collect();
        world.assert_clean();
        steps
    };
    // All prompts fit into one chunk; into two chunks; into one, after a shared prefix that one request computes.
    for (prompt_tokens, shared) in [(200, 0), (400, 0), (100, 512)] {
        let configured = first_tokens(BatchRules::default(), prompt_tokens, shared);
        let unprotected = first_tokens(without_protection(), prompt_tokens, shared);
        println!("{prompt_tokens} tokens after {shared}: first tokens at steps {configured:?}");
        assert_eq!(configured, unprotected);
    }
    // Sixteen chunks: from the third on, the requests that have begun get one token before the next one begins.
    let configured = first_tokens(BatchRules::default(), 4000, 0);
    let unprotected = first_tokens(without_protection(), 4000, 0);
    println!("4000 tokens: {configured:?} as configured, {unprotected:?} with the protection off");
    assert_eq!(unprotected, (1..=16).collect::<Vec<u64>>());
    let expected = (0..16).map(|number| if number < 2 { number + 1 } else { 2 * number });
    assert_eq!(configured, expected.collect::<Vec<u64>>());
}

#[test]
fn decodes_in_a_mixed_step_shorten_the_chunk() {
    let rules = BatchRules {
        mixed_chunk: true,
        ..BatchRules::default()
    };
    let mut world = World::new(Setup {
        page_size: 4,
        n_pages: 256,
        chunk_tokens: Some(16),
        rules,
        ..Setup::default()
    });
    world.submit_all(&mut (0..2).map(|number| Ask::exactly(prompt(number, 6), 30)));
    world.turn();
    world.submit(Ask::exactly(prompt(2, 40), 3));
    world.drain();
    let steps = world.history.iter().map(|step| {
        let rows = step.rows.iter().map(|row| row.work.positions());
        rows.collect::<Vec<_>>()
    });
    let is_mixed = |rows: &Vec<std::ops::Range<u32>>| rows.len() == 3;
    let mixed: Vec<_> = steps.filter(is_mixed).map(|rows| rows[0].clone()).collect();
    // 16 - 2 = 14 tokens, floored to pages in the first chunk; a continued chunk is not floored.
    assert_eq!(mixed[..3], [0..12, 12..26, 26..40]);
    assert_eq!(world.watch.mixed_steps, 3);
    world.assert_clean();
}

#[test]
fn decodes_are_not_mixed_with_log_probabilities_or_if_no_page_is_left_for_a_chunk() {
    let rules = BatchRules {
        mixed_chunk: true,
        ..BatchRules::default()
    };
    let logprobs = |ask| Ask {
        logprob_start: Some(0),
        ..ask
    };
    let plain = |number| Ask::exactly(prompt(number, 6), 80);
    let late = || Ask::exactly(prompt(9, 40), 3);
    let cases: [(&str, Vec<Ask>, Ask, usize); 4] = [
        ("plain", vec![plain(0), plain(1)], late(), 16),
        (
            "requested by a decoding request",
            vec![plain(0), logprobs(plain(1))],
            late(),
            16,
        ),
        (
            "requested by the new request",
            vec![plain(0)],
            logprobs(late()),
            16,
        ),
        ("no page left", (0..6).map(plain).collect(), late(), 8),
    ];
    for (case, running, late, chunk) in cases {
        let mut world = World::new(Setup {
            page_size: 4,
            n_pages: 256,
            chunk_tokens: Some(chunk),
            rules,
            ..Setup::default()
        });
        world.submit_all(&mut running.into_iter());
        for _ in 0..24 {
            world.turn();
        }
        let before = world.watch.mixed_steps;
        let number = world.submit(late).expect("it fits");
        while world.views[number].delivered.is_empty() {
            world.turn();
        }
        assert_eq!(world.watch.mixed_steps > before, case == "plain", "{case}");
        world.assert_clean();
    }
}

#[test]
fn decodes_pause_and_are_not_retracted_when_a_prefill_takes_their_pages() {
    let mut world = World::new(Setup {
        page_size: 4,
        n_pages: 12,
        chunk_tokens: Some(32),
        conservativeness: 0.0,
        rules: mixed(),
        ..Setup::default()
    });
    let ask = |number, tokens, max_new_tokens| Ask {
        prompt: prompt(number, tokens),
        max_new_tokens,
        ..Ask::default()
    };
    // Three prompts of 6 tokens, then one of 8 in the third step: 8 pages are held, and the fourth step is the first
    // that needs one more page for each of them.
    world.submit_all(&mut (0..3).map(|number| ask(number, 6, 4)));
    world.finish_plan();
    assert_eq!((world.depth(), world.history.len()), (2, 2));
    world.submit(ask(3, 8, 4));
    world.turn();
    world.finish_plan();
    assert_eq!((world.depth(), world.history.len()), (2, 3));
    // 4 + 1 + 4 tokens are less than the 16 free ones minus 4 rows: it is admitted, and 3 pages are left for 4.
    world.submit(ask(9, 4, 1));
    world.turn();
    world.finish_plan();
    let rows: Vec<usize> = world.history.iter().map(|step| step.rows.len()).collect();
    assert_eq!(rows, [3, 3, 4, 1]);
    world.assert_clean();
    assert_eq!((world.stats().retractions, world.watch.mixed_steps), (0, 1));
}
