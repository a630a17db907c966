//! Tests that the library changes no process-wide state: signal handlers, panic hook, recorder or subscriber.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use souffleur::config::EngineConfig;
use souffleur::request::Event;

use super::doubles::{question, start_bundled};
use super::world::{SHUTDOWN_DEADLINE, World};

const CHILD: &str = "SOUFFLEUR_TEST_QUIET_CHILD";

#[test]
fn an_engine_leaves_its_process_as_it_finds_it() {
    let this = std::env::current_exe().expect("a test has a path");
    let output = Command::new(this)
        .args(["--exact", "quiet::child_process_of_the_test", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("the child starts");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && log.contains("as it was"),
        "{output:?}"
    );
}

#[test]
fn child_process_of_the_test() {
    if std::env::var_os(CHILD).is_none() {
        eprintln!("skipped: this test runs only as a child process");
        return;
    }
    static HOOK_CALLS: AtomicUsize = AtomicUsize::new(0);
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        HOOK_CALLS.fetch_add(1, Ordering::SeqCst);
    }));
    let signals = signal_dispositions();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime starts").block_on(async {
        let world = World {
            engine: start_bundled(EngineConfig::default()),
        };
        let mut generation = world.generate(question(10));
        let mut is_finished = false;
        while let Some(event) = generation.next().await {
            is_finished = matches!(event, Event::Finished(_));
        }
        assert!(is_finished);
        assert_eq!(signal_dispositions(), signals, "while the engine runs");
        world.engine.shutdown(SHUTDOWN_DEADLINE).await;
    });
    assert_eq!(
        signal_dispositions(),
        signals,
        "after the engine has stopped"
    );
    assert_eq!(HOOK_CALLS.load(Ordering::SeqCst), 0, "the engine panicked");
    let _ = std::panic::catch_unwind(|| panic!("for the hook"));
    assert_eq!(
        HOOK_CALLS.load(Ordering::SeqCst),
        1,
        "the host's hook was replaced"
    );
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder();
    assert!(recorder.is_ok(), "a recorder was installed");
    let subscriber = tracing::subscriber::NoSubscriber::default();
    tracing::subscriber::set_global_default(subscriber).expect("no subscriber was installed");
    eprintln!("as it was");
}

/// Signals that this thread blocks and that the process ignores or catches, as the kernel reports them.
fn signal_dispositions() -> Vec<String> {
    let status = match std::fs::read_to_string("/proc/thread-self/status") {
        Ok(status) => status,
        Err(error) => {
            eprintln!("skipped: signals cannot be read here ({error})");
            return Vec::new();
        }
    };
    let is_signals = |line: &&str| {
        ["SigBlk", "SigIgn", "SigCgt"]
            .iter()
            .any(|key| line.starts_with(key))
    };
    status
        .lines()
        .filter(is_signals)
        .map(str::to_owned)
        .collect()
}
