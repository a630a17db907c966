//! Tests of the cores of replicas, on the machine that runs them.

use std::path::Path;
use std::sync::{Arc, Mutex};

use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineParts, Progress, ReplicaThreads};
use souffleur::request::Event;
use souffleur::state::router::LoadBalance;

use super::doubles::{Fault, with_fault};
use super::world::{World, collect, request, within};

/// The CPUs that the calling thread may use, as Linux lists them.
fn own_cpus() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("Linux has this file");
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.expect("a list of CPUs").trim().to_owned()
}

#[tokio::test]
async fn a_replica_that_is_loaded_again_keeps_its_cores() {
    let config = EngineConfig {
        model_path: Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/qwen3"),
        max_total_tokens: Some(1024),
        dp_size: 2,
        load_balance_method: LoadBalance::RoundRobin,
        rebuild_attempts: 3,
        rebuild_backoff_s: 0.0,
        ..EngineConfig::default()
    };
    let threads = ReplicaThreads::of(&config);
    let mut parts = EngineParts::from_model(&config, Progress::silent()).expect("supported");
    let (make, loads) = (parts.executor.clone(), Arc::new(Mutex::new(Vec::new())));
    let of_loads = loads.clone();
    parts.executor = Arc::new(move || {
        let cpus = own_cpus();
        of_loads.lock().expect("no holder panics").push(cpus);
        make()
    });
    let parts = with_fault(parts, 2, Fault::DeviceLost);
    let engine = Engine::start_with(config, parts).expect("the engine starts");
    let world = World { engine };
    let outcome = collect(world.generate(request(&[1, 2], 50, 7))).await;
    assert!(matches!(outcome.end, Event::Finished(_)), "{outcome:?}");
    let loads = within(async {
        loop {
            let loads = loads.lock().expect("no holder panics").clone();
            if loads.len() == 3 {
                return loads;
            }
            tokio::task::yield_now().await;
        }
    });
    let loads: Vec<String> = loads.await;
    if threads.cpus(0).is_empty() {
        assert!(loads.iter().all(|cpus| *cpus == own_cpus()), "{loads:?}");
    } else {
        let status = world.engine.unit_status();
        let mut replicas = status.replicas.iter();
        let again = replicas.position(|replica| replica.generation == 2);
        let line = &threads.explain()[1 + again.expect("it is loaded again")];
        assert!(line.contains(&format!("(CPUs {})", loads[2])), "{line}");
        assert_ne!(loads[0], loads[1]);
    }
    world.stop().await;
}
