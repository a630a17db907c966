//! Tests of priorities: preemption of running requests, order of the queue, refusal by a full queue.
//!
//! The tables' values follow SGLang's rules: victims have the lowest priority, and among equals the newest go first;
//! each victim's priority must be lower than the candidate's by more than the threshold; no request is preempted unless
//! the victims' reservations cover the candidate's deficit.

use souffleur_base::error::RequestError;
use souffleur_base::ids::SeqId;
use souffleur_state::plan::preemption::{Deficit, Preemption, PriorityRules, Rank, Victim};
use souffleur_state::plan::prefill_adder::{PrefillAdder, PrefillLimits, RunningReserve};
use souffleur_state::pool::window_pool::WindowLimits;
use souffleur_state::scheduler::BatchRules;

use crate::scheduler_world::{Ask, Outcome, Setup, VOCAB, World};

fn prompt(number: u32, tokens: u32) -> Vec<u32> {
    let token = |at| (at * 5 + at / 3 + number * 17 + 1) % VOCAB;
    (0..tokens).map(token).collect()
}

fn ask(number: u32, tokens: u32, max_new_tokens: usize, priority: Option<i64>) -> Ask {
    Ask {
        priority,
        ..Ask::exactly(prompt(number, tokens), max_new_tokens)
    }
}

fn rules(threshold: Option<i64>) -> BatchRules {
    BatchRules {
        priority: Some(PriorityRules {
            low_values_first: false,
            preemption_threshold: threshold,
            max_requests: usize::MAX,
        }),
        ..BatchRules::default()
    }
}

fn world(n_rows: u32, n_pages: u32, rules: BatchRules) -> World {
    World::new(Setup {
        n_pages,
        n_rows,
        rules,
        ..Setup::default()
    })
}

fn run_until(world: &mut World, number: usize, tokens: usize) {
    let mut turns = 0;
    while world.views[number].delivered.len() < tokens {
        assert!(world.turn(), "{:?}", world.stats());
        turns += 1;
        assert!(turns < 1000);
    }
}

fn missing(tokens: f64, window_tokens: f64) -> Deficit {
    Deficit {
        tokens,
        window_tokens,
    }
}

#[test]
fn the_fewest_worst_and_newest_requests_that_cover_the_deficit_are_preempted() {
    // (sequence, priority, tokens reserved)
    let running = [
        (1, Some(0), 100.0),
        (2, Some(5), 200.0),
        (3, Some(0), 50.0),
        (4, None, 10.0),
    ];
    // (priority of the candidate, its deficit, victims)
    type Case<'a> = (Option<i64>, f64, Option<&'a [u64]>);
    let table: [Case<'_>; 14] = [
        (Some(11), -7.0, Some(&[4])),
        (Some(11), 0.0, Some(&[4])),
        (Some(11), 10.0, Some(&[4])),
        (Some(11), 10.5, Some(&[4, 3])),
        (Some(11), 60.0, Some(&[4, 3])),
        (Some(11), 61.0, Some(&[4, 3, 1])),
        (Some(11), 160.0, Some(&[4, 3, 1])),
        // 11 - 5 is not more than 10: the deficit is not covered, so no request is preempted.
        (Some(11), 161.0, None),
        (Some(15), 161.0, None),
        (Some(16), 161.0, Some(&[4, 3, 1, 2])),
        (Some(16), 360.5, None),
        // 10 - 0 is not more than 10; a missing priority is lower by more than any threshold.
        (Some(10), 11.0, None),
        (Some(-1000), 0.0, Some(&[4])),
        (None, 0.0, None),
    ];
    for low_values_first in [false, true] {
        let sign = if low_values_first { -1 } else { 1 };
        let rank = |priority: Option<i64>| Rank::of(priority.map(|p| sign * p), low_values_first);
        let victims = running
            .iter()
            .map(|&(seq, priority, reserved_tokens)| Victim {
                seq: SeqId::new(seq),
                rank: rank(priority),
                reserved_tokens,
                window_tokens: 0.0,
            });
        let preemption = Preemption::new(10, victims.collect());
        for (priority, deficit, expected) in table {
            let chosen = preemption.choose(rank(priority), missing(deficit, 0.0));
            let chosen: Option<Vec<u64>> =
                chosen.map(|victims| victims.iter().map(|v| v.seq.get()).collect());
            assert_eq!(chosen.as_deref(), expected, "{priority:?}, {deficit}");
        }
    }
}

#[test]
fn victims_cover_missing_pages_and_window_pages() {
    let victim = |(seq, priority, reserved_tokens, window_tokens): (u64, i64, f64, f64)| Victim {
        seq: SeqId::new(seq),
        rank: Rank::of(Some(priority), false),
        reserved_tokens,
        window_tokens,
    };
    let running = [
        (1, 20, 9.0, 9.0),
        (2, 0, 5.0, 30.0),
        (3, 0, 50.0, 20.0),
        (4, 0, 1.0, 10.0),
    ];
    let preemption = Preemption::new(10, running.map(victim).to_vec());
    // (priority of the candidate, its deficits, number of victims)
    for (priority, tokens, window_tokens, expected) in [
        (15, -3.0, 0.0, Some(1)),
        (15, -3.0, 10.0, Some(1)),
        (15, -3.0, 10.5, Some(2)),
        (15, -3.0, 60.0, Some(3)),
        (15, 2.0, 5.0, Some(2)),
        (15, 52.0, 5.0, Some(3)),
        // Requests 2 to 4 free only 60; request 1 may be preempted only for priorities above 30.
        (15, -3.0, 61.0, None),
        (30, -3.0, 61.0, None),
        (31, -3.0, 61.0, Some(4)),
        // If all are preempted, the window deficit no longer counts, but the token deficit does.
        (31, -3.0, 1000.0, Some(4)),
        (31, 66.0, 61.0, None),
    ] {
        let rank = Rank::of(Some(priority), false);
        let chosen = preemption.choose(rank, missing(tokens, window_tokens));
        let chosen = chosen.map(<[_]>::len);
        assert_eq!(chosen, expected, "{priority}: {tokens}, {window_tokens}");
    }
}

#[test]
fn priorities_at_the_ends_of_their_range_can_be_compared() {
    let rank = |priority| Rank::of(Some(priority), false);
    assert!(rank(i64::MIN) > Rank::of(None, false));
    assert!(Rank::of(Some(i64::MIN), true) > Rank::of(Some(i64::MAX), true));
    assert!(Rank::of(Some(i64::MAX), true) > Rank::of(None, true));
    let victim = Victim {
        seq: SeqId::new(1),
        rank: rank(i64::MIN),
        reserved_tokens: 1.0,
        window_tokens: 0.0,
    };
    let preemption = Preemption::new(10, vec![victim]);
    let chosen = preemption.choose(rank(i64::MAX), missing(0.0, 0.0));
    assert!(chosen.is_some());
}

#[test]
fn the_deficit_is_the_demand_of_a_candidate_minus_the_remaining_tokens() {
    let limits = PrefillLimits {
        page_size: 4,
        max_prefill_tokens: 16384,
        chunked_prefill_size: Some(4096),
        mixed_rows: 2,
    };
    let reserve = |remaining_new_tokens, ignore_eos| RunningReserve {
        remaining_new_tokens,
        ignore_eos,
        output_tokens: 3,
        held_tokens: 20,
    };
    let running = [reserve(100, false), reserve(5000, false), reserve(30, true)];
    let tokens: Vec<f64> = running.iter().map(|reserve| reserve.tokens(0.5)).collect();
    assert_eq!(tokens, [50.0, 2048.0, 30.0]);
    let adder = PrefillAdder::new(limits, 0.5, running.into_iter());
    // 2 mixed rows + 50 + 2048 + 30 are taken: of 3000 tokens 870 remain.
    assert_eq!(adder.deficit(800, 70, 3000), 0.0);
    assert_eq!(adder.deficit(800, 71, 3000), 1.0);
    assert_eq!(adder.deficit(10, 5000, 3000), (10 + 4096 - 870) as f64);
    assert_eq!(adder.deficit(10, 20, 3000), (30 - 870) as f64);
}

#[test]
fn request_without_a_row_preempts_the_newest_request_of_the_lowest_priority() {
    // (priority of the arriving request, the request that it preempts)
    for (priority, victim) in [
        (Some(30), Some(2)),
        (Some(11), Some(2)),
        (Some(10), None),
        (None, None),
    ] {
        let mut world = world(3, 512, rules(Some(10)));
        let running = [Some(0), Some(20), Some(0)];
        let running = (0..3).map(|number| ask(number, 8, 60, running[number as usize]));
        world.submit_all(&mut running.into_iter());
        run_until(&mut world, 2, 3);
        let late = world.submit(ask(9, 8, 4, priority)).expect("it fits");
        if victim.is_some() {
            run_until(&mut world, late, 1);
        } else {
            (0..10).for_each(|_| assert!(world.turn()));
            assert!(world.views[late].delivered.is_empty());
        }
        for number in 0..3 {
            let freed = !world.views[number].holds_memory;
            assert_eq!(freed, victim == Some(number), "{priority:?}: {number}");
        }
        world.assert_clean();
        assert_eq!(world.stats().preemptions, u64::from(victim.is_some()));
        assert_eq!(world.stats().retractions, 0);
    }
}

#[test]
fn request_without_memory_preempts_only_if_that_covers_its_deficit() {
    // Of the 200 tokens, two running requests hold 8 each and reserve 80 each for their outputs: 24 remain. Each victim
    // frees 80 minus its generated tokens. The candidate wants 22, 42, 112, 192.
    for (prompt_tokens, preemptions) in [(20, 0), (40, 1), (110, 2), (190, 0)] {
        let mut world = world(8, 200, rules(Some(10)));
        world.submit_all(&mut (0..2).map(|number| ask(number, 8, 80, Some(0))));
        run_until(&mut world, 1, 2);
        let late = world.submit(ask(9, prompt_tokens, 2, Some(50)));
        let late = late.expect("it fits alone");
        run_until(&mut world, late, 1);
        assert_eq!(
            world.stats().preemptions,
            preemptions,
            "{prompt_tokens} tokens"
        );
        world.assert_clean();
    }
}

/// Runs four requests, each of which keeps the window pages of its last 32 tokens, then one of better priority.
fn crowded_windows(priorities: [i64; 4], prompt_tokens: u32) -> World {
    let mut world = World::new(Setup {
        n_pages: 8192,
        n_rows: 8,
        chunk_tokens: Some(128),
        rules: rules(Some(10)),
        windows: Some(WindowLimits {
            tokens: 32,
            total_pages: 200,
        }),
        ..Setup::default()
    });
    let running = (0..4).map(|number| ask(number, 40, 300, Some(priorities[number as usize])));
    for ask in running {
        let number = world.submit(ask).expect("it fits");
        run_until(&mut world, number, 60);
    }
    let late = world.submit(ask(9, prompt_tokens, 2, Some(50)));
    let late = late.expect("it fits alone");
    run_until(&mut world, late, 1);
    world
}

#[test]
fn request_without_window_pages_preempts_as_many_at_once_as_it_needs() {
    // (prompt of the better request, number of victims in each plan)
    for (prompt_tokens, expected) in [(20, &[][..]), (70, &[1]), (110, &[2]), (128, &[3])] {
        let mut world = crowded_windows([0; 4], prompt_tokens);
        assert_eq!(world.preempted, expected, "{prompt_tokens} tokens");
        world.assert_clean();
    }
}

#[test]
fn no_request_is_preempted_for_window_pages_that_do_not_suffice() {
    // The pages of two requests would suffice, but only one of the four may be preempted.
    let mut world = crowded_windows([0, 45, 45, 45], 110);
    assert!(world.preempted.is_empty(), "{:?}", world.preempted);
    world.assert_clean();
}

#[test]
fn without_preemption_the_better_request_is_next_and_no_request_is_preempted() {
    let mut world = world(1, 512, rules(None));
    world.submit(ask(0, 8, 20, Some(0)));
    world.submit(ask(1, 8, 4, Some(1)));
    let better = world.submit(ask(2, 8, 4, Some(99))).expect("it fits");
    run_until(&mut world, better, 1);
    assert!(world.views[0].end.is_some());
    assert!(world.views[1].delivered.is_empty());
    world.assert_clean();
    assert_eq!(world.stats().preemptions, 0);
}

#[test]
fn step_that_was_to_end_a_long_prompt_is_planned_again_with_the_request_that_preempts() {
    let mut world = World::new(Setup {
        n_pages: 2048,
        n_rows: 3,
        chunk_tokens: Some(64),
        rules: rules(Some(10)),
        ..Setup::default()
    });
    world.submit_all(&mut (0..2).map(|number| ask(number, 8, 90, Some(0))));
    run_until(&mut world, 0, 3);
    let long = world.submit(ask(5, 1000, 4, Some(5))).expect("it fits");
    (0..4).for_each(|_| assert!(world.turn()));
    let urgent = world.submit(ask(9, 8, 4, Some(50))).expect("it fits");
    run_until(&mut world, urgent, 1);
    // The 16th chunk is 40 tokens long and leaves 24: only then can another request be admitted.
    let step = world.history.iter().find(|step| {
        let mut starts = step.starts.iter();
        starts.any(|start| world.number_of(start.seq) == urgent)
    });
    let rows = step.expect("a step").rows.iter();
    let rows: Vec<_> = rows
        .map(|row| (world.number_of(row.seq), row.work.positions()))
        .collect();
    assert_eq!(rows, [(long, 960..1000), (urgent, 0..8)]);
    assert!(!world.views[1].holds_memory);
    world.assert_clean();
    assert_eq!(world.stats().preemptions, 1);
}

/// One row: a request that ran for `turns` steps, then one of far better priority, whose plan has run `legs` legs.
fn about_to_preempt(turns: usize, legs: usize) -> World {
    let mut world = world(1, 512, rules(Some(10)));
    world.submit(ask(0, 8, 6, Some(0)));
    (0..turns).for_each(|_| {
        world.turn();
    });
    world.submit(ask(1, 8, 4, Some(50)));
    (0..legs).for_each(|_| {
        world.advance();
    });
    world
}

#[test]
fn corner_7_victim_that_ends_during_its_preemption_frees_its_pages_once() {
    for turns in 0..8 {
        for legs in 0..8 {
            let mut cancelled = about_to_preempt(turns, legs);
            if cancelled.views[0].end.is_none() {
                cancelled.cancel(0);
            }
            cancelled.assert_clean();
            // The victim ends by its length, or by a stop string that the tokenizer found.
            let mut ending = about_to_preempt(turns, legs);
            ending.end_step(Outcome::Done);
            ending.assert_clean();
            let mut stopped = about_to_preempt(turns, legs);
            if !stopped.views[0].delivered.is_empty() {
                stopped.stop_found(0, 1);
            }
            stopped.assert_clean();
        }
    }
}

#[test]
fn preempted_request_comes_back_even_if_nothing_was_admitted_for_it() {
    for turns in 0..8 {
        for legs in 0..8 {
            let mut world = about_to_preempt(turns, legs);
            world.cancel(1);
            world.assert_clean();
            assert_eq!(world.views[0].delivered.len(), 6);
        }
    }
}

#[test]
fn lost_steps_around_a_preemption_cost_no_request_a_token() {
    for turns in 0..6 {
        for legs in 0..8 {
            for outcome in [Outcome::LostBeforeItRan, Outcome::LostAfterItRan] {
                let mut world = about_to_preempt(turns, legs);
                world.end_step(outcome);
                world.assert_clean();
                let delivered = world.views.iter().map(|view| view.delivered.len());
                assert_eq!(delivered.collect::<Vec<_>>(), [6, 4]);
            }
        }
    }
}

#[test]
fn victim_waits_after_better_requests_and_before_later_ones_of_its_own_priority() {
    let mut world = world(1, 512, rules(Some(10)));
    world.submit(ask(0, 8, 30, Some(0)));
    run_until(&mut world, 0, 3);
    world.submit_all(
        &mut [
            ask(1, 8, 4, Some(0)),
            ask(2, 8, 4, Some(50)),
            ask(3, 8, 4, Some(5)),
        ]
        .into_iter(),
    );
    world.drain();
    let mut starts = world.history.iter().flat_map(|step| &step.starts);
    let mut order = Vec::new();
    starts
        .by_ref()
        .for_each(|start| order.push(world.number_of(start.seq)));
    assert_eq!(order, [0, 2, 3, 0, 1]);
    assert_eq!(world.views[0].retractions, 1);
    world.assert_clean();
}

#[test]
fn full_queue_refuses_the_worst_waiting_request_or_the_new_one() {
    let overloaded = |world: &World, number: usize| {
        matches!(
            world.views[number].failure(),
            Some(RequestError::Overloaded { limit: 4, .. })
        )
    };
    // (priority of request 4, the rejected request). Request 0 runs and 1 to 3 wait; 1 and 3 are the worst, 3 is newer.
    for (priority, refused) in [
        (Some(4), 3),
        (Some(3), 4),
        (Some(-9), 4),
        (None, 4),
        (Some(90), 3),
    ] {
        let mut rules = rules(None);
        if let Some(priority) = &mut rules.priority {
            priority.max_requests = 4;
        }
        let mut world = world(1, 512, rules);
        world.submit(ask(0, 8, 30, Some(-50)));
        run_until(&mut world, 0, 2);
        for (number, priority) in [(1, Some(3)), (2, Some(7)), (3, Some(3))] {
            world.submit(ask(number, 8, 3, priority));
        }
        assert!(world.views.iter().all(|view| view.end.is_none()));
        world.submit(ask(4, 8, 3, priority));
        for number in 0..5 {
            assert_eq!(
                overloaded(&world, number),
                number == refused,
                "{priority:?}: {number}"
            );
        }
        world.assert_clean();
    }
}

#[test]
fn preempted_request_is_not_refused_by_a_full_queue() {
    let mut rules = rules(Some(10));
    if let Some(priority) = &mut rules.priority {
        priority.max_requests = 2;
    }
    let mut world = world(1, 512, rules);
    world.submit(ask(0, 8, 30, Some(0)));
    run_until(&mut world, 0, 3);
    let better = world.submit(ask(1, 8, 30, Some(50))).expect("it fits");
    run_until(&mut world, better, 1);
    let late = world.submit(ask(2, 8, 3, Some(40))).expect("it fits");
    assert!(matches!(
        world.views[late].failure(),
        Some(RequestError::Overloaded {
            queued: 2,
            limit: 2,
            ..
        })
    ));
    world.assert_clean();
    assert_eq!(world.views[0].delivered.len(), 30);
}
