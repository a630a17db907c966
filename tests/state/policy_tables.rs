//! Tests of the scheduling policies, with orders computed by hand from the description of SGLang's policies.

use std::sync::Arc;

use proptest::collection::vec;
use souffleur_base::ids::{IntakeId, SeqId, StepId};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::control::probe_prefixes;
use souffleur_state::plan::probe::{Matched, ProbeKey, ProbeKind, ProbePrefixes};
use souffleur_state::scheduler::policy::{
    PriorityOrder, Waiting, schedule_policy, schedule_policy_names,
};

use crate::scheduler_world::{Ask, Setup, World};
use crate::{Memory, deterministic_runner};

/// A request of 100 prompt tokens; `id` is its place in the order of arrival.
fn waiting(id: u64) -> Waiting {
    Waiting {
        seq: SeqId::new(id),
        prompt_tokens: 100,
        fill_tokens: 100,
        max_new_tokens: 10,
        waited_tokens: 0,
        matched: Matched::default(),
    }
}

fn matched(id: u64, tokens: usize, is_deprioritised: bool) -> Waiting {
    Waiting {
        matched: Matched {
            tokens,
            is_deprioritised,
            path: Vec::new(),
        },
        ..waiting(id)
    }
}

#[track_caller]
fn check_order(policy: &str, mut queue: Vec<Waiting>, expected: &[u64]) {
    let mut policy = schedule_policy(policy).expect("tests name policies that exist");
    policy.order(&mut queue);
    let order: Vec<u64> = queue.iter().map(|request| request.seq.get()).collect();
    assert_eq!(order, expected);
}

#[test]
fn lpm_takes_the_longest_match_first_ties_by_arrival_and_the_deprioritised_last() {
    let queue = vec![
        matched(1, 10, true),
        matched(2, 0, false),
        matched(3, 50, false),
        matched(4, 20, true),
        matched(5, 99, false),
        matched(6, 50, false),
    ];
    // Deprioritised requests rank equally, whatever the lengths of their matches.
    check_order("lpm", queue, &[5, 3, 6, 2, 1, 4]);
}

#[test]
fn lof_takes_the_longest_output_first() {
    let queue = [(1, 5), (2, 9), (3, 5), (4, 400)].map(|(id, max_new_tokens)| Waiting {
        max_new_tokens,
        ..waiting(id)
    });
    check_order("lof", queue.to_vec(), &[4, 2, 1, 3]);
}

#[test]
fn shortest_prefill_first_counts_uncached_tokens() {
    let queue = vec![
        matched(1, 0, false),
        matched(2, 95, true),
        matched(3, 60, false),
        // Nothing left and one token left are both one token of work.
        matched(4, 99, false),
        matched(5, 100, false),
    ];
    check_order("shortest-prefill-first", queue, &[4, 5, 3, 1, 2]);
}

#[test]
fn hrrn_takes_fully_cached_prompts_first_and_then_the_highest_response_ratio() {
    let with = |id, cached, is_deprioritised, waited_tokens| Waiting {
        waited_tokens,
        ..matched(id, cached, is_deprioritised)
    };
    let queue = vec![
        // 300 / 100 = 3, 200 / 50 = 4, 40 / 10 = 4, 500 / 100 = 5
        with(1, 0, false, 300),
        with(2, 50, false, 200),
        with(3, 90, false, 40),
        with(4, 0, false, 500),
        with(5, 0, true, 900),
        with(6, 100, false, 0),
        with(7, 0, false, 0),
    ];
    check_order("hrrn", queue, &[6, 4, 2, 3, 1, 7, 5]);
}

#[test]
fn dfs_weight_enters_the_branch_with_most_requests_and_serves_a_node_after_those_below_it() {
    let at = |id, path: &[u32]| Waiting {
        matched: Matched {
            path: path.to_vec(),
            ..Matched::default()
        },
        ..waiting(id)
    };
    // Node 1 has the children 2 and 3; node 9 is a sibling of node 1.
    let queue = vec![
        at(1, &[]),
        at(2, &[9]),
        at(3, &[1]),
        at(4, &[1, 2]),
        at(5, &[1, 3]),
        at(6, &[1, 3]),
        at(7, &[9]),
        at(8, &[9]),
    ];
    // Weights: 1 has four (3 has two, 2 has one), 9 has three.
    check_order("dfs-weight", queue, &[5, 6, 4, 3, 2, 7, 8, 1]);
    // With equal weights, the branch whose first request came first.
    let tie = vec![at(1, &[7]), at(2, &[4]), at(3, &[4]), at(4, &[7])];
    check_order("dfs-weight", tie, &[1, 4, 2, 3]);
}

#[test]
fn random_policy_draws_a_reproducible_sequence_of_different_orders() {
    let orders = || {
        let mut policy = schedule_policy("random").expect("random exists");
        let order = |_| {
            let mut queue: Vec<Waiting> = (1..=8).map(waiting).collect();
            policy.order(&mut queue);
            queue.iter().map(|request| request.seq.get()).collect()
        };
        (0..3).map(order).collect::<Vec<Vec<u64>>>()
    };
    let first = orders();
    assert_eq!(first, orders());
    assert!(first[0] != first[1] && first[1] != first[2] && first[0] != first[2]);
    for mut order in first {
        order.sort_unstable();
        assert_eq!(order, [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}

#[test]
fn error_for_an_unknown_policy_lists_the_known_ones() {
    let error = schedule_policy("sjf").err().expect("there is no sjf");
    let known = schedule_policy_names().collect::<Vec<_>>().join(", ");
    assert_eq!(error, format!("is \"sjf\", must be one of {known}"));
}

/// A prompt of `shared` tokens of a family, then tokens chosen by `own` up to `len`.
fn prompt(family: u32, shared: usize, own: u32, len: usize) -> Vec<u32> {
    let shared = (0..shared as u32).map(|at| (family * 11 + at * 3) % 200);
    let own = (0..).map(|at: u32| 200 + (own + at / 7) % 56);
    shared.chain(own).take(len).collect()
}

#[test]
fn in_batch_rule_compares_prompts_with_few_cached_tokens_with_earlier_ones() {
    let mut memory = Memory::new(1, "lru", 4096);
    let cached = prompt(1, 60, 0, 60);
    memory.run_request(&cached, 60);
    let salted = Namespace::new(None, Some("salt"));
    let plain = Namespace::default();
    // (prompt, namespace, matched, deprioritised)
    let rows: Vec<(Vec<u32>, &Namespace, usize, bool)> = vec![
        (prompt(2, 50, 1, 70), &plain, 0, false),
        // Sharing 32 tokens with the first prompt suffices; sharing 31 does not.
        (prompt(2, 32, 2, 70), &plain, 0, true),
        (prompt(2, 31, 3, 70), &plain, 0, false),
        // The tokens after the shared ones do not matter.
        (prompt(2, 32, 2, 33), &plain, 0, true),
        // A request with 33 cached tokens is not compared; a request with 32 is.
        (prompt(1, 33, 4, 70), &plain, 33, false),
        (prompt(1, 32, 5, 70), &plain, 32, false),
        (prompt(1, 32, 6, 70), &plain, 32, true),
        // Another namespace shares nothing.
        (prompt(2, 50, 1, 70), &salted, 0, false),
        // Too short to be deprioritised.
        (prompt(2, 31, 7, 31), &plain, 0, false),
    ];
    let keys = rows
        .iter()
        .zip(1..)
        .map(|((tokens, namespace, ..), id)| ProbeKey {
            seq: SeqId::new(id),
            intake: IntakeId::new(id),
            namespace: (*namespace).clone(),
            tokens: Arc::from(&tokens[..]),
            match_limit: tokens.len() - 1,
        });
    let reply = probe_prefixes(
        &mut memory.tree,
        ProbePrefixes {
            step: StepId::new(1),
            settle: Vec::new(),
            keys: keys.collect(),
            kind: ProbeKind::InBatch,
        },
    );
    let found = reply.matches.iter();
    let found: Vec<(usize, bool)> = found
        .map(|(_, matched)| (matched.tokens, matched.is_deprioritised))
        .collect();
    let expected: Vec<(usize, bool)> = rows.iter().map(|row| (row.2, row.3)).collect();
    assert_eq!(found, expected);
    memory.check();
}

#[test]
fn in_batch_delay_lets_another_prompt_go_first_and_the_delayed_one_finds_its_prefix_cached() {
    let run = |policy| {
        let mut world = World::new(Setup {
            // Two of the three fit into one step.
            max_prefill_tokens: 130,
            prefix_wait: false,
            policy,
            ..Setup::default()
        });
        let prompts = [
            prompt(1, 50, 1, 60),
            prompt(1, 50, 2, 60),
            prompt(2, 50, 3, 60),
        ];
        world.submit_all(&mut prompts.into_iter().map(|prompt| Ask::exactly(prompt, 4)));
        world.assert_clean();
        let cached: Vec<u32> = world.views.iter().map(|view| view.cached_tokens).collect();
        let first = world.history[0].rows.iter();
        let first: Vec<usize> = first.map(|row| world.number_of(row.seq)).collect();
        (first, cached)
    };
    assert_eq!(run("fcfs"), (vec![0, 1], vec![0, 0, 0]));
    assert_eq!(run("lpm"), (vec![0, 2], vec![0, 50, 0]));
    assert_eq!(run("hrrn"), (vec![0, 2], vec![0, 50, 0]));
    assert_eq!(run("shortest-prefill-first"), (vec![0, 2], vec![0, 50, 0]));
}

#[test]
fn a_match_never_counts_the_last_token() {
    let mut memory = Memory::new(1, "lru", 64);
    let tokens = prompt(1, 20, 0, 20);
    memory.run_request(&tokens, 20);
    let key = ProbeKey {
        seq: SeqId::new(1),
        intake: IntakeId::new(1),
        namespace: Namespace::default(),
        tokens: tokens.into(),
        match_limit: 19,
    };
    let request = ProbePrefixes {
        step: StepId::new(1),
        settle: Vec::new(),
        keys: vec![key],
        kind: ProbeKind::Paths,
    };
    let reply = probe_prefixes(&mut memory.tree, request);
    let (_, matched) = &reply.matches[0];
    assert_eq!((matched.tokens, matched.path.len()), (19, 1));
}

/// One row, and `n` requests at once: each has more in the cache than the previous one, and less to compute.
fn queue_of(policy: &'static str, n: usize) -> World {
    let mut world = World::new(Setup {
        n_pages: 16384,
        n_rows: 1,
        policy,
        prefix_wait: false,
        ..Setup::default()
    });
    world.submit(Ask::exactly(prompt(1, 40 + n, 0, 40 + n), 1));
    world.drain();
    let asks = (0..n).map(|number| {
        let (cached, rest) = (34 + number, 5 + n - number);
        Ask::exactly(prompt(1, cached, number as u32, cached + rest), 1)
    });
    world.submit_all(&mut asks.collect::<Vec<_>>().into_iter());
    world.drain();
    world
}

/// Requests in the order of their first steps, without the one that filled the cache.
fn started(world: &World) -> Vec<usize> {
    let starts = world.history.iter().flat_map(|step| &step.starts);
    starts
        .map(|start| world.number_of(start.seq))
        .filter(|number| *number > 0)
        .collect()
}

#[test]
fn lpm_and_hrrn_keep_the_order_of_arrival_while_more_than_128_wait() {
    let world = queue_of("lpm", 128);
    let longest_first: Vec<usize> = (1..=128).rev().collect();
    assert_eq!(started(&world), longest_first);
    for policy in ["lpm", "hrrn"] {
        let world = queue_of(policy, 130);
        let order = started(&world);
        // At the first two admissions 130 and 129 requests wait, more than 128; from the third on at most 128.
        assert_eq!(order[..4], [1, 2, 130, 129], "{policy}");
    }
}

#[test]
fn other_probing_policies_order_all_waiting_requests() {
    for policy in ["dfs-weight", "shortest-prefill-first"] {
        let order = started(&queue_of(policy, 140));
        let shortest_first: Vec<usize> = (1..=140).rev().collect();
        assert_eq!(order, shortest_first, "{policy}");
    }
}

#[test]
fn without_a_prefix_cache_policies_that_probe_it_are_fcfs() {
    for policy in schedule_policy_names() {
        let setup = Setup {
            policy,
            has_radix_cache: false,
            ..Setup::default()
        };
        let mut world = World::new(setup);
        let expected = match policy {
            "lof" | "random" => policy,
            _ => "fcfs",
        };
        assert_eq!(world.states.scheduler.policy_name(), expected);
        world.set_policy("lof");
        world.set_policy(policy);
        assert_eq!(world.stats().schedule_policy, expected);
        assert_eq!(world.stats().radix_eviction_policy, "none");
    }
}

#[test]
fn priorities_come_before_the_policy_and_none_is_the_worst() {
    let rows = [None, Some(3), Some(-1), Some(3), Some(7), None];
    let order = |priority, policy| {
        let mut world = World::new(Setup {
            n_rows: 1,
            policy,
            priority,
            ..Setup::default()
        });
        let asks = rows.iter().enumerate().map(|(number, priority)| Ask {
            priority: *priority,
            // Longest output first is the reverse of arrival.
            ..Ask::exactly(vec![number as u32 + 1; 3], 1 + number)
        });
        world.submit_all(&mut asks.collect::<Vec<_>>().into_iter());
        world.assert_clean();
        let starts = world.history.iter().flat_map(|step| &step.starts);
        let order = starts.map(|start| world.number_of(start.seq));
        order.collect::<Vec<usize>>()
    };
    let larger = PriorityOrder::LargerFirst;
    let smaller = PriorityOrder::SmallerFirst;
    assert_eq!(order(larger, "fcfs"), [4, 1, 3, 2, 0, 5]);
    assert_eq!(order(larger, "lof"), [4, 3, 1, 2, 5, 0]);
    assert_eq!(order(smaller, "fcfs"), [2, 1, 3, 4, 0, 5]);
    assert_eq!(order(smaller, "lof"), [2, 3, 1, 4, 5, 0]);
    assert_eq!(order(PriorityOrder::Ignored, "lof"), [5, 4, 3, 2, 1, 0]);
}

#[test]
fn fcfs_with_lru_touches_the_prefixes_of_the_queue_in_every_32nd_plan() {
    // A long prompt in small chunks: every chunk's plan checks the queue, and its budget admits no other request.
    let run = |policy, eviction| {
        let mut world = World::new(Setup {
            n_pages: 4096,
            n_rows: 2,
            chunk_tokens: Some(4),
            policy,
            ..Setup::default()
        });
        world.set_eviction_policy(eviction);
        world.finish_plan();
        let long = Ask::exactly(prompt(1, 400, 0, 400), 100);
        let rest = (0..5).map(|number| Ask::exactly(vec![number + 1; 6], 1));
        world.submit_all(&mut std::iter::once(long).chain(rest));
        world.assert_clean();
        world.touched().to_vec()
    };
    let touched = run("fcfs", "lru");
    let plans: Vec<usize> = touched.iter().map(|(plan, _)| *plan).collect();
    assert_eq!(plans[..3], [32, 64, 96]);
    assert!(
        touched[..3]
            .iter()
            .all(|(_, keys)| *keys == [5, 4, 3, 2, 1])
    );
    // With another scheduling or eviction policy, no prefixes are touched.
    assert!(run("lof", "lru").is_empty());
    assert!(run("fcfs", "fifo").is_empty());
}

#[test]
fn every_policy_orders_random_queues_as_the_naive_model_does() {
    let ask = (
        0..3u32,
        0..80usize,
        0..4u32,
        1..30usize,
        1..40usize,
        0..10u32,
    );
    let script = (vec(ask, 2..40), 1..4u32, 0..3u32);
    for policy in schedule_policy_names() {
        for page_size in [1, 4, 16] {
            let checked = std::cell::Cell::new(0);
            let outcome = deterministic_runner(40).run(&script, |(asks, n_rows, priority)| {
                let mut world = World::new(Setup {
                    page_size,
                    n_pages: 4096 / page_size,
                    n_rows,
                    chunk_tokens: Some(64),
                    policy,
                    priority: [
                        PriorityOrder::Ignored,
                        PriorityOrder::LargerFirst,
                        PriorityOrder::SmallerFirst,
                    ][priority as usize],
                    ..Setup::default()
                });
                for (place, (family, shared, own, tail, new, kind)) in asks.iter().enumerate() {
                    let ask = Ask {
                        salt: (*kind == 0).then_some("salt"),
                        priority: (*kind > 2).then_some(i64::from(*kind % 3)),
                        ..Ask::exactly(prompt(*family, *shared, *own, shared + tail), *new)
                    };
                    world.submit(ask);
                    if place % 5 == 0 {
                        world.turn();
                    }
                }
                world.assert_clean();
                checked.set(checked.get() + world.checked_orders());
                Ok(())
            });
            outcome.unwrap_or_else(|error| panic!("{policy}, page size {page_size}: {error}"));
            assert!(checked.get() > 400, "{policy}: {} orders", checked.get());
        }
    }
}

#[test]
fn a_swap_of_policies_orders_from_the_next_plan_on_and_loses_nothing() {
    let mut world = World::new(Setup {
        n_rows: 1,
        ..Setup::default()
    });
    let asks = (0..6).map(|number| Ask::exactly(vec![number + 1; 4], 2 + number as usize));
    world.submit_all(&mut asks.into_iter());
    // The first runs; the others wait in order of arrival.
    world.finish_plan();
    world.set_policy("lof");
    for _ in 0..6 {
        world.turn();
    }
    world.set_policy("fcfs");
    world.assert_clean();
    let starts = world.history.iter().flat_map(|step| &step.starts);
    let order: Vec<usize> = starts.map(|start| world.number_of(start.seq)).collect();
    // 0 by fcfs, then the longest output, then by arrival again.
    assert_eq!(order, [0, 5, 1, 2, 3, 4]);
    let error = world
        .states
        .scheduler
        .set_policy("sjf")
        .expect_err("unknown");
    assert!(error.contains("fcfs, lpm"), "{error}");
    assert_eq!(world.states.scheduler.policy_name(), "fcfs");
}
