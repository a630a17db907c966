//! A server under a service manager that speaks systemd's protocol.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{souffleur, tiny_model};

/// The watchdog's limit; the server sends `WATCHDOG=1` three times as often.
const WATCHDOG: Duration = Duration::from_millis(200);
/// More messages than a server sends before its Tokenizer hangs.
const MAX_FED: usize = 30;
/// The thread of the control Arbiter, on which the Scheduler runs; Linux keeps 15 bytes of its name.
const CONTROL_THREAD: &str = "souffleur-engin";

/// A server and the socket to which it reports.
struct Service {
    server: Child,
    socket: UnixDatagram,
    _folder: tempfile::TempDir,
}

impl Service {
    fn start() -> Self {
        Self::new(Stdio::null(), &[])
    }

    fn new(output: Stdio, args: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        let mut command = souffleur(&["--port", "0"]);
        command
            .args(args)
            .arg(tiny_model())
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        let server = command.stdout(output).spawn();
        Self {
            server: server.expect("the binary runs"),
            socket,
            _folder: folder,
        }
    }

    /// Returns whether a line with this start arrives before no message has arrived for `patience`.
    fn receives(&self, start: &str, patience: Duration) -> bool {
        self.socket
            .set_read_timeout(Some(patience))
            .expect("a timeout");
        let mut buffer = [0; 4096];
        while let Ok(n) = self.socket.recv(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..n]);
            if text.lines().any(|line| line.starts_with(start)) {
                return true;
            }
        }
        false
    }

    fn must_receive(&self, start: &str) {
        let patience = Duration::from_secs(120);
        assert!(self.receives(start, patience), "no {start}");
    }

    fn stop(mut self) {
        kill(self.pid(), Signal::SIGTERM).expect("the server runs");
        self.must_receive("STOPPING=1");
        let ended = self.server.wait().expect("the server was started");
        assert!(ended.success());
    }

    /// Sends messages to the socket until it takes no more.
    fn fill(&self) {
        let sender = UnixDatagram::unbound().expect("a socket");
        sender.set_nonblocking(true).expect("a mode");
        let address = self.socket.local_addr().expect("an address");
        let path = address.as_pathname().expect("a path");
        while sender.send_to(b"STATUS=filled", path).is_ok() {}
    }

    fn pid(&self) -> Pid {
        pid(self.server.id())
    }

    fn control_thread(&self) -> Pid {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.server.id()));
        let tasks = tasks.read_dir().expect("the server runs");
        let is_control = |task: &PathBuf| {
            let name = std::fs::read_to_string(task.join("comm"));
            name.is_ok_and(|name| name.trim_end() == CONTROL_THREAD)
        };
        let mut tasks = tasks.map(|task| task.expect("the server runs").path());
        let task = tasks.find(is_control).expect("the control thread runs");
        let id = task.file_name().and_then(|name| name.to_str());
        pid(id
            .and_then(|id| id.parse().ok())
            .expect("a thread's number"))
    }
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(id.try_into().expect("Linux's numbers are positive"))
}

#[test]
fn a_service_manager_is_notified() {
    let service = Service::start();
    for start in ["STATUS=loading", "READY=1", "WATCHDOG=1", "WATCHDOG=1"] {
        service.must_receive(start);
    }
    service.stop();
}

#[test]
fn a_scheduler_that_hangs_feeds_no_watchdog() {
    let service = Service::start();
    service.must_receive("WATCHDOG=1");
    let control = service.control_thread();
    ptrace::seize(control, ptrace::Options::empty()).expect("a child may be traced");
    ptrace::interrupt(control).expect("the thread runs");
    let stopped = waitpid(control, Some(WaitPidFlag::__WALL)).expect("the thread stops");
    assert!(
        matches!(stopped, WaitStatus::PtraceEvent(..)),
        "{stopped:?}"
    );

    // Those that were sent before the stop.
    while service.receives("WATCHDOG=1", Duration::from_millis(1)) {}
    // A round trip may have ended just before the stop.
    service.receives("WATCHDOG=1", WATCHDOG);
    assert!(!service.receives("WATCHDOG=1", 5 * WATCHDOG));

    ptrace::detach(control, None).expect("the thread is stopped");
    service.must_receive("WATCHDOG=1");
    service.stop();
}

#[test]
fn a_tokenizer_that_hangs_feeds_no_watchdog() {
    let hang = "actor=tokenizer,kind=hang_hard,message=Relink,phase=entry";
    let mut service = Service::new(Stdio::null(), &["--chaos", hang]);
    service.must_receive("READY=1");
    // The first round trips may end before the message at which the Tokenizer hangs.
    let fed = (0..MAX_FED).take_while(|_| service.receives("WATCHDOG=1", 5 * WATCHDOG));
    assert!(fed.count() < MAX_FED);
    service.server.kill().expect("the server runs");
    service.server.wait().expect("the server was started");
}

#[test]
fn a_socket_that_is_never_read_blocks_no_server() {
    let mut service = Service::new(Stdio::piped(), &[]);
    service.fill();
    let output = service.server.stdout.take().expect("piped");
    let mut lines = BufReader::new(output).lines();
    // The banner is printed once the model is loaded.
    let ready = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("curl -N")));
    assert!(ready.is_some(), "the server serves");
    kill(service.pid(), Signal::SIGTERM).expect("the server runs");
    let ended = service.server.wait().expect("the server was started");
    assert!(ended.success());
}
