//! Tests of the threads and Arbiters on which a host may start an engine, and of the end of the engine's threads.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use actix_rt::{Arbiter, System};
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineHandle, Generation};
use souffleur::request::Event;

use super::doubles::notifying_parts;
use super::world::{Build, World, assert_finished, collect, request, within};

const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn stopping_one_engine_leaves_the_other_serving() {
    let (one, other) = (Build::default().start(), Build::default().start());
    let prompt: Vec<u32> = (1..30).collect();
    let mut long = request(&prompt, 500, 3);
    long.sampling.ignore_eos = true;
    let mut running = other.generate(long);
    let first = within(running.next()).await.expect("an event");
    assert!(matches!(first, Event::Delta(_)));
    assert_finished(
        &collect(one.generate(request(&prompt, 20, 7))).await,
        &prompt,
        20,
        7,
    );
    one.stop().await;
    assert!(matches!(collect(running).await.end, Event::Finished(_)));
    assert_finished(
        &collect(other.generate(request(&prompt, 20, 7))).await,
        &prompt,
        20,
        7,
    );
    other.assert_no_leaks().await;
    other.stop().await;
}

#[actix::test]
async fn an_engine_lives_on_the_hosts_own_arbiter() {
    let build = Build::default();
    let arbiter = Arbiter::current();
    let engine = Engine::start_in_with(&arbiter, build.config.clone(), build.parts()).await;
    serves_and_stops(World {
        engine: engine.expect("the engine starts"),
    })
    .await;
}

#[actix::test]
async fn an_engine_lives_on_an_arbiter_made_for_it() {
    let build = Build::default();
    let arbiter = Arbiter::new();
    let engine =
        Engine::start_in_with(&arbiter.handle(), build.config.clone(), build.parts()).await;
    serves_and_stops(World {
        engine: engine.expect("the engine starts"),
    })
    .await;
    assert!(
        arbiter.spawn(async {}),
        "the engine stopped the host's Arbiter"
    );
    arbiter.stop();
}

async fn serves_and_stops(world: World) {
    let prompt: Vec<u32> = (1..30).collect();
    assert_finished(
        &collect(world.generate(request(&prompt, 20, 7))).await,
        &prompt,
        20,
        7,
    );
    world.assert_no_leaks().await;
    let engine = world.engine.clone();
    world.stop().await;
    assert!(!engine.is_alive());
}

/// One file of the model is a pipe, which is filled after a task has run on the same Arbiter. Reading files on the
/// Arbiter would block that task.
#[actix::test]
async fn files_are_not_read_on_the_hosts_arbiter() {
    let folder = tempfile::TempDir::new().expect("a folder can be made");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/qwen3");
    let files = ["config.json", "model.safetensors", "tokenizer.json"];
    for file in files.into_iter().chain(["tokenizer_config.json"]) {
        fs::copy(source.join(file), folder.path().join(file)).expect("the fixture is complete");
    }
    let (pipe, whole) = (
        folder.path().join("generation_config.json"),
        folder.path().join("whole"),
    );
    fs::copy(source.join("generation_config.json"), &whole).expect("the fixture is complete");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo runs").success());
    let (notify, arbiter_ran) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        // The pipe is filled even if the Arbiter is blocked, so that the test ends.
        let is_in_time = arbiter_ran.recv_timeout(TIMEOUT).is_ok();
        let content = fs::read(&whole).expect("the copy exists");
        let mut pipe_end = fs::OpenOptions::new()
            .write(true)
            .open(&pipe)
            .expect("a reader");
        // If the engine reads the file again, it reads a regular file.
        fs::rename(&whole, &pipe).expect("a rename");
        pipe_end.write_all(&content).expect("a reader");
        is_in_time
    });
    actix_rt::spawn(async move { notify.send(()) });
    let config = EngineConfig {
        model_path: folder.path().to_owned(),
        max_total_tokens: Some(4096),
        threads: 1,
        ..EngineConfig::default()
    };
    let engine = Engine::start_in(&Arbiter::current(), config).await;
    let engine = engine.expect("the engine starts");
    let is_in_time = writer.join().expect("the pipe works");
    assert!(
        is_in_time,
        "the arbiter was blocked until the pipe was filled"
    );
    within(engine.shutdown(Duration::from_secs(1))).await;
}

#[actix::test]
async fn a_stopped_arbiter_starts_no_engine() {
    let arbiter = Arbiter::new();
    let handle = arbiter.handle();
    arbiter.stop();
    arbiter.join().expect("the Arbiter stops");
    let build = Build::default();
    let engine = Engine::start_in_with(&handle, build.config.clone(), build.parts()).await;
    assert!(engine.is_err());
}

#[actix::test]
async fn requests_end_with_the_hosts_arbiter() {
    let (parts, dropped) = notifying_parts(&Build {
        context: 100_000,
        n_pages: 100_000,
        ..Build::default()
    });
    let arbiter = Arbiter::new();
    let engine = Engine::start_in_with(&arbiter.handle(), Build::default().config, parts).await;
    let engine = engine.expect("the engine starts");
    let mut generation = engine.generate(endless()).expect("it is admitted");
    within(generation.next()).await.expect("an event");
    arbiter.stop();
    assert_engine_down(collect(generation).await.end);
    dropped
        .recv_timeout(TIMEOUT)
        .expect("the executor's thread ends");
    assert!(!engine.is_alive(), "the actors have stopped");
    within(engine.shutdown(Duration::from_secs(1))).await;
}

#[actix::test]
async fn requests_end_with_the_hosts_system() {
    let build = Build {
        context: 100_000,
        n_pages: 100_000,
        ..Build::default()
    };
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let host = std::thread::spawn(move || {
        let system = System::new();
        let current = System::current();
        system.block_on(async {
            let engine =
                Engine::start_in_with(&Arbiter::current(), build.config.clone(), build.parts())
                    .await;
            let _ = ready.send((engine.expect("the engine starts"), current));
        });
        system.run().expect("the system stops without an error");
    });
    let (engine, system) = is_ready.await.expect("the host runs");
    let mut generation = engine.generate(endless()).expect("it is admitted");
    within(generation.next()).await.expect("an event");
    system.stop();
    assert_engine_down(collect(generation).await.end);
    actix_web::web::block(move || host.join())
        .await
        .expect("not cancelled")
        .expect("no panic");
    assert!(!engine.is_alive());
}

#[test]
fn an_engine_needs_no_runtime_in_its_host() {
    let build = Build::default();
    let prompt: Vec<u32> = (1..30).collect();
    let (parts, dropped) = notifying_parts(&build);
    let engine = Engine::start_with(build.config.clone(), parts).expect("the engine starts");
    let world = World { engine };
    let mut generation = world.generate(request(&prompt, 20, 7));
    block_on(async {
        while let Some(event) = generation.next().await {
            assert!(!matches!(event, Event::Failed(_)), "{event:?}");
        }
    });
    drop(generation);
    drop(world);
    dropped
        .recv_timeout(TIMEOUT)
        .expect("the executor's thread ends");
}

#[tokio::test]
async fn handles_and_generations_move_between_threads_and_runtimes() {
    fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<EngineHandle>();
    is_send_and_sync::<Generation>();
    let world = Build::default().start();
    let prompt: Vec<u32> = (1..30).collect();
    let generation = world.generate(request(&prompt, 200, 7));
    let other_thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime
            .expect("a runtime starts")
            .block_on(collect(generation))
    });
    let outcome = join_thread(other_thread).await;
    assert_finished(&outcome, &prompt, 200, 7);
    world.assert_no_leaks().await;
    world.stop().await;
}

async fn join_thread<T: Send + 'static>(thread: std::thread::JoinHandle<T>) -> T {
    tokio::task::spawn_blocking(|| thread.join())
        .await
        .expect("not cancelled")
        .expect("no panic")
}

#[test]
fn dropping_the_last_handle_ends_the_threads() {
    let build = Build::default();
    let (parts, dropped) = notifying_parts(&build);
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let last = engine.clone();
    drop(engine);
    assert!(
        last.is_alive() && dropped.try_recv().is_err(),
        "the engine must run while a handle exists"
    );
    drop(last);
    dropped
        .recv_timeout(TIMEOUT)
        .expect("the executor's thread ends");
}

#[tokio::test]
async fn a_request_in_flight_ends_with_the_last_handle() {
    let world = Build {
        context: 100_000,
        n_pages: 100_000,
        ..Build::default()
    }
    .start();
    let mut generation = world.generate(endless());
    within(generation.next()).await.expect("an event");
    drop(world);
    assert_engine_down(collect(generation).await.end);
}

fn endless() -> souffleur::request::GenerateRequest {
    let mut endless = request(&[1, 2, 3], 90_000, 7);
    endless.sampling.ignore_eos = true;
    endless
}

fn assert_engine_down(end: Event) {
    match end {
        Event::Failed(error) => assert_eq!(error.code(), "engine_down"),
        other => panic!("ended with {other:?}"),
    }
}

/// A minimal executor of futures.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
