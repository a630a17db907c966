//! Runs the `souffleur` binary in a child process, and measures the memory of that process.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};

use tempfile::TempDir;

use crate::world::long_model;

pub const MIB: usize = 1 << 20;

/// A child process that serves requests. Dropping this value kills the process.
pub struct ChildServer {
    child: Child,
    _stdout: BufReader<ChildStdout>,
    folder: TempDir,
    pub addr: SocketAddr,
}

impl ChildServer {
    /// Serves the tests' tiny random model, whose context is [`crate::world::CONTEXT_TOKENS`] long.
    pub fn start(args: &[&str]) -> Self {
        let folder = long_model();
        let log = fs::File::create(folder.path().join("stderr")).expect("a writable folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_souffleur"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SOUFFLEUR_") {
                command.env_remove(name);
            }
        }
        command.args(["serve", "--port", "0", "--threads", "1"]);
        command.args(["--max-total-tokens", "66560", "--model-path"]);
        command.arg(folder.path()).args(args);
        command.stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("the binary runs");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let addr = address(&mut stdout).unwrap_or_else(|printed| {
            let log = fs::read_to_string(folder.path().join("stderr"));
            panic!("the server ended before it was ready:\n{printed}{log:?}")
        });
        Self {
            child,
            _stdout: stdout,
            folder,
            addr,
        }
    }

    /// Peak resident bytes since the start, or since [`ChildServer::reset_peak`].
    pub fn peak_bytes(&self) -> usize {
        self.status("VmHWM:")
    }

    pub fn resident_bytes(&self) -> usize {
        self.status("VmRSS:")
    }

    /// Resets [`ChildServer::peak_bytes`] to the bytes that are resident now.
    pub fn reset_peak(&self) {
        let file = format!("/proc/{}/clear_refs", self.child.id());
        fs::write(file, "5").expect("the peak can be reset");
    }

    /// The growth of the peak of resident bytes while `work` ran.
    pub fn growth_bytes(&self, work: impl FnOnce()) -> usize {
        self.reset_peak();
        let before = self.resident_bytes();
        work();
        self.peak_bytes().saturating_sub(before)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("stderr")).expect("a log")
    }

    /// The number of sockets that the process has open.
    pub fn sockets(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.id());
        let open = fs::read_dir(folder).expect("the process runs");
        // The link of a descriptor that was closed in the meantime cannot be read.
        let targets = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        let is_socket =
            |target: &std::path::PathBuf| target.to_string_lossy().starts_with("socket:");
        targets.filter(is_socket).count()
    }

    fn status(&self, key: &str) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok());
        kib.expect("the kernel reports memory") << 10
    }
}

impl Drop for ChildServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address that the server prints once the model is loaded. The error is the server's whole output.
fn address(stdout: &mut BufReader<ChildStdout>) -> Result<SocketAddr, String> {
    let mut printed = String::new();
    loop {
        let start = printed.len();
        if stdout.read_line(&mut printed).expect("UTF-8") == 0 {
            let _ = stdout.read_to_string(&mut printed);
            return Err(printed);
        }
        if let Some((_, rest)) = printed[start..].split_once("curl -N http://") {
            let address = rest.split('/').next().expect("an address");
            return Ok(address.parse().expect("an IP address and a port"));
        }
    }
}
