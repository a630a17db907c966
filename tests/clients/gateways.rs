//! Gateways, unmodified from their wheels, in front of two engines: prefixes meet the engine that has them, and no request
//! fails that comes after the death of an engine.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command};

use tempfile::TempDir;

use crate::binary::Binary;
use crate::environment::{self, Found};
use crate::python::{interpreter, run_module_with};

const REQUIREMENTS: &str = "tests/clients/gateways.txt";

/// A gateway as `docs/scale-out.md` starts it.
struct Kind {
    /// The module of Python that it is.
    module: &'static str,
    flags: &'static [&'static str],
}

/// It asks for loads every ten seconds otherwise.
const SMG: Kind = Kind {
    module: "smg",
    flags: &["--load-monitor-interval", "1"],
};

/// It tries a request again where its policy sends it, which is the same engine until that is known to be dead: its retries
/// take longer than its checks.
const SGLANG_ROUTER: Kind = Kind {
    module: "sglang_router",
    flags: &[
        "--health-check-interval-secs",
        "1",
        "--health-failure-threshold",
        "1",
        "--retry-max-retries",
        "10",
        "--disable-circuit-breaker",
    ],
};

/// A gateway that is starting, or runs; killed when it is dropped.
struct Gateway {
    child: Child,
    folder: TempDir,
    url: String,
}

impl Gateway {
    fn start(python: &Path, kind: &Kind, engines: &[Binary]) -> Self {
        let folder = TempDir::new().expect("a folder can be made");
        let log = File::create(folder.path().join("log")).expect("it is writable");
        let errors = log.try_clone().expect("it is open");
        let (port, metrics_port) = (free_port(), free_port());
        let mut command = Command::new(python);
        command
            .args(["-B", "-m", kind.module, "launch", "--host", "127.0.0.1"])
            .args(["--port", &port, "--policy", "cache_aware"])
            .args(["--prometheus-host", "127.0.0.1"])
            .args(["--prometheus-port", &metrics_port])
            .args(kind.flags)
            .arg("--worker-urls")
            .args(engines.iter().map(|engine| &engine.url))
            .current_dir(folder.path())
            .stdout(log)
            .stderr(errors);
        for name in ["http_proxy", "https_proxy", "all_proxy"] {
            command.env_remove(name).env_remove(name.to_uppercase());
        }
        let child = command.spawn().expect("the interpreter runs");
        let url = format!("http://127.0.0.1:{port}");
        Self { child, folder, url }
    }

    /// Its output so far.
    fn log(&self) -> String {
        let text = fs::read(self.folder.path().join("log")).expect("it is there");
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that nobody has. Gateways print nothing by which a port of their own choice could be known.
fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("the socket is bound");
    address.port().to_string()
}

/// Runs the tests of a module with a gateway in front of two engines, of which it may kill the first. The second has to
/// end gracefully.
#[track_caller]
fn check(kind: &Kind, module: &str) {
    static GATEWAYS: Found = Found::new();
    let Some(clients) = interpreter() else {
        return;
    };
    let Some(python) = environment::python_at(&GATEWAYS, REQUIREMENTS) else {
        return;
    };
    let engines = [(); 2].map(|()| Binary::start(&["--threads", "1"]));
    let gateway = Gateway::start(python, kind, &engines);
    let urls = format!("{} {}", engines[0].url, engines[1].url);
    let variables = [
        ("SOUFFLEUR_ENGINES", urls.as_str()),
        ("SOUFFLEUR_GATEWAY", kind.module),
    ];
    let victim = engines[0].process_id();
    let ran = run_module_with(clients, module, &gateway.url, &victim, &variables);
    if let Err(text) = ran {
        let logs = engines.map(|engine| engine.log());
        panic!("{text}\ngateway:\n{}\nengines:\n{logs:?}", gateway.log());
    }
    drop(gateway);
    let [_, survivor] = engines;
    survivor.stop();
}

#[test]
fn the_document_starts_gateways_as_these_tests_do() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(root.join("docs/scale-out.md")).expect("it is there");
    let requirements = fs::read_to_string(root.join(REQUIREMENTS)).expect("it is there");
    for kind in [&SMG, &SGLANG_ROUTER] {
        let launch = format!("python -m {} launch --host 127.0.0.1", kind.module);
        let flags = kind.flags.join(" ");
        for command in [launch, flags] {
            assert!(document.contains(&command), "{command}");
        }
        let package = kind.module.replace('_', "-");
        let mut pinned = requirements.lines();
        let pinned = pinned.find(|line| line.starts_with(&format!("{package}==")));
        let pinned = pinned.expect("it is installed");
        assert!(
            document.contains(&format!("pip install {pinned}")),
            "{pinned}"
        );
    }
}

#[test]
fn smg_sends_prefixes_to_the_engine_that_has_them() {
    check(&SMG, "test_gateway");
}

#[test]
fn smg_fails_no_request_after_the_death_of_an_engine() {
    check(&SMG, "test_gateway_death");
}

#[test]
fn sglang_router_sends_prefixes_to_the_engine_that_has_them() {
    check(&SGLANG_ROUTER, "test_gateway");
}

#[test]
fn sglang_router_fails_no_request_after_the_death_of_an_engine() {
    check(&SGLANG_ROUTER, "test_gateway_death");
}
