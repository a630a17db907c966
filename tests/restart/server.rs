//! Starts, observes and kills server processes with a KV store, and sends requests to them.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use souffleur::kernels::cpu::{ISA_VARIABLE, Isa};

use crate::http::{get, post};

const TIMEOUT: Duration = Duration::from_secs(60);

const GPU_BYTES: &str = "2147483648";

/// The settings of all servers here, unless a flag overrides them.
const SETTINGS: [(&str, &str); 5] = [
    ("SOUFFLEUR_THREADS", "1"),
    ("SOUFFLEUR_MAX_TOTAL_TOKENS", "4096"),
    ("SOUFFLEUR_MAX_RUNNING_REQUESTS", "16"),
    ("SOUFFLEUR_KV_DISK_BYTES", "67108864"),
    ("SOUFFLEUR_KV_HOST_BYTES", "33554432"),
];

/// The command line and environment of a server.
#[derive(Clone)]
pub struct Launch {
    model: PathBuf,
    args: Vec<OsString>,
    isa: Option<Isa>,
    file_blocks: Option<u32>,
    is_on_gpu: bool,
}

impl Launch {
    pub fn new(model: &Path) -> Self {
        Self {
            model: model.to_owned(),
            args: Vec::new(),
            isa: None,
            file_blocks: None,
            is_on_gpu: false,
        }
    }

    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(OsString::from));
        self
    }

    pub fn with_store(mut self, folder: &Path) -> Self {
        self.args.push("--kv-disk-path".into());
        self.args.push(folder.into());
        self
    }

    pub fn with_page_size(self, tokens: u32) -> Self {
        self.args(&["--page-size", &tokens.to_string()])
    }

    /// Forces a kernel path.
    pub fn with_isa(self, isa: Isa) -> Self {
        Self {
            isa: Some(isa),
            ..self
        }
    }

    /// Limits files to `blocks` times 512 bytes: further writes fail as on a full disk.
    pub fn limit_files(self, blocks: u32) -> Self {
        Self {
            file_blocks: Some(blocks),
            ..self
        }
    }

    pub fn on_a_gpu(self) -> Self {
        let launch = self.args(&["--device", "cuda", "--cuda-graph-max-bs", "2"]);
        Self {
            is_on_gpu: true,
            ..launch
        }
    }

    fn command(&self) -> Command {
        let program = env!("CARGO_BIN_EXE_souffleur");
        let mut command = match self.file_blocks {
            None => Command::new(program),
            Some(blocks) => {
                // The server must survive SIGXFSZ, the signal that comes with the error.
                let script = format!("ulimit -f {blocks}; exec \"$0\" \"$@\"");
                let mut shell = Command::new("sh");
                shell.args(["-c", &script, program]);
                shell
            }
        };
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SOUFFLEUR_") {
                command.env_remove(name);
            }
        }
        if let Some(isa) = self.isa {
            command.env(ISA_VARIABLE, isa.name());
        }
        if self.is_on_gpu {
            let driver = souffleur_cusim::library().parent();
            command.env("LD_LIBRARY_PATH", driver.expect("a parent folder"));
            command.env("CUSIM_TOTAL_MEMORY", GPU_BYTES);
        }
        // Settings are in the environment, where flags can override them.
        command.envs(SETTINGS);
        command.args(["serve", "--port", "0"]);
        command
            .args(&self.args)
            .arg("--model-path")
            .arg(&self.model);
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts the server and waits until it accepts requests; the store may not be ready.
    pub fn start(&self) -> Server {
        let mut child = self.command().spawn().expect("the binary runs");
        let log = Log::of(child.stderr.take().expect("the stream is piped"));
        let mut stdout = BufReader::new(child.stdout.take().expect("the stream is piped"));
        let address = address(&mut stdout);
        let addr = address.unwrap_or_else(|printed| {
            let status = child.wait();
            panic!(
                "the server ended before it was ready: {status:?}\n{printed}{}",
                log.text()
            )
        });
        Server {
            child,
            _stdout: stdout,
            log,
            addr,
        }
    }

    /// Starts the server and waits until the store is ready.
    pub fn start_serving(&self) -> Server {
        let server = self.start();
        server.wait_until("the store serves", || server.store()["serves"] == true);
        server
    }

    pub fn refused(&self) -> String {
        let output = self.command().output().expect("the binary runs");
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "the server started:\n{log}");
        assert!(!log.contains("panicked"), "{log}");
        log
    }
}

/// The address that is printed once the model is loaded, or the whole output.
fn address(stdout: &mut BufReader<ChildStdout>) -> Result<SocketAddr, String> {
    let mut printed = String::new();
    loop {
        let start = printed.len();
        if stdout.read_line(&mut printed).expect("stdout is UTF-8") == 0 {
            return Err(printed);
        }
        if let Some((_, rest)) = printed[start..].split_once("curl -N http://") {
            let address = rest.split('/').next().expect("an address is printed");
            return Ok(address.parse().expect("an IP address and a port"));
        }
    }
}

/// The log of a process, read as it arrives.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Log {
    fn of(mut from: impl Read + Send + 'static) -> Self {
        let log = Self::default();
        let read = log.clone();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut piece) {
                read.lock().push_str(&String::from_utf8_lossy(&piece[..n]));
            }
        });
        log
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn text(&self) -> String {
        self.lock().clone()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    tokens: Value,
    logprobs: Value,
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub output: Output,
    /// Prompt tokens whose K/V came from files.
    pub stored: u64,
    /// Prompt tokens whose K/V was in memory.
    pub device: u64,
}

/// A server that accepts requests; `drop` kills the process.
pub struct Server {
    child: Child,
    _stdout: BufReader<ChildStdout>,
    log: Log,
    pub addr: SocketAddr,
}

pub fn call(prompt: &[u32]) -> Value {
    json!({
        "prompt": prompt,
        "max_tokens": 8,
        "ignore_eos": true,
        "temperature": 0.7,
        "seed": 1,
        "logprobs": 1,
        "return_token_ids": true,
        "return_cached_tokens_details": true,
    })
}

impl Server {
    /// Requests eight tokens.
    #[track_caller]
    pub fn ask(&self, prompt: &[u32]) -> Answer {
        self.answer(&call(prompt))
    }

    /// Like [`Self::ask`], in the namespace of a salt.
    #[track_caller]
    pub fn ask_salted(&self, prompt: &[u32], salt: &str) -> Answer {
        let mut call = call(prompt);
        call["cache_salt"] = salt.into();
        self.answer(&call)
    }

    #[track_caller]
    fn answer(&self, call: &Value) -> Answer {
        let mut reply = post(self.addr, "/v1/completions", call).ok();
        let cached = &reply["sglext"]["cached_tokens_details"];
        let (stored, device) = (cached["storage"].as_u64(), cached["device"].as_u64());
        let choice = &mut reply["choices"][0];
        let output = Output {
            tokens: choice["token_ids"].take(),
            logprobs: choice["logprobs"]["token_logprobs"].take(),
        };
        for list in [&output.tokens, &output.logprobs] {
            assert_eq!(list.as_array().map(Vec::len), Some(8), "{reply}");
        }
        Answer {
            output,
            // The field is missing for a request that loaded nothing.
            stored: stored.unwrap_or(0),
            device: device.expect("the field is a count"),
        }
    }

    /// The state of the store in `/server_info`.
    pub fn store(&self) -> Value {
        get(self.addr, "/server_info").ok()["internal_states"][0]["store"].take()
    }

    /// The sum of a metric over the series whose labels contain `label`.
    pub fn metric(&self, name: &str, label: &str) -> f64 {
        let page = get(self.addr, "/metrics").body;
        let lines = page.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = rest.rsplit_once(' ')?;
            let is_metric = labels.is_empty() || labels.starts_with('{');
            (is_metric && labels.contains(label)).then(|| value.parse::<f64>().expect("a number"))
        });
        lines.sum()
    }

    /// Tokens that this process has written.
    pub fn written_tokens(&self) -> u64 {
        self.metric("sglang:backuped_tokens_total", "") as u64
    }

    /// Records that reads have found damaged.
    pub fn damages(&self) -> u64 {
        self.metric("souffleur_kv_store_short_fetches_total", "damaged") as u64
    }

    /// Waits until `tokens` tokens are written, and no more writes are in flight.
    #[track_caller]
    pub fn wait_until_written(&self, tokens: u64) {
        self.wait_until("everything is written", || {
            let store = self.store();
            let is_idle = store["queued_paths"] == 0
                && store["free_buffers"] == store["buffers"]
                && store["free_state_buffers"] == store["state_buffers"];
            is_idle && self.written_tokens() >= tokens
        });
    }

    #[track_caller]
    pub fn wait_until(&self, what: &str, holds: impl Fn() -> bool) {
        self.wait_at_most(TIMEOUT, what, holds);
    }

    /// Like [`Self::wait_until`], with an explicit limit.
    #[track_caller]
    pub fn wait_at_most(&self, limit: Duration, what: &str, holds: impl Fn() -> bool) {
        let started = Instant::now();
        while !holds() {
            let log = || self.log.text();
            assert!(
                started.elapsed() < limit,
                "waited too long until {what}: {}\n{}",
                self.store(),
                log()
            );
            std::thread::yield_now();
        }
    }

    pub fn log(&self) -> String {
        self.log.text()
    }

    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
