//! Starts Python processes of other projects, such as gateways, on free ports.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command};

use tempfile::TempDir;

/// The process of a Python module; `drop` kills the process.
pub struct Peer {
    child: Child,
    folder: TempDir,
}

impl Peer {
    /// Starts `python -m module`. `configure` adds arguments and variables to the command.
    pub fn start(python: &Path, module: &str, configure: impl FnOnce(&mut Command)) -> Self {
        let folder = TempDir::new().expect("a folder can be made");
        let log = File::create(folder.path().join("log")).expect("the folder is writable");
        let errors = log.try_clone().expect("the handle is duplicated");
        let mut command = Command::new(python);
        command
            .args(["-B", "-m", module])
            .current_dir(folder.path())
            .stdout(log)
            .stderr(errors);
        for name in ["http_proxy", "https_proxy", "all_proxy"] {
            command.env_remove(name).env_remove(name.to_uppercase());
        }
        configure(&mut command);
        let child = command.spawn().expect("the interpreter runs");
        Self { child, folder }
    }

    pub fn log(&self) -> String {
        let text = fs::read(self.folder.path().join("log")).expect("a log");
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A free port, chosen by the tests because peers do not print a port that they choose themselves.
pub fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("the socket is bound");
    address.port().to_string()
}
