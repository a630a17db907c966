//! Tests of the reported causes of prefix-cache misses, one by one, on whole schedulers.

use std::sync::Arc;

use souffleur_base::ids::{RequestId, StepId};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::prefix_history::{
    AdmittedPrompt, Branch, Cause, Departure, Elsewhere, EvictedEdge, HistoryLimits, PrefixEvent,
    PrefixHash, PrefixHistory, StoredMiss, StoredPart,
};
use souffleur_state::pool::pages::PageSize;
use souffleur_state::scheduler::CacheFlushed;

use crate::grammars::HashedGrammar;
use crate::scheduler_world::{Ask, Outcome, Setup, World};

fn world(page_size: u32, n_pages: u32) -> World {
    World::new(Setup {
        page_size,
        n_pages,
        ..Setup::default()
    })
}

fn prompt(family: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|at| (at * 7 + family) % 251).collect()
}

fn run(world: &mut World, prompt: &[u32]) -> usize {
    let number = world.submit(Ask::exactly(prompt.to_vec(), 2));
    world.drain();
    number.expect("the prompt fits")
}

#[test]
fn a_fully_cached_prompt_ends_at_the_match_limit() {
    let mut world = world(1, 256);
    run(&mut world, &prompt(1, 40));
    let second = run(&mut world, &prompt(1, 40));
    let report = world.report(second);
    assert_eq!(
        (report.cause, report.cached_tokens),
        (Cause::MatchLimit, 39)
    );
    assert_eq!((report.position, report.match_limit), (39, 39));
    assert_eq!(report.tokens_before, prompt(1, 40)[15..39]);
    assert_eq!(report.tokens_after, prompt(1, 40)[39..]);
    world.assert_clean();
}

#[test]
fn input_log_probabilities_lower_the_match_limit() {
    let mut world = world(1, 256);
    run(&mut world, &prompt(1, 40));
    let second = world.submit(Ask {
        logprob_start: Some(12),
        ..Ask::exactly(prompt(1, 40), 2)
    });
    world.drain();
    let report = world.report(second.expect("it fits"));
    assert_eq!((report.cause, report.position), (Cause::MatchLimit, 12));
}

#[test]
fn a_miss_of_less_than_a_page_is_a_page_floor() {
    let mut world = world(4, 64);
    run(&mut world, &prompt(1, 11));
    let second = run(&mut world, &prompt(1, 11));
    let report = world.report(second);
    assert_eq!((report.cause, report.position), (Cause::PageFloor, 8));
    assert_eq!((report.match_limit, report.page_size), (10, 4));
}

#[test]
fn a_prompt_without_a_whole_page_before_its_last_token_is_too_short() {
    let mut world = world(16, 64);
    run(&mut world, &prompt(1, 16));
    let second = run(&mut world, &prompt(1, 16));
    assert_eq!(world.report(second).cause, Cause::TooShort);
}

#[test]
fn a_new_prompt_was_never_cached() {
    let mut world = world(1, 256);
    let first = run(&mut world, &prompt(1, 40));
    let report = world.report(first);
    assert_eq!((report.cause, report.position), (Cause::NeverCached, 0));
    assert!(report.tokens_before.is_empty());
    // A second turn continues at the end of the cached part: the last output token has no K/V.
    let mut turn = prompt(1, 40);
    turn.extend(&world.views[first].delivered);
    let cached = turn.len() - 1;
    turn.extend(prompt(9, 20));
    let second = run(&mut world, &turn);
    let report = world.report(second);
    assert_eq!(
        (report.cause, report.position),
        (Cause::NeverCached, cached)
    );
    assert_eq!((&report.branch, &report.evicted), (&None, &None));
    // Other prompts are cached by then, but no part of this one.
    let third = run(&mut world, &prompt(5, 30));
    assert_eq!(world.report(third).cause, Cause::NeverCached);
}

/// A request whose output begins with these tokens.
fn opened(prompt: &[u32], opening: &[u32]) -> Ask {
    Ask {
        grammar: Some(HashedGrammar {
            seed: 1,
            vocab_size: 251,
            opening: opening.to_vec(),
            done_after: opening.len() + 2,
            fails_after: None,
        }),
        ..Ask::exactly(prompt.to_vec(), opening.len() + 2)
    }
}

#[test]
fn a_prompt_whose_opening_is_cached_in_part_missed_nothing() {
    for (page_size, is_evicted) in [(1, false), (1, true), (4, false), (4, true)] {
        let mut world = world(page_size, 120 / page_size);
        let same = prompt(1, 18);
        let mut send = |ask| {
            let number = world.submit(ask).expect("it fits");
            world.drain();
            number
        };
        if is_evicted {
            // The second prompt evicts the first one, so that the history has evictions.
            send(Ask::exactly(prompt(5, 90), 2));
            send(Ask::exactly(prompt(6, 90), 2));
        }
        send(opened(&same, &[100, 101, 102, 103, 104, 105, 106, 107]));
        let second = send(opened(&same, &[100, 101, 102, 109, 110, 111, 112, 113]));
        let report = world.report(second);
        assert_eq!(report.cause, Cause::MatchLimit);
        assert_eq!((report.prompt_tokens, report.cached_tokens), (18, 18));
        assert_eq!((report.position, report.match_limit), (18, 18));
        assert_eq!((&report.branch, &report.evicted), (&None, &None));
        world.assert_clean();
    }
}

#[test]
fn a_divergence_shows_the_tokens_of_the_newest_branch() {
    let mut world = world(1, 512);
    let tail = |family: u32| [prompt(1, 30), vec![family; 40]].concat();
    run(&mut world, &tail(201));
    // The first prompt diverges in the middle of an edge, the next at an existing branch.
    for (family, n_branches) in [(202, 1), (203, 2)] {
        let number = run(&mut world, &tail(family));
        let report = world.report(number);
        assert_eq!((report.cause, report.position), (Cause::Divergence, 30));
        let branch = report.branch.as_ref().expect("a branch");
        assert_eq!(branch.n_branches, n_branches);
        assert!(branch.tokens.iter().all(|token| *token == family - 1));
        assert_eq!(branch.tokens.len(), 25, "{branch:?}");
        assert!(report.tokens_after.iter().all(|token| *token == family));
        assert_eq!(report.tokens_before, prompt(1, 30)[6..]);
    }
    world.assert_clean();
}

#[test]
fn a_divergence_inside_a_page_names_its_token() {
    let mut world = world(16, 64);
    // Like a date in the first line of a system prompt.
    let dated = |day: u32| [prompt(1, 21), vec![day], prompt(3, 60)].concat();
    run(&mut world, &dated(101));
    let second = run(&mut world, &dated(102));
    let report = world.report(second);
    assert_eq!(
        (report.cause, report.cached_tokens),
        (Cause::Divergence, 16)
    );
    assert_eq!((report.position, report.tokens_after[0]), (21, 102));
    assert_eq!(
        report.branch.as_ref().map(|branch| branch.tokens[0]),
        Some(101)
    );
}

#[test]
fn a_salted_prompt_reveals_nothing_and_learns_nothing_of_others() {
    let mut world = world(1, 256);
    for salt in [Some("a"), Some("b"), None, Some("c")] {
        let asked = world.submit(Ask {
            salt,
            ..Ask::exactly(prompt(1, 40), 2)
        });
        world.drain();
        let report = world.report(asked.expect("it fits"));
        assert_eq!((report.cause, report.position), (Cause::NeverCached, 0));
        assert_eq!((&report.elsewhere, &report.branch), (&None, &None));
        let shown = serde_json::to_string(report).expect("plain data");
        let is_shown = |salt: &str| shown.contains(&format!("\"{salt}\""));
        assert!(!["a", "b", "c"].into_iter().any(is_shown), "{shown}");
    }
}

#[test]
fn an_eviction_is_reported_with_its_step_and_time() {
    let mut world = world(1, 100);
    run(&mut world, &prompt(1, 40));
    world.now_s = 10.0;
    for family in 2..6 {
        run(&mut world, &prompt(family, 40));
    }
    world.now_s = 17.5;
    let again = run(&mut world, &prompt(1, 40));
    let report = world.report(again).clone();
    assert_eq!((report.cause, report.position), (Cause::Evicted, 0));
    let evicted = report.evicted.expect("an eviction");
    // The limit of the match: whether the last token was cached does not matter.
    assert_eq!(evicted.cached_until, 39);
    assert_eq!(evicted.seconds_before, 7.5);
    assert_eq!(evicted.step.get() + evicted.steps_before, report.step.get());
    assert!(evicted.steps_before > 0);
    world.assert_clean();
}

#[test]
fn an_evicted_tail_after_a_recomputed_start_is_found() {
    let mut world = world(1, 100);
    run(&mut world, &prompt(1, 60));
    run(&mut world, &prompt(2, 60));
    let other = [prompt(1, 20), vec![250; 30]].concat();
    let between = run(&mut world, &other);
    assert_eq!(world.report(between).cause, Cause::Evicted);
    let again = run(&mut world, &prompt(1, 60));
    let report = world.report(again);
    assert_eq!((report.cause, report.position), (Cause::Evicted, 20));
    let evicted = report.evicted.as_ref().expect("an eviction");
    assert_eq!(evicted.cached_until, 59);
}

#[test]
fn without_a_cache_the_cause_is_the_disabled_cache() {
    let mut world = World::new(Setup {
        has_radix_cache: false,
        ..Setup::default()
    });
    run(&mut world, &prompt(1, 40));
    let again = run(&mut world, &prompt(1, 40));
    assert_eq!(world.report(again).cause, Cause::CacheDisabled);
}

#[test]
fn a_flush_is_reported() {
    let mut world = world(1, 256);
    run(&mut world, &prompt(1, 40));
    world.submit(Ask::exactly(prompt(2, 30), 8));
    world.turn();
    world.finish_plan();
    world.end_step(Outcome::LostAfterItRan);
    world.drain();
    let again = run(&mut world, &prompt(1, 40));
    let report = world.report(again);
    assert_eq!((report.cause, report.position), (Cause::Flushed, 0));
    assert!(report.flushed_at_step.is_some(), "{report:?}");
    assert_eq!(
        report.evicted.as_ref().map(|flush| flush.cached_until),
        Some(39)
    );
    world.assert_clean();
}

fn flush(world: &mut World) -> CacheFlushed {
    let number = world.flush_cache().expect("a flush");
    world.finish_plan();
    let done = world.states.scheduler.take_flushed();
    assert_eq!(done.len(), 1, "{done:?}");
    assert_eq!(done[0].0, number);
    done[0].1
}

#[test]
fn a_hosts_flush_is_reported_until_the_prompt_is_cached_and_evicted_again() {
    let mut world = world(4, 64);
    let long = prompt(1, 100);
    run(&mut world, &long);
    run(&mut world, &[&long[..40], &[250; 20]].concat());
    let cached = world.states.cache.total_size();
    let flushed = flush(&mut world);
    assert_eq!((flushed.flushed_tokens, flushed.kept_tokens), (cached, 0));
    assert_eq!(flushed.flushed_pages, cached / 4);
    assert_eq!(world.states.cache.total_size(), 0);
    let again = run(&mut world, &long);
    let report = world.report(again);
    assert_eq!((report.cause, report.cached_tokens), (Cause::Flushed, 0));
    let report = report.evicted.as_ref().expect("the flush");
    assert_eq!(report.cached_until, 96);
    // A prompt that was not cached before the flush is no victim of the flush.
    let other = run(&mut world, &prompt(7, 60));
    assert_eq!(world.report(other).cause, Cause::NeverCached);
    for family in 2..8 {
        run(&mut world, &prompt(family, 120));
    }
    let evicted = run(&mut world, &long);
    assert_eq!(world.report(evicted).cause, Cause::Evicted);
    world.assert_clean();
}

#[test]
fn pins_outlive_a_flush_which_running_or_waiting_requests_prevent() {
    let mut world = world(1, 256);
    let (kept, gone) = (prompt(1, 40), prompt(2, 40));
    run(&mut world, &kept);
    run(&mut world, &gone);
    let namespace = Namespace::default();
    let cached = world.states.cache.total_size();
    // The pin was requested first, so the flush comes after it.
    world.pin(&kept[..30], 1000);
    let flushed = flush(&mut world);
    assert_eq!(flushed.kept_tokens, 30);
    assert_eq!(flushed.flushed_tokens, cached - 30);
    assert_eq!(world.states.cache.peek(&namespace, &kept), 30);
    assert_eq!(world.states.cache.peek(&namespace, &gone), 0);
    assert_eq!(world.states.cache.check_integrity(), Ok(()));
    let again = run(&mut world, &kept);
    let report = world.report(again);
    assert_eq!((report.cause, report.cached_tokens), (Cause::Flushed, 30));
    world.submit(Ask::exactly(gone.clone(), 8));
    assert_eq!(world.flush_cache(), Err("busy"), "a request waits");
    world.turn();
    assert_eq!(world.flush_cache(), Err("busy"), "a request runs");
    world.drain();
    world.unpin_oldest();
    world.finish_plan();
    assert!(flush(&mut world).flushed_tokens > 40);
    assert_eq!(flush(&mut world).flushed_tokens, 0);
    world.assert_clean();
}

fn limits(max_requests: usize, max_evicted_pages: usize) -> HistoryLimits {
    HistoryLimits {
        page_size: PageSize::new(1).expect("1 is positive"),
        max_requests,
        max_evicted_pages,
    }
}

fn miss(rid: &str, prompt: &[u32], departure: Departure) -> PrefixEvent {
    PrefixEvent::Left(Box::new(AdmittedPrompt {
        rid: RequestId::new(rid),
        namespace: Namespace::default(),
        prompt: Arc::from(prompt),
        step: StepId::new(100),
        departure,
        stored: StoredPart::default(),
    }))
}

fn unmatched(prompt: &[u32]) -> Departure {
    Departure {
        matched_tokens: 0,
        kv_tokens: 0,
        missing_state: None,
        match_limit: prompt.len() - 1,
        is_cache_disabled: false,
        branch: None,
        elsewhere: None,
    }
}

fn evicted(tokens: &[u32], step: u64) -> PrefixEvent {
    PrefixEvent::Evicted {
        step: StepId::new(step),
        edges: vec![EvictedEdge::new(
            PrefixHash::empty(&Namespace::default()),
            Arc::from(tokens),
        )],
    }
}

#[test]
fn requests_are_forgotten_oldest_first_and_an_id_means_its_last_request() {
    let mut history = PrefixHistory::new(limits(2, 100));
    let prompt = prompt(1, 9);
    for (time, rid) in ["a", "b", "a", "c"].into_iter().enumerate() {
        let report = history.take(miss(rid, &prompt, unmatched(&prompt)), time as f64);
        assert_eq!(report.map(|report| report.rid.as_str()), Some(rid));
        assert!(history.len() <= 2);
    }
    let known = ["a", "b", "c"].map(|rid| history.report(&RequestId::new(rid)).is_some());
    assert_eq!(known, [true, false, true]);
}

#[test]
fn evictions_are_forgotten_oldest_first_and_the_report_says_so() {
    let mut history = PrefixHistory::new(limits(8, 25));
    let prompts: Vec<Vec<u32>> = (1..4).map(|family| prompt(family, 12)).collect();
    for (step, prompt) in prompts.iter().enumerate() {
        history.take(evicted(prompt, step as u64 + 1), 0.0);
        assert!(history.evicted_pages() <= 25);
    }
    let causes = prompts.iter().map(|prompt| {
        let report = history.take(miss("a", prompt, unmatched(prompt)), 1.0);
        let report = report.expect("an admission leads to a report");
        assert_eq!(report.evictions_forgotten_until_step, Some(StepId::new(1)));
        report.cause
    });
    let expected = [Cause::NeverCached, Cause::Evicted, Cause::Evicted];
    assert_eq!(causes.collect::<Vec<_>>(), expected);
}

#[test]
fn an_eviction_longer_than_the_history_is_cut() {
    let mut history = PrefixHistory::new(limits(8, 25));
    history.take(evicted(&prompt(1, 90), 1), 0.0);
    // The history has two halves, of which one eviction fills at most one.
    assert_eq!(history.evicted_pages(), 12);
    let report = history.take(miss("a", &prompt(1, 90), unmatched(&prompt(1, 90))), 1.0);
    let evicted = report.and_then(|report| report.evicted.clone());
    assert_eq!(evicted.map(|evicted| evicted.cached_until), Some(12));
}

#[test]
fn the_causes_have_an_order_of_precedence() {
    let prompt = prompt(1, 12);
    let branch = Some(Branch {
        n_branches: 1,
        tokens: vec![prompt[3], 999],
    });
    let elsewhere = Some(Elsewhere {
        namespace: Namespace::new(Some("k"), None),
        tokens: 8,
    });
    let departure = |branch, elsewhere| Departure {
        matched_tokens: 3,
        kv_tokens: 0,
        branch,
        elsewhere,
        ..unmatched(&prompt)
    };
    let mut history = PrefixHistory::new(limits(8, 100));
    let mut cause = |departure| {
        let report = history.take(miss("a", &prompt, departure), 0.0);
        report.map(|report| (report.cause, report.position))
    };
    let none = cause(departure(None, None));
    assert_eq!(none, Some((Cause::NeverCached, 3)));
    let diverged = cause(departure(branch.clone(), None));
    assert_eq!(diverged, Some((Cause::Divergence, 4)));
    let elsewhere = cause(departure(branch, elsewhere));
    assert_eq!(elsewhere, Some((Cause::DifferentNamespace, 3)));
}

/// A departure after 4 of the prompt's tokens, and the tokens loaded from the store after them.
fn miss_after_load(prompt: &[u32], departure: Departure, stored: StoredPart) -> PrefixEvent {
    PrefixEvent::Left(Box::new(AdmittedPrompt {
        rid: RequestId::new("a"),
        namespace: Namespace::default(),
        prompt: Arc::from(prompt),
        step: StepId::new(100),
        departure: Departure {
            matched_tokens: 4,
            kv_tokens: 4,
            ..departure
        },
        stored,
    }))
}

#[test]
fn the_miss_point_is_after_the_tokens_loaded_from_the_store() {
    let prompt = prompt(1, 20);
    let mut history = PrefixHistory::new(limits(8, 100));
    history.take(evicted(&prompt[..16], 3), 0.0);
    let departure = Departure {
        branch: Some(Branch {
            n_branches: 2,
            tokens: vec![999],
        }),
        elsewhere: Some(Elsewhere {
            namespace: Namespace::new(Some("k"), None),
            tokens: 9,
        }),
        ..unmatched(&prompt)
    };
    let mut take = |loaded_tokens, miss| {
        let stored = StoredPart {
            loaded_tokens,
            miss,
        };
        let event = miss_after_load(&prompt, departure.clone(), stored);
        history.take(event, 1.0).expect("an admission").clone()
    };
    // The report includes the tokens after the loaded ones, which were evicted from memory.
    let report = take(8, None);
    assert_eq!((report.cause, report.position), (Cause::Evicted, 12));
    assert_eq!((report.cached_tokens, report.loaded_tokens), (12, 8));
    assert_eq!(report.evicted.map(|evicted| evicted.cached_until), Some(16));
    let report = take(13, None);
    // The loaded tokens end after the branch and after the other namespace's prefix.
    assert_eq!((report.cause, report.position), (Cause::NeverCached, 17));
    assert_eq!((report.branch, report.elsewhere), (None, None));
    for miss in [
        StoredMiss::TooSlow,
        StoredMiss::Late,
        StoredMiss::Damaged,
        StoredMiss::Evicted,
    ] {
        assert_eq!(take(0, Some(miss)).cause, miss.cause());
        assert_eq!(take(8, Some(miss)).cause, miss.cause());
        assert_eq!(take(15, Some(miss)).cause, Cause::MatchLimit);
    }
}
