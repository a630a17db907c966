//! Situations that failed in SGLang in practice, and the test of each.
//!
//! | | situation | test, or the reason for none |
//! |---|---|---|
//! | 1 | duplicates of a chunk freed once, on page boundaries | `corner_1_and_9`; `corner_cases`: `prompt_computed_in_chunks_while_a_copy_is_cached_frees_its_duplicates_once` |
//! | 2 | a second turn's key holds the first one's output | `corner_2` |
//! | 3 | an abort in the prefill publishes nothing unwritten | `corner_3`, twice; `corner_cases`: `abort_before_a_checkpoint_publishes_nothing` |
//! | 4 | abort with a chunk in flight | `corner_4` |
//! | 5 | retracted, then aborted in the same step | `corner_5` |
//! | 6 | the last request does not fit | `corner_6`, twice |
//! | 7 | a victim of preemption that ends in this step | `scheduler_priorities`: `corner_7` |
//! | 8 | split of a locked node | `corner_cases`: `split_of_a_locked_node_leaves_both_halves_locked`, `lock_on_the_upper_half_leaves_the_lower_half_evictable` |
//! | 9 | one prompt computed twice in a batch | `corner_1_and_9`; `corner_cases`: `two_sequences_with_one_prompt_in_one_batch_end_on_the_same_pages` |
//! | 10 | output evicted without its prompt | `corner_cases`: `output_can_be_evicted_without_the_prompt` |
//! | 11 | one hit a request, however many chunks | `corner_cases`: `request_counts_as_one_hit_however_many_chunks_it_comes_in` |
//! | 12 | clipped so that an idle engine can always admit | `corner_12` |
//! | 13 | a stop string trims published tokens | `corner_13` (without speculation, a step gives one token) |
//! | 14 | namespaces isolated, also by splits | `corner_cases`: `namespaces_never_share_and_keep_their_own_splits` |
//! | 15 | unlocked on every exit path | `corner_15` |
//! | 16 | a match ends before the prompt's last token | `corner_16` |
//! | 17 | input log probabilities limit reuse | `corner_17` |
//! | 18 | starved decodes | `scheduler_protection`: `stream_gets_a_token_at_least_every_other_step_while_64_prompts_of_4k_tokens_arrive`; `scheduler_watch` at every step of `scheduler_lives` |
//! | 19 | a full batch that stays full | `corner_19` |
//! | 20 | the order of a queue longer than 128 | `corner_20` |
//! | 21 | eviction frees more than requested, parents become leaves | `corner_cases`: `eviction_takes_whole_nodes_and_continues_with_parents_that_became_leaves` |
//! | 22 | a flush while busy | `corner_22`: a flush cannot be requested; the flush after a lost step waits until no memory is held |
//! | 23 | state slots of hybrid models leak on reject | `state_defects`: `ends_of_every_kind_leave_every_state_accounted_for` |
//! | 24 | over-allocation by speculation | does not apply: there is no speculation; pages after the last token are freed whole in `lifecycle` |

use souffleur_base::error::RequestError;
use souffleur_executor::fake::expected_output;
use souffleur_request::{CancelFlag, FinishReason};
use souffleur_state::scheduler::news::RequestEnd;
use souffleur_state::step::TableDelta;

use crate::scheduler_world::{Ask, EOS, End, Outcome, Setup, VOCAB, World};

fn prompt(family: u32, len: usize) -> Vec<u32> {
    let token = |at: usize| (at as u32 * (family + 3) + at as u32 / 5 + family) % VOCAB;
    (0..len).map(token).collect()
}

fn small(page_size: u32, n_pages: u32) -> Setup {
    Setup {
        page_size,
        n_pages,
        ..Setup::default()
    }
}

fn has_remap(world: &World) -> bool {
    let mut deltas = world.history.iter().flat_map(|step| &step.table);
    deltas.any(|delta| matches!(delta, TableDelta::Remap { .. }))
}

#[test]
fn corner_1_and_9_same_prompt_computed_twice_in_one_step_ends_on_one_copy() {
    let mut world = World::new(Setup {
        prefix_wait: false,
        ..small(4, 64)
    });
    world.submit_all(&mut (0..2).map(|_| Ask::exactly(prompt(0, 18), 6)));
    world.finish_plan();
    world.turn();
    world.finish_plan();
    assert!(has_remap(&world));
    // One copy of the 4 whole pages, and a partial page each.
    assert_eq!(world.stats().private_tokens, 2 * 4);
    assert_eq!(world.stats().protected_tokens, 16);
    world.assert_clean();
}

#[test]
fn corner_2_second_turn_finds_the_output_of_the_first() {
    let mut world = World::new(small(4, 64));
    world.submit(Ask::exactly(prompt(0, 10), 9));
    world.drain();
    let mut second = world.views[0].ask.prompt.clone();
    second.extend(&world.views[0].delivered);
    second.extend([1, 2, 3]);
    world.submit(Ask::exactly(second, 2));
    world.assert_clean();
    // 10 + 9 tokens, of which the last one has no K/V: 18, in whole pages 16.
    assert_eq!(world.views[1].cached_tokens, 16);
}

#[test]
fn corner_3_request_cancelled_before_its_prefill_is_sent_publishes_nothing() {
    for legs in 0..3 {
        let mut world = World::new(small(4, 64));
        let only = world.submit(Ask::exactly(prompt(0, 30), 5)).expect("fits");
        (0..legs).for_each(|_| assert!(world.advance()));
        world.cancel(only);
        world.drain();
        assert_eq!(
            world.states.cache.total_size(),
            0,
            "cancelled at leg {legs}"
        );
        world.assert_clean();
    }
}

#[test]
fn corner_3_pages_published_by_a_cancelled_prefill_are_written_and_usable() {
    let mut world = World::new(small(4, 64));
    let first = world.submit(Ask::exactly(prompt(0, 30), 5)).expect("fits");
    while world.depth() == 0 {
        world.advance();
    }
    world.cancel(first);
    let second = world.submit(Ask::exactly(prompt(0, 30), 5)).expect("fits");
    world.assert_clean();
    assert_eq!(world.views[second].cached_tokens, 28);
    assert_eq!(world.views[second].delivered.len(), 5);
}

#[test]
fn corner_4_cancelled_chunked_request_gives_back_its_pages_with_a_chunk_in_flight() {
    let mut world = World::new(Setup {
        chunk_tokens: Some(8),
        ..small(4, 64)
    });
    let only = world.submit(Ask::exactly(prompt(0, 50), 5)).expect("fits");
    world.finish_plan();
    assert_eq!(world.depth(), 2);
    world.cancel(only);
    world.turn();
    world.finish_plan();
    assert_eq!((world.depth(), world.history.len()), (1, 2));
    assert_eq!(
        (world.stats().private_tokens, world.stats().free_rows),
        (0, 8)
    );
    world.assert_clean();
}

fn turn_until_retracted(world: &mut World) {
    let mut turns = 0;
    while world.stats().retracted_requests == 0 {
        assert!(
            world.turn(),
            "no request was retracted: {:?}",
            world.stats()
        );
        world.finish_plan();
        turns += 1;
        assert!(turns < 10_000);
    }
}

#[test]
fn corner_5_retracted_request_can_be_cancelled_while_its_last_token_is_on_its_way() {
    let mut world = retracting();
    turn_until_retracted(&mut world);
    assert!(world.depth() > 0);
    let retracted = (0..world.views.len())
        .find(|&number| world.is_retracted(number))
        .expect("a request");
    world.cancel(retracted);
    assert_eq!(world.stats().retracted_requests, 0);
    world.assert_clean();
    assert!(world.views[retracted].is_cancelled());
}

/// One request that decodes, then two at once with slightly longer prompts. By the ratio they fit into 206 tokens;
/// by their outputs, which no EOS cuts short, they need 13 + 13 + 14 + 3 * 60 = 220.
fn retracting() -> World {
    let mut world = World::new(small(1, 206));
    world.submit(without_eos(0, 13));
    world.turn();
    world.turn();
    world.submit_all(&mut [without_eos(1, 13), without_eos(2, 14)].into_iter());
    world
}

/// A prompt after which this request generates no EOS in 60 tokens.
fn without_eos(number: u64, prompt_tokens: usize) -> Ask {
    let prompts = (0..4096u32).map(|suffix| {
        let mut tokens = prompt(number as u32, prompt_tokens - 3);
        tokens.extend([suffix / 256, suffix / 16 % 16, suffix % 16]);
        tokens
    });
    let is_long = |tokens: &Vec<u32>| !expected_output(tokens, number, 60, VOCAB).contains(&EOS);
    Ask {
        prompt: prompts.into_iter().find(is_long).expect("a prompt"),
        max_new_tokens: 60,
        ..Ask::default()
    }
}

#[test]
fn corner_6_last_request_that_does_not_fit_fails_and_the_engine_continues() {
    let mut world = World::new(Setup {
        clips: false,
        ..small(1, 64)
    });
    world.submit(Ask::exactly(prompt(0, 200), 1));
    world.drain();
    assert_eq!(world.views[0].failure(), Some(&RequestError::OutOfMemory));
    world.submit(Ask::exactly(prompt(1, 20), 5));
    world.assert_clean();
    assert_eq!(world.views[1].delivered.len(), 5);
}

#[test]
fn corner_6_request_that_outgrows_the_pool_alone_fails_and_keeps_its_output() {
    let mut world = World::new(Setup {
        clips: false,
        ..small(1, 4200)
    });
    // The admission only requires 20 + 4096 + 1 < 4200.
    world.submit(Ask::exactly(prompt(0, 20), 5000));
    world.drain();
    assert_eq!(world.views[0].failure(), Some(&RequestError::OutOfMemory));
    // Every slot was used: one token for each slot after the prompt, and the one of the prefill.
    assert_eq!(world.views[0].delivered.len(), 4200 - 20 + 1);
    world.submit(Ask::exactly(prompt(1, 20), 5));
    world.assert_clean();
    assert_eq!(world.views[1].delivered.len(), 5);
}

#[test]
fn pin_removed_before_it_was_granted_is_unlocked_without_a_further_event() {
    let mut world = World::new(small(1, 64));
    world.submit(Ask::exactly(prompt(0, 20), 5));
    world.drain();
    world.finish_plan();
    // The plan that grants the pin is open.
    world.pin(&prompt(0, 20), 9);
    world.unpin_oldest();
    world.finish_plan();
    assert_eq!(world.stats().protected_tokens, 0);
    // The plan that would grant the pin is not open yet.
    let only = world.submit(Ask::exactly(prompt(1, 20), 9)).expect("fits");
    world.pin(&prompt(0, 20), 9);
    world.unpin_oldest();
    world.cancel(only);
    world.assert_clean();
}

#[test]
fn pins_are_released_for_a_request_that_would_not_fit_otherwise() {
    let mut world = World::new(small(1, 64));
    world.submit(Ask::exactly(prompt(0, 40), 5));
    world.drain();
    world.pin(&prompt(0, 40), 9);
    world.finish_plan();
    assert_eq!(world.stats().protected_tokens, 40);
    world.submit(Ask::exactly(prompt(1, 40), 9));
    world.drain();
    assert_eq!(world.stats().pins, 0);
    world.assert_clean();
}

#[test]
fn a_pin_outlives_a_lost_step_and_is_not_revoked_while_it_holds_no_memory() {
    let mut world = World::new(Setup {
        conservativeness: 0.05,
        ..small(1, 64)
    });
    world.submit(Ask::exactly(prompt(0, 40), 5));
    world.drain();
    world.pin(&prompt(0, 40), 9);
    world.finish_plan();
    world.submit(Ask::exactly(prompt(1, 10), 5));
    world.finish_plan();
    assert!(world.end_step(Outcome::LostAfterItRan));
    world.drain();
    world.finish_plan();
    let pinned = |world: &World| (world.stats().pins, world.stats().protected_tokens);
    assert_eq!(pinned(&world), (1, 0));
    // The second one is admitted when little is reserved for the first one; together they need more than there is.
    let before = world.stats().retractions;
    for (family, max_new_tokens) in [(3, 45), (4, 36)] {
        world.submit(Ask {
            prompt: prompt(family, 10),
            max_new_tokens,
            ..Ask::default()
        });
        world.turn();
        world.finish_plan();
    }
    world.drain();
    assert!(world.stats().retractions > before, "{:?}", world.stats());
    assert_eq!(pinned(&world), (1, 0));
    world.submit(Ask::exactly(prompt(0, 40), 5));
    world.drain();
    world.finish_plan();
    assert_eq!(pinned(&world), (1, 40));
    world.assert_clean();
}

#[test]
fn corner_12_clipped_request_of_any_length_is_admitted_by_an_idle_engine() {
    for page_size in [1, 4, 16] {
        for prompt_tokens in 1..4 * page_size as usize + 80 {
            let mut world = World::new(small(page_size, 96 / page_size + 3));
            let submitted = world.submit(Ask::exactly(prompt(0, prompt_tokens), 1_000_000));
            world.assert_clean();
            if let Some(number) = submitted {
                let view = &world.views[number];
                assert!(view.ask.max_new_tokens >= 1);
                assert_eq!(view.delivered.len(), view.ask.max_new_tokens);
            }
        }
    }
}

#[test]
fn corner_13_stop_string_trims_published_tokens() {
    let mut world = World::new(small(1, 64));
    let only = world.submit(Ask::exactly(prompt(0, 10), 20)).expect("fits");
    while world.views[only].delivered.len() < 8 {
        world.turn();
    }
    world.stop_found(only, 5);
    world.drain();
    // 10 + 5 tokens; the K/V of the last one was computed, but is no longer published.
    assert_eq!(world.states.cache.total_size(), 14);
    world.assert_clean();
}

#[test]
fn corner_15_cancel_on_every_exit_path_leaves_no_lock() {
    // Cancels in the queue, with the plan open at each leg, and while the request runs.
    for legs in 0..6 {
        for turns in 0..4 {
            let mut world = World::new(small(4, 64));
            world.submit(Ask::exactly(prompt(0, 24), 3));
            world.drain();
            let second = world.submit(Ask::exactly(prompt(0, 40), 9)).expect("fits");
            (0..turns).for_each(|_| {
                world.turn();
            });
            (0..legs).for_each(|_| {
                world.advance();
            });
            world.cancel(second);
            world.assert_clean();
            assert!(world.views[second].is_cancelled());
        }
    }
    let mut world = World::new(small(4, 64));
    let flag = CancelFlag::default();
    flag.raise();
    world.submit_flagged(Ask::exactly(prompt(0, 24), 3), flag);
    assert!(world.views[0].is_cancelled());
    world.assert_clean();
    assert!(world.history.is_empty());
}

#[test]
fn corner_16_fully_cached_prompt_still_computes_its_last_page() {
    for (page_size, cached) in [(1, 15), (4, 12), (16, 0)] {
        let mut world = World::new(small(page_size, 128 / page_size));
        world.submit(Ask::exactly(prompt(0, 16), 4));
        world.drain();
        world.submit(Ask::exactly(prompt(0, 16), 4));
        world.assert_clean();
        assert_eq!(world.views[1].cached_tokens, cached);
    }
}

#[test]
fn corner_17_input_logprobs_limit_cached_tokens() {
    let mut world = World::new(small(4, 64));
    world.submit(Ask::exactly(prompt(0, 30), 1));
    world.drain();
    world.submit(Ask {
        logprob_start: Some(13),
        ..Ask::exactly(prompt(0, 30), 0)
    });
    world.assert_clean();
    assert_eq!(world.views[1].cached_tokens, 12);
}

#[test]
fn corner_19_full_batch_admits_again_as_soon_as_one_leaves_even_while_a_plan_is_open() {
    let mut world = World::new(Setup {
        n_rows: 2,
        ..small(1, 512)
    });
    world.submit(Ask::exactly(prompt(0, 5), 100));
    world.submit(Ask::exactly(prompt(1, 5), 100));
    world.turn();
    world.finish_plan();
    let third = world.submit(Ask::exactly(prompt(2, 5), 3)).expect("fits");
    // The next decode's plan is open, on its way back from the pools, when a row becomes free.
    world.end_step(Outcome::Done);
    world.advance();
    world.cancel(0);
    for _ in 0..3 {
        world.turn();
    }
    world.finish_plan();
    assert!(!world.views[third].delivered.is_empty());
    world.assert_clean();
}

#[test]
fn corner_20_queue_longer_than_a_plans_candidates_is_served_in_order_of_arrival() {
    let mut world = World::new(Setup {
        n_rows: 3,
        ..small(1, 512)
    });
    world.submit_all(&mut (0..600).map(|number| Ask::exactly(prompt(number, 4), 1)));
    world.drain();
    let starts = world.history.iter().flat_map(|step| &step.starts);
    let order: Vec<usize> = starts.map(|start| world.number_of(start.seq)).collect();
    assert_eq!(order, (0..600).collect::<Vec<_>>());
    world.assert_clean();
}

#[test]
fn corner_22_tree_is_flushed_only_when_no_step_is_in_flight_and_nothing_is_held() {
    let mut world = World::new(small(4, 64));
    world.submit(Ask::exactly(prompt(0, 30), 9));
    world.finish_plan();
    assert_eq!((world.depth(), world.states.cache.total_size()), (2, 28));
    world.end_step(Outcome::LostAfterItRan);
    assert!(!world.advance(), "a step is still in flight");
    assert_eq!((world.depth(), world.states.cache.total_size()), (1, 28));
    world.end_step(Outcome::Done);
    assert!(world.advance());
    assert_eq!(world.states.cache.total_size(), 0);
    world.assert_clean();
    assert_eq!(world.views[0].delivered.len(), 9);
}

#[test]
fn retraction_takes_the_fewest_outputs_first_and_changes_no_output() {
    let mut world = retracting();
    turn_until_retracted(&mut world);
    // Requests 1 and 2 have two output tokens fewer than request 0, and request 2 has the longer prompt.
    assert!(world.is_retracted(2), "{:?}", world.stats());
    assert!(!world.is_retracted(0) && !world.is_retracted(1));
    world.assert_clean();
    for view in &world.views {
        assert_eq!(view.delivered, view.natural_output());
    }
    let finished = |end: &Option<End>| matches!(end, Some(End::Reported(RequestEnd::Finished(reason))) if *reason != FinishReason::Abort);
    assert!(world.views.iter().all(|view| finished(&view.end)));
}

#[test]
fn a_prompt_that_bypasses_the_cache_takes_nothing_from_it_and_leaves_nothing_there() {
    for policy in ["fcfs", "lpm", "dfs-weight"] {
        let mut world = World::new(Setup {
            chunk_tokens: Some(40),
            policy,
            ..small(4, 128)
        });
        let shared = || Ask::exactly(prompt(0, 90), 2);
        let private = || Ask {
            bypasses_cache: true,
            ..shared()
        };
        world.submit(shared());
        world.drain();
        let cached = world.stats().evictable_tokens;
        assert!(cached >= 88, "{policy}: {cached}");
        world.submit_all(&mut (0..3).map(|index| match index {
            1 => shared(),
            _ => private(),
        }));
        world.assert_clean();
        let hits: Vec<u32> = world.views.iter().map(|view| view.cached_tokens).collect();
        assert_eq!((hits[0], hits[1], hits[3]), (0, 0, 0), "{policy}");
        assert!(hits[2] >= 88, "{policy}: {hits:?}");
        // The output of the request that uses the cache was already cached.
        assert_eq!(world.stats().evictable_tokens, cached, "{policy}");
    }
}
