//! Tests of engines with several replicas: they answer as one engine, also while a replica or the Router dies.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Sender, unbounded};
use souffleur::actors::messages::{PeekPrefix, PinPrefix, SetPolicy, TokenEvent, UnpinPrefix};
use souffleur::config::{Device, EngineConfig, Gpus, MaxRestarts};
use souffleur::engine::{Engine, Generation, SoftPin};
use souffleur::error::{LoadError, RequestError};
use souffleur::ids::RequestId;
use souffleur::request::Event;
use souffleur::state::cache::namespace::Namespace;
use souffleur::state::router::LoadBalance;

use super::doubles::{Fault, Probe, faulty_parts, losing_parts};
use super::watchdog::recorder;
use super::world::{Build, World, assert_finished, collect, request, within};

const REQUESTS: u32 = 32;
const LENGTH: u32 = 40;

fn replicas(dp_size: usize, chaos: &[String]) -> Build {
    Build {
        config: EngineConfig {
            dp_size,
            load_balance_method: LoadBalance::RoundRobin,
            chaos: chaos
                .iter()
                .map(|spec| spec.parse().expect("a valid spec"))
                .collect(),
            max_restarts: MaxRestarts {
                limit: 100,
                period_s: 60,
            },
            ..EngineConfig::default()
        },
        ..Build::default()
    }
}

fn prompt(index: u32) -> Vec<u32> {
    (1..20).map(|token| token * 7 + index).collect()
}

fn send(world: &World) -> Vec<Generation> {
    let sent = (0..REQUESTS)
        .map(|index| world.generate(request(&prompt(index), LENGTH, u64::from(index))));
    sent.collect()
}

/// Checks that each request has the output of an undisturbed engine.
async fn check(sent: Vec<Generation>) {
    for (index, generation) in (0..).zip(sent) {
        let outcome = collect(generation).await;
        assert_finished(&outcome, &prompt(index), LENGTH, u64::from(index));
    }
}

async fn serve(world: &World) {
    check(send(world)).await;
}

#[tokio::test]
async fn replicas_run_requests_at_once_and_answer_as_one_engine() {
    let (hold, gate) = crossbeam_channel::unbounded();
    let build = Build {
        gate: Some(gate),
        rows: 1,
        ..replicas(2, &[])
    };
    let world = build.start();
    let sent = [0, 1].map(|index| world.generate(request(&prompt(index), LENGTH, 7)));
    // A replica with one row runs one request.
    world.until(|stats| stats.running_requests == 2).await;
    let stats = world.engine.stats().await.expect("it runs");
    assert_eq!((stats.total_rows, stats.total_tokens), (2, 2 * 4096));
    let loads = world.engine.loads().await.expect("it runs");
    let running = loads.iter().flatten();
    let running: Vec<usize> = running.map(|load| load.stats.running_requests).collect();
    assert_eq!(running, [1, 1]);
    drop(hold);
    for (index, generation) in (0..).zip(sent) {
        assert_finished(&collect(generation).await, &prompt(index), LENGTH, 7);
    }
    serve(&world).await;
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn a_burst_of_one_prefix_is_divided_if_replicas_keep_no_prefixes() {
    let (hold, gate) = unbounded();
    let mut build = Build {
        gate: Some(gate),
        ..replicas(2, &[])
    };
    build.config.load_balance_method = LoadBalance::Prefix;
    build.config.disable_radix_cache = true;
    let world = build.start();
    let sent = (0..8).map(|index| {
        let prompt: Vec<u32> = (0..640).map(|at| 1 + at % 400).chain([index + 1]).collect();
        world.generate(request(&prompt, 4, 7))
    });
    let sent: Vec<_> = sent.collect();
    world.until_requests(sent.len()).await;
    let loads = world.engine.loads().await.expect("it runs");
    let stats = loads.iter().flatten().map(|load| load.stats);
    let requests = stats.map(|stats| stats.running_requests + stats.waiting_requests);
    assert_eq!(requests.collect::<Vec<usize>>(), [4, 4]);
    drop(hold);
    for generation in sent {
        assert!(matches!(collect(generation).await.end, Event::Finished(_)));
    }
    world.assert_no_leaks().await;
    world.stop().await;
}

#[actix::test]
async fn a_burst_runs_in_the_order_of_its_arrival() {
    // The requests wait in the mailbox of the Router.
    let spec = "actor=router,kind=delay,message=RouteRequest,for=50ms,count=1".to_owned();
    let mut build = Build {
        rows: 1,
        ..replicas(2, &[spec])
    };
    build.config.load_balance_method = LoadBalance::Prefix;
    let world = build.start();
    let (recipient, mut events) = Probe::<TokenEvent>::spawn();
    let rids: Vec<RequestId> = (0..8).map(|n| RequestId::new(format!("{n}"))).collect();
    for (last, rid) in (1..).zip(&rids) {
        // One replica gets all, for their common prefix.
        let prompt: Vec<u32> = (0..640).map(|at| 1 + at % 400).chain([last]).collect();
        let mut request = request(&prompt, 2, 7);
        request.rid = rid.clone();
        let sent = world.engine.generate_to(request, recipient.clone());
        sent.expect("it is admitted");
    }
    let mut ended = Vec::new();
    while ended.len() < rids.len() {
        let TokenEvent { rid, event } = within(events.recv()).await.expect("every request ends");
        match event {
            Event::Delta(_) => (),
            Event::Finished(_) => ended.push(rid),
            other => panic!("{rid} ended with {other:?}"),
        }
    }
    assert_eq!(ended, rids);
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn the_death_of_a_replicas_actor_loses_no_request() {
    for (actor, after) in [
        ("scheduler", 40),
        ("radix_cache", 4),
        ("allocator", 20),
        ("executor", 20),
    ] {
        let spec = format!("actor={actor},kind=panic,after={after}");
        let world = replicas(2, &[spec]).start();
        serve(&world).await;
        assert_eq!(world.engine.chaos()[0].firings, 1, "{actor}");
        world.assert_no_leaks().await;
        world.stop().await;
    }
}

#[tokio::test]
async fn the_loss_of_a_replicas_executor_loses_no_request() {
    let build = replicas(2, &[]);
    let parts = faulty_parts(&build, 3, Fault::DeviceLost);
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    serve(&world).await;
    let status = world.engine.unit_status();
    assert_eq!(status.restarts.executor, 1);
    let generations = status.replicas.iter();
    let mut generations: Vec<u64> = generations.map(|replica| replica.generation).collect();
    generations.sort_unstable();
    assert_eq!(generations, [1, 2], "the other replica runs on");
    world.assert_no_leaks().await;
    world.stop().await;
}

/// A failure of a load, which sends a message once it has been handled.
#[derive(Debug)]
struct Failure(Sender<()>);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("as the test requires")
    }
}

impl std::error::Error for Failure {}

impl Drop for Failure {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[tokio::test]
async fn a_replica_that_cannot_be_loaded_stays_down_although_no_other_runs_at_the_moment() {
    let mut build = replicas(2, &[]);
    build.config.rebuild_attempts = 1;
    let (handled, is_handled) = unbounded();
    let page = recorder();
    let mut parts = losing_parts(&build, move |replica| {
        if replica == 0 {
            return Err(LoadError::Io {
                file: "weights".into(),
                source: io::Error::other(Failure(handled.clone())),
            });
        }
        let _ = is_handled.recv();
        Ok(())
    });
    parts.info.served_model_name = "half".to_owned();
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    serve(&world).await;
    let status = world.engine.unit_status();
    let n_up = status.replicas.iter().filter(|replica| replica.is_up);
    assert_eq!((n_up.count(), world.engine.is_ready()), (1, true));
    // New requests go to the replica that is left.
    serve(&world).await;
    let down = status.replicas.iter().position(|replica| !replica.is_up);
    let down = format!("dp_rank=\"{}\"", down.expect("one is down"));
    let page = page.render();
    let mut running = page.lines().filter(|line| {
        line.starts_with("sglang:num_running_reqs{model_name=\"half\"") && line.contains(&down)
    });
    let running = running.next().expect("the replica ran");
    assert!(running.ends_with(" 0"), "{running}");
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn a_replica_that_runs_again_continues_the_requests_of_one_that_must_still_be_loaded() {
    let build = replicas(2, &[]);
    let (hold, is_released) = unbounded::<()>();
    let parts = losing_parts(&build, move |replica| {
        if replica == 1 {
            let _ = is_released.recv();
        }
        Ok(())
    });
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    serve(&world).await;
    let status = world.engine.unit_status();
    let n_up = status.replicas.iter().filter(|replica| replica.is_up);
    assert_eq!(n_up.count(), 1);
    drop(hold);
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn hosts_get_an_error_while_no_replica_runs() {
    let build = replicas(2, &[]);
    let (hold, is_released) = unbounded::<()>();
    let parts = losing_parts(&build, move |_| {
        let _ = is_released.recv();
        Ok(())
    });
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    let sent = send(&world);
    within(async {
        let is_up = |world: &World| {
            let replicas = world.engine.unit_status().replicas;
            replicas.iter().any(|replica| replica.is_up)
        };
        while is_up(&world) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let paused = world.engine.set_paused(true).await;
    assert!(matches!(paused, Err(RequestError::EngineDown(_))));
    let loads = world.engine.loads().await;
    assert!(
        matches!(loads, Err(RequestError::EngineDown(_))),
        "{loads:?}"
    );
    let stats = world.engine.stats().await;
    assert!(
        matches!(stats, Err(RequestError::EngineDown(_))),
        "{stats:?}"
    );
    drop(hold);
    check(sent).await;
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn the_loss_of_a_gpu_restarts_all_its_replicas_once() {
    for (gpus, expected) in [(1, [2, 2, 2]), (2, [2, 1, 2])] {
        let mut build = replicas(3, &[]);
        build.config.device = Device::Cuda(Gpus::Listed((0..gpus).collect()));
        let mut parts = faulty_parts(&build, 3, Fault::DeviceLost);
        // The executors of the other GPU have no fault.
        parts.other_executors = (1..gpus).map(|_| build.parts().executor).collect();
        let engine = Engine::start_with(build.config, parts).expect("the engine starts");
        let world = World { engine };
        serve(&world).await;
        let status = world.engine.unit_status();
        assert_eq!((status.restarts.executor, status.restarts.all()), (1, 1));
        let generations = status.replicas.iter().map(|replica| replica.generation);
        assert_eq!(generations.collect::<Vec<u64>>(), expected);
        world.assert_no_leaks().await;
        world.stop().await;
    }
}

#[tokio::test]
async fn deaths_of_the_router_lose_no_request() {
    let spec = |after: u32| format!("actor=router,kind=panic,message=RouteRequest,after={after}");
    let specs: Vec<String> = (1..=20).map(|death| spec(death + death / 2)).collect();
    let world = replicas(2, &specs).start();
    serve(&world).await;
    for state in world.engine.chaos() {
        assert_eq!(state.firings, 1, "{}", state.spec);
    }
    world.stop().await;
}

#[tokio::test]
async fn the_death_of_the_tokenizer_loses_no_request() {
    let spec = "actor=tokenizer,kind=panic,phase=entry,message=TokensReady,after=9".to_owned();
    let world = replicas(3, &[spec]).start();
    serve(&world).await;
    assert_eq!(world.engine.unit_status().restarts.tokenizer, 1);
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn pins_and_flushes_reach_the_replica_with_the_prefix() {
    let world = replicas(2, &[]).start();
    let doors = world.engine.doors().expect("it runs");
    // Each in another replica.
    for index in 0..2 {
        let outcome = collect(world.generate(request(&prompt(index), 4, 7))).await;
        assert_finished(&outcome, &prompt(index), 4, 7);
        world.assert_no_leaks().await;
    }
    let peek = async |index| {
        let query = PeekPrefix {
            namespace: Namespace::default(),
            tokens: prompt(index).into(),
        };
        within(doors.peek.send(query)).await.expect("it answers")
    };
    let n_tokens = prompt(0).len();
    assert_eq!((peek(0).await, peek(1).await), (n_tokens, n_tokens));
    let mut pins = Vec::new();
    for index in 0..2 {
        let tokens: Arc<[u32]> = prompt(index).into();
        let pin = PinPrefix {
            namespace: Namespace::default(),
            tokens,
            ttl_s: 600,
        };
        let pinned = within(doors.pin.send(pin)).await.expect("it answers");
        let pinned = pinned.expect("there are few pins");
        assert_eq!(pinned.tokens, n_tokens);
        pins.push(pinned.pin);
    }
    assert_ne!(pins[0], pins[1]);
    let flushed = world.engine.flush_cache().await.expect("it is idle");
    assert_eq!(flushed.kept_tokens, 2 * n_tokens);
    let unpin = async |pin| {
        let answer = within(doors.unpin.send(UnpinPrefix { pin })).await;
        answer.expect("it answers")
    };
    assert!(unpin(pins[1]).await);
    assert!(!unpin(pins[1]).await);
    world.engine.flush_cache().await.expect("it is idle");
    assert_eq!((peek(0).await, peek(1).await), (n_tokens, 0));
    world.stop().await;
}

#[tokio::test]
async fn a_flush_is_refused_as_a_whole_while_one_replica_has_a_request() {
    let world = replicas(2, &[]).start();
    for index in 0..2 {
        let outcome = collect(world.generate(request(&prompt(index), 4, 7))).await;
        assert_finished(&outcome, &prompt(index), 4, 7);
        world.assert_no_leaks().await;
    }
    world.engine.set_paused(true).await.expect("it runs");
    // The first replica gets it.
    let waiting = world.generate(request(&prompt(2), 4, 7));
    world.until(|stats| stats.waiting_requests == 1).await;
    let refusal = world
        .engine
        .flush_cache()
        .await
        .expect_err("a request waits");
    let busy = RequestError::Busy {
        running: 0,
        waiting: 1,
    };
    assert_eq!(refusal, busy);
    let peek = async || {
        let peek = world
            .engine
            .peek_prefix(Namespace::default(), prompt(1).into());
        peek.await.expect("it runs")
    };
    assert_eq!(peek().await, prompt(1).len());
    world.engine.set_paused(false).await.expect("it runs");
    assert_finished(&collect(waiting).await, &prompt(2), 4, 7);
    world.assert_no_leaks().await;
    world.engine.flush_cache().await.expect("it is idle");
    assert_eq!(peek().await, 0);
    world.stop().await;
}

#[tokio::test]
async fn the_next_router_releases_soft_pins() {
    let spec = "actor=router,kind=panic,message=RouteRequest,after=2".to_owned();
    let world = replicas(2, &[spec]).start();
    let outcome = collect(world.generate(request(&prompt(0), 4, 7))).await;
    assert_finished(&outcome, &prompt(0), 4, 7);
    let pin = pin_softly(&world, 0);
    world.until(|stats| stats.soft_pins == 1).await;
    let outcome = collect(world.generate(request(&prompt(1), 4, 7))).await;
    assert_finished(&outcome, &prompt(1), 4, 7);
    assert_eq!(world.engine.chaos()[0].firings, 1);
    drop(pin);
    world.until(|stats| stats.soft_pins == 0).await;
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn a_soft_pin_that_is_released_at_once_ends() {
    let world = replicas(2, &[]).start();
    for index in 0..2 {
        let outcome = collect(world.generate(request(&prompt(index), 4, 7))).await;
        assert_finished(&outcome, &prompt(index), 4, 7);
    }
    drop(pin_softly(&world, 0));
    let later = pin_softly(&world, 1);
    world.until(|stats| stats.soft_pins > 0).await;
    drop(later);
    world.until(|stats| stats.soft_pins == 0).await;
    world.assert_no_leaks().await;
    world.stop().await;
}

fn pin_softly(world: &World, index: u32) -> SoftPin {
    let ttl = Duration::from_secs(600);
    let pin = world
        .engine
        .pin_softly(Namespace::default(), prompt(index).into(), ttl, None);
    pin.expect("the engine runs")
}

#[tokio::test]
async fn a_pause_and_policies_reach_all_replicas() {
    let world = replicas(2, &[]).start();
    let unknown = SetPolicy {
        schedule_policy: Some("none".to_owned()),
        radix_eviction_policy: None,
    };
    world.engine.set_policy(unknown).await.expect_err("unknown");
    let policies = SetPolicy {
        schedule_policy: Some("lof".to_owned()),
        radix_eviction_policy: None,
    };
    let set = world.engine.set_policy(policies).await;
    assert_eq!(set.expect("lof exists").schedule_policy, "lof");
    world.engine.set_paused(true).await.expect("it runs");
    let sent = [0, 1].map(|index| world.generate(request(&prompt(index), LENGTH, 7)));
    world.until(|stats| stats.waiting_requests == 2).await;
    world.engine.set_paused(false).await.expect("it runs");
    for (index, generation) in (0..).zip(sent) {
        assert_finished(&collect(generation).await, &prompt(index), LENGTH, 7);
    }
    world.stop().await;
}
