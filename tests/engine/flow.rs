//! Tests of generation, prefix reuse, retraction, priorities, warm-ups and timeouts on a fake executor.

use futures_util::future::join_all;
use souffleur_base::error::RequestError;
use souffleur_request::{Event, FinishReason};
use souffleur_state::cache::prefix_history::Cause;

use crate::requests::first_of;

use super::world::{Build, assert_finished, collect, request};

#[tokio::test]
async fn one_request_gets_its_tokens_and_one_end() {
    let world = Build::default().start();
    let prompt: Vec<u32> = (1..40).collect();
    let outcome = collect(world.generate(request(&prompt, 50, 7))).await;
    assert_finished(&outcome, &prompt, 50, 7);
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn any_page_size_works_and_shares_prefixes() {
    for page_size in [3, 24, 255] {
        let mut build = Build::default();
        build.config.page_size = page_size;
        build.config.chunked_prefill_size = 300;
        let world = build.start();
        let prompt: Vec<u32> = (0..700).map(|i| 1 + i % 499).collect();
        for (seed, cached) in [(7, 0), (8, 699 / page_size * page_size)] {
            let outcome = collect(world.generate(request(&prompt, 50, seed))).await;
            assert_finished(&outcome, &prompt, 50, seed);
            assert_eq!(outcome.cached_tokens, cached, "page size {page_size}");
        }
        world.assert_no_leaks().await;
        world.stop().await;
    }
}

#[tokio::test]
async fn a_second_turn_reuses_prompt_and_output() {
    let world = Build::default().start();
    let prompt: Vec<u32> = (1..40).collect();
    let first = collect(world.generate(request(&prompt, 20, 7))).await;
    let mut second: Vec<u32> = prompt.iter().chain(&first.tokens).copied().collect();
    second.extend([3, 1, 4]);
    let outcome = collect(world.generate(request(&second, 5, 1))).await;
    assert_finished(&outcome, &second, 5, 1);
    // The K/V of the first turn's last token was never computed.
    assert_eq!(
        outcome.cached_tokens as usize,
        prompt.len() + first.tokens.len() - 1
    );
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn retractions_in_a_small_pool_change_no_output() {
    let (open, gate) = crossbeam_channel::unbounded();
    let mut build = Build {
        n_pages: 300,
        rows: 16,
        gate: Some(gate),
        ..Build::default()
    };
    // Reserves next to nothing for running requests, so that they compete for pages.
    build.config.schedule_conservativeness = 0.01;
    // Admits all prompts in one step. A limit on step time would admit them one by one.
    build.config.max_prefill_step_ms = 0;
    let world = build.start();
    // Some outputs end early. Then the engine admits more requests than the pool holds until they end.
    let length = |seed: usize| 20 + 40 * (seed as u32 % 4);
    let prompts: Vec<Vec<u32>> = (0..12)
        .map(|i| (1..20).map(|t| t * 7 + i).collect())
        .collect();
    // The first two requests are among the longest, and their outputs do not fit into the pool together.
    let order = first_of([3, 7], 12);
    let requests = order.iter().map(|seed| {
        let index = *seed as usize;
        request(&prompts[index], length(index), u64::from(*seed))
    });
    let sent = world.send_first_alone(requests).await;
    drop(open);
    let outcomes = join_all(sent.into_iter().map(collect)).await;
    for (outcome, seed) in outcomes.iter().zip(order) {
        let index = seed as usize;
        assert_finished(outcome, &prompts[index], length(index), u64::from(seed));
    }
    let stats = world.assert_no_leaks().await;
    assert!(stats.retractions > 0);
    // Every prompt has 19 tokens.
    assert_eq!(stats.retracted_input_tokens, 19 * stats.retractions);
    assert!(stats.retracted_output_tokens > 0);
    assert_eq!(stats.decode_tokens, 0);
    world.stop().await;
}

#[tokio::test]
async fn a_full_queue_with_priorities_refuses_the_lowest_waiting_priority() {
    let (open, gate) = crossbeam_channel::unbounded();
    let mut build = Build {
        rows: 1,
        gate: Some(gate),
        ..Build::default()
    };
    build.config.max_queued_requests = 2;
    build.config.enable_priority_scheduling = true;
    build.config.disable_priority_preemption = true;
    let world = build.start();
    let [first, worst, better, last] = [Some(0), Some(0), Some(5), None].map(|priority| {
        let mut request = request(&[1, 2, 3], 5, 7);
        request.priority = priority;
        world.generate(request)
    });
    // Both requests are refused while the first request's step waits at the gate.
    for refused in [worst, last] {
        let end = collect(refused).await.end;
        let is_expected = matches!(
            end,
            Event::Failed(RequestError::Overloaded { limit: 2, .. })
        );
        assert!(is_expected, "{end:?}");
    }
    drop(open);
    for served in [first, better] {
        assert_finished(&collect(served).await, &[1, 2, 3], 5, 7);
    }
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn a_warm_up_fills_the_cache_and_prefix_reports_give_the_cause() {
    let world = Build::default().start();
    let prompt: Vec<u32> = (1..60).collect();
    let warm_up = request(&prompt, 0, 1);
    let rids = [warm_up.rid.clone(), request(&prompt, 3, 1).rid];
    let outcome = collect(world.generate(warm_up)).await;
    let Event::Finished(end) = &outcome.end else {
        panic!("ended with {:?}", outcome.end)
    };
    assert_eq!(end.reason, FinishReason::Length { max_new_tokens: 0 });
    assert_eq!(
        (outcome.tokens.len(), end.delta.usage.completion_tokens),
        (0, 0)
    );
    let mut second = request(&prompt, 3, 1);
    second.rid = rids[1].clone();
    let outcome = collect(world.generate(second)).await;
    assert_eq!(outcome.cached_tokens, 58);
    let causes = [(Cause::NeverCached, 0), (Cause::MatchLimit, 58)];
    for (rid, expected) in rids.into_iter().zip(causes) {
        let report = world
            .engine
            .prefix_report(rid)
            .await
            .expect("the engine runs");
        let report = report.expect("the request is remembered");
        assert_eq!((report.cause, report.cached_tokens), expected);
        assert_eq!(report.text, None, "there is no tokenizer");
    }
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn a_request_that_runs_for_too_long_fails_once_and_leaks_nothing() {
    let (open, gate) = crossbeam_channel::unbounded();
    let mut build = Build {
        gate: Some(gate),
        ..Build::default()
    };
    build.config.req_running_timeout_s = Some(0.05);
    let world = build.start();
    let prompt: Vec<u32> = (1..40).collect();
    let mut endless = request(&prompt, 1000, 7);
    endless.sampling.ignore_eos = true;
    let running = world.generate(endless);
    // The prefill waits at the gate until the timeout.
    let outcome = collect(running).await;
    match &outcome.end {
        Event::Failed(error) => assert_eq!(error.code(), "timeout", "{error}"),
        other => panic!("ended with {other:?}"),
    }
    drop(open);
    world.assert_no_leaks().await;
    world.stop().await;
}
