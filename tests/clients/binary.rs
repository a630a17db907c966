//! Runs the `souffleur` binary with the bundled model on a free port.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use tempfile::TempDir;

/// Timeout from the signal to the exit; the server itself stops waiting for its clients earlier.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A server that accepts requests; `drop` kills the process unless it was stopped.
pub struct Binary {
    child: Child,
    stdout: BufReader<ChildStdout>,
    folder: TempDir,
    pub url: String,
}

impl Binary {
    pub fn start(args: &[&str]) -> Self {
        let folder = TempDir::new().expect("a folder can be made");
        let log = File::create(folder.path().join("stderr")).expect("the folder is writable");
        let mut command = Command::new(env!("CARGO_BIN_EXE_souffleur"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SOUFFLEUR_") {
                command.env_remove(name);
            }
        }
        // Without --model-path, the bundled model is unpacked and served.
        command.args(["serve", "--port", "0"]).args(args);
        command.env("SOUFFLEUR_CACHE_DIR", folder.path());
        command.stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("the binary runs");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut binary = Self {
            child,
            stdout,
            folder,
            url: String::new(),
        };
        binary.url = binary.wait_until_ready();
        binary
    }

    /// The address to connect to, which is printed once the model is loaded.
    fn wait_until_ready(&mut self) -> String {
        let mut printed = String::new();
        loop {
            let start = printed.len();
            let read = self.stdout.read_line(&mut printed);
            if read.expect("stdout is UTF-8") == 0 {
                panic!("the server ended early:\n{printed}{}", self.log());
            }
            if let Some((_, rest)) = printed[start..].split_once("curl -N http://") {
                let address = rest.split('/').next().expect("an address");
                return format!("http://{address}");
            }
        }
    }

    pub fn process_id(&self) -> String {
        self.child.id().to_string()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("stderr")).expect("a log")
    }

    /// Sends SIGTERM and expects a graceful end.
    pub fn stop(self) {
        let sent = kill("TERM", &self.process_id()).expect("kill runs");
        assert!(sent.success(), "already exited:\n{}", self.log());
        self.expect_exit();
    }

    /// Waits until the server exits, which must happen in time and with exit code 0.
    pub fn expect_exit(mut self) {
        let (ended, waiting) = mpsc::channel::<()>();
        let process_id = self.process_id();
        let killer = std::thread::spawn(move || {
            let in_time = waiting.recv_timeout(TIMEOUT) != Err(mpsc::RecvTimeoutError::Timeout);
            if !in_time {
                let _ = kill("KILL", &process_id);
            }
            in_time
        });
        let _ = self.stdout.read_to_end(&mut Vec::new());
        let status = self.child.wait().expect("the server can be waited for");
        let _ = ended.send(());
        let in_time = killer.join().expect("the killer does not panic");
        assert!(in_time, "the server had to be killed:\n{}", self.log());
        assert_eq!(status.code(), Some(0), "{}", self.log());
    }
}

impl Drop for Binary {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn kill(signal: &str, process_id: &str) -> std::io::Result<std::process::ExitStatus> {
    let mut kill = Command::new("kill");
    kill.args(["-s", signal, process_id]);
    kill.stderr(Stdio::null()).status()
}

pub fn model() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/souffleur-tiny")
}
