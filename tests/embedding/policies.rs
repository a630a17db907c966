//! Tests of changing policies while requests run.

use souffleur::actors::messages::{PoliciesSet, SetPolicy, TokenEvent};
use souffleur::error::RequestError;
use souffleur::executor::fake::expected_output;
use souffleur::ids::RequestId;
use souffleur::request::Event;
use souffleur::state::cache::eviction::EvictionPolicy;
use souffleur::state::scheduler::policy::schedule_policy_names;

use super::doubles::Probe;
use super::world::{Build, VOCAB, World, request, within};

fn by(policy: &str) -> SetPolicy {
    SetPolicy {
        schedule_policy: Some(policy.to_owned()),
        radix_eviction_policy: None,
    }
}

async fn set(world: &World, policies: SetPolicy) -> Result<PoliciesSet, RequestError> {
    within(world.engine.set_policy(policies)).await
}

/// An engine that runs one request at a time, and waits for the test before each step.
fn gated() -> (World, crossbeam_channel::Sender<()>) {
    let (pass, gate) = crossbeam_channel::unbounded();
    let build = Build {
        rows: 1,
        gate: Some(gate),
        ..Build::default()
    };
    (build.start(), pass)
}

#[actix::test]
async fn a_swap_reorders_waiting_requests_and_loses_none() {
    let (world, pass) = gated();
    let (recipient, mut events) = Probe::<TokenEvent>::spawn();
    let outputs = [4, 2, 9, 5, 7];
    let prompt = |number: usize| vec![number as u32 + 1; 5];
    for (number, output) in outputs.into_iter().enumerate() {
        let mut request = request(&prompt(number), output, number as u64);
        request.rid = RequestId::new(number.to_string());
        request.sampling.ignore_eos = true;
        let sent = world.engine.generate_to(request, recipient.clone());
        sent.expect("it is admitted");
    }
    // The first request has the only row, and its step waits at the gate.
    within(async {
        let mut waiting = 0;
        while waiting < 4 {
            let stats = world.engine.stats().await.expect("stats");
            waiting = stats.waiting_requests;
        }
    })
    .await;
    let answer = set(&world, by("lof")).await.expect("lof exists");
    let expected = PoliciesSet {
        schedule_policy: "lof",
        radix_eviction_policy: "lru",
    };
    assert_eq!(answer, expected);
    drop(pass);
    let (mut tokens, mut ended) = (vec![Vec::new(); outputs.len()], Vec::new());
    while ended.len() < outputs.len() {
        let TokenEvent { rid, event } = within(events.recv()).await.expect("every request ends");
        let number: usize = rid.as_str().parse().expect("rids are numbers");
        match event {
            Event::Delta(delta) => tokens[number].extend(delta.tokens),
            Event::Finished(end) => {
                tokens[number].extend(end.delta.tokens);
                ended.push(number);
            }
            other => panic!("{number} ended with {other:?}"),
        }
    }
    // The running request continues; the others run in order of decreasing output length.
    assert_eq!(ended, [0, 2, 4, 3, 1]);
    for (number, output) in outputs.into_iter().enumerate() {
        let expected = expected_output(&prompt(number), number as u64, output as usize, VOCAB);
        assert_eq!(tokens[number], expected);
    }
    assert_eq!(world.assert_no_leaks().await.schedule_policy, "lof");
    world.stop().await;
}

#[tokio::test]
async fn every_policy_serves_all_requests_during_swaps() {
    let world = Build {
        rows: 3,
        n_pages: 512,
        ..Build::default()
    }
    .start();
    let policies: Vec<_> = schedule_policy_names().collect();
    let evictions: Vec<_> = EvictionPolicy::names().collect();
    let n_rounds = policies.len().max(evictions.len());
    for round in 0..n_rounds {
        let policy = policies[round % policies.len()];
        let eviction = evictions[round % evictions.len()];
        let generations: Vec<_> = (0..12u32)
            .map(|number| {
                let shared = (0..40).map(|at| 1 + (number % 3 * 31 + at * 7) % 499);
                let prompt: Vec<u32> = shared.chain([number + 1; 9]).collect();
                let generation = world.generate(request(&prompt, 20, number.into()));
                (prompt, number, generation)
            })
            .collect();
        let swap = SetPolicy {
            radix_eviction_policy: Some(eviction.to_owned()),
            ..by(policy)
        };
        let answer = set(&world, swap).await.expect("both exist");
        assert_eq!(answer.schedule_policy, policy);
        assert_eq!(answer.radix_eviction_policy, eviction);
        for (prompt, number, generation) in generations {
            let outcome = super::world::collect(generation).await;
            super::world::assert_finished(&outcome, &prompt, 20, number.into());
        }
    }
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn an_unknown_policy_is_refused_with_a_list_of_policies_and_changes_nothing() {
    let world = Build::default().start();
    let unknown = set(&world, by("sjf")).await.expect_err("there is no sjf");
    let valid = schedule_policy_names().collect::<Vec<_>>().join(", ");
    let text = format!("schedule_policy is \"sjf\", must be one of {valid}");
    assert_eq!(unknown, RequestError::Invalid(text));
    let half = SetPolicy {
        radix_eviction_policy: Some("newest".to_owned()),
        ..by("lpm")
    };
    let unknown = set(&world, half).await.expect_err("there is no newest");
    let valid = EvictionPolicy::names().collect::<Vec<_>>().join(", ");
    let text = format!("radix_eviction_policy is \"newest\", must be one of {valid}");
    assert_eq!(unknown, RequestError::Invalid(text));
    let stats = world.assert_no_leaks().await;
    let present = (stats.schedule_policy, stats.radix_eviction_policy);
    assert_eq!(present, ("fcfs", "lru"));
    world.stop().await;
}

#[tokio::test]
async fn without_a_prefix_cache_lpm_is_fcfs_and_nothing_can_be_evicted() {
    let mut build = Build::default();
    build.config.disable_radix_cache = true;
    build.config.schedule_policy = "lpm".to_owned();
    let world = build.start();
    let answer = set(&world, by("hrrn")).await.expect("hrrn exists");
    let present = (answer.schedule_policy, answer.radix_eviction_policy);
    assert_eq!(present, ("fcfs", "none"));
    let eviction = SetPolicy {
        schedule_policy: None,
        radix_eviction_policy: Some("lfu".to_owned()),
    };
    let refused = set(&world, eviction).await.expect_err("there is no cache");
    assert!(
        refused.to_string().contains("disable_radix_cache"),
        "{refused}"
    );
    world.stop().await;
}
