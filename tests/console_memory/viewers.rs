//! Tests of 8 viewers, one of which does not read.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use crate::allocator::live_bytes;
use crate::drawing::Drawing;
use crate::http::{Events, events_of, get, listen};
use crate::server::{Load, Server, connect_narrowly, wait_until};

const LIVE: &str = "/console/live?hz=10";
/// Viewers that read.
const READERS: usize = 7;
/// Requests that fill the pool before the first viewer comes.
const FILLING: usize = 200;
const REQUESTS_PER_FRAME: usize = 3;
/// In these frames buffers grow, and those of the stalled viewer get full.
const WARM_FRAMES: usize = 30;
const MEASURED_FRAMES: usize = 50;
/// Frames of which the least memory counts as that of an idle engine.
const IDLE_FRAMES: usize = 5;
const READINGS_PER_FRAME: usize = 50;
/// The kernel keeps 15 bytes of a thread's name.
const SAMPLER: &str = "souffleur-conso";

/// A client of the stream.
struct Viewer {
    events: Events,
    drawing: Drawing,
    frame: Value,
    /// The time of each frame, in µs.
    times: Vec<u64>,
    n_bytes: usize,
}

/// A frame that a viewer has read.
struct Tick {
    t_us: u64,
    /// Bytes that the viewer has read.
    n_bytes: usize,
}

impl Viewer {
    #[track_caller]
    fn open(addr: SocketAddr) -> Self {
        Self::of(listen(addr, LIVE, ""))
    }

    /// A viewer with small buffers, which has read the head only.
    #[track_caller]
    fn stalled(addr: SocketAddr) -> Self {
        let mut stream = connect_narrowly(addr).expect("the server listens");
        let head = format!("GET {LIVE} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("the server reads");
        Self::of(events_of(stream))
    }

    fn of(events: Events) -> Self {
        Self {
            events,
            drawing: Drawing::default(),
            frame: Value::Null,
            times: Vec::new(),
            n_bytes: 0,
        }
    }

    /// Takes events up to the next frame.
    #[track_caller]
    fn next_frame(&mut self) {
        loop {
            let event = self.events.next_event().expect("the stream goes on");
            self.n_bytes += event.len();
            let Some(event) = event.strip_prefix("event: ") else {
                continue;
            };
            let (name, data) = event.split_once("\ndata: ").expect("an event has data");
            let value: Value = serde_json::from_str(data).expect("data is JSON");
            match name {
                "frame" => {
                    let t_ms = value["t_ms"].as_f64().expect("a number");
                    self.times.push((t_ms * 1000.0).round() as u64);
                    self.frame = value;
                    return;
                }
                "tree" => self.drawing.take(&value),
                _ => (),
            }
        }
    }

    fn has_reached(&self, t_us: u64) -> bool {
        self.times.last().is_some_and(|last| *last >= t_us)
    }

    /// Reads on a new thread until the time `end`.
    fn read(mut self, end: Arc<AtomicU64>, ticks: Option<Sender<Tick>>) -> JoinHandle<Self> {
        let read = move || {
            while !self.has_reached(end.load(Ordering::SeqCst)) {
                self.next_frame();
                let last = self.times.last().copied();
                if let (Some(ticks), Some(t_us)) = (&ticks, last) {
                    let n_bytes = self.n_bytes;
                    // Ignored at the end of the test.
                    let _ = ticks.send(Tick { t_us, n_bytes });
                }
            }
            self
        };
        std::thread::spawn(read)
    }
}

/// Whether the sampler's thread runs; unknown on systems without `/proc`.
fn has_sampler() -> Option<bool> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    let mut names = threads.filter_map(|thread| {
        let name = thread.ok()?.path().join("comm");
        std::fs::read_to_string(name).ok()
    });
    Some(names.any(|name| name.trim_end() == SAMPLER))
}

/// The server with viewers that read, of which the first one reports its frames.
struct Watched {
    server: Server,
    load: Load,
    readers: Vec<JoinHandle<Viewer>>,
    ticks: Receiver<Tick>,
    end: Arc<AtomicU64>,
}

/// The state of the idle engine's process.
struct Idle {
    live_bytes: isize,
    /// The last frame of the first viewer.
    last: Tick,
}

impl Watched {
    fn start(server: Server, load: Load) -> Self {
        let (sender, ticks) = channel();
        let end = Arc::new(AtomicU64::new(u64::MAX));
        let viewers: Vec<Viewer> = (0..READERS).map(|_| Viewer::open(server.addr)).collect();
        let mut sender = Some(sender);
        let read = |viewer: Viewer| viewer.read(end.clone(), sender.take());
        let readers = viewers.into_iter().map(read).collect();
        Self {
            server,
            load,
            readers,
            ticks,
            end,
        }
    }

    fn next_tick(&self) -> Tick {
        self.ticks.recv().expect("the first viewer reads")
    }

    /// Sends requests during this number of frames, and waits until the engine is idle and the frames say so.
    fn run(&mut self, n_frames: usize) -> Idle {
        for _ in 0..n_frames {
            self.next_tick();
            self.load.send(&self.server, REQUESTS_PER_FRAME);
        }
        self.server.wait_until_idle();
        while self.ticks.try_recv().is_ok() {}
        let mut least = isize::MAX;
        let mut last = self.next_tick();
        for _ in 0..IDLE_FRAMES {
            last = self.next_tick();
            for _ in 0..READINGS_PER_FRAME {
                least = least.min(live_bytes());
                std::thread::yield_now();
            }
        }
        Idle {
            live_bytes: least,
            last,
        }
    }
}

/// Checks that the viewers got the frames from `start` to `end`. Returns their times.
fn check_frames(readers: &[Viewer], start: u64, end: u64) -> BTreeSet<u64> {
    let range = start..=end;
    let times = readers.iter().flat_map(|viewer| &viewer.times).copied();
    let all: BTreeSet<u64> = times.filter(|time| range.contains(time)).collect();
    for viewer in readers {
        let got: BTreeSet<u64> = viewer.times.iter().copied().collect();
        let n_missed = all.difference(&got).count();
        // On a busy machine a worker may come too late for a few.
        assert!(n_missed * 10 <= all.len(), "{n_missed} of {}", all.len());
    }
    all
}

/// Reads the events of the stalled viewer, and checks that it skipped frames and draws the same tree as another viewer.
fn check_stalled(stalled: &mut Viewer, frames: &BTreeSet<u64>, other: &Viewer) {
    let end = frames.last().copied().expect("there were frames");
    while !stalled.has_reached(end + 1) {
        stalled.next_frame();
    }
    // The tree's event comes before the next frame.
    stalled.next_frame();
    assert!(stalled.times.is_sorted(), "{:?}", stalled.times);
    let got: BTreeSet<u64> = stalled.times.iter().copied().collect();
    let n_skipped = frames.difference(&got).count();
    assert!(
        n_skipped >= MEASURED_FRAMES / 2,
        "skipped {n_skipped} of {} frames",
        frames.len()
    );
    assert!(stalled.drawing.snapshots >= 2, "one after the skip");
    assert_eq!(stalled.drawing.rows, other.drawing.rows);
    assert_eq!(stalled.drawing.total, other.drawing.total);
    assert_eq!(stalled.frame["counters"], other.frame["counters"]);
}

#[test]
fn memory_is_flat_with_eight_viewers_of_which_one_does_not_read() {
    let _alone = crate::alone();
    let (server, mut load) = (Server::start(), Load::default());
    load.send(&server, FILLING);
    server.wait_until_idle();
    assert!(server.stats().evicted_tokens > 0, "the pool is full");
    let addr = server.addr;
    let mut stalled = Viewer::stalled(addr);
    let mut watched = Watched::start(server, load);
    let ninth = get(addr, LIVE);
    let code = &ninth.json()["error"]["code"];
    assert_eq!((ninth.status, code), (503, &json!("too_many_viewers")));

    let warm = watched.run(WARM_FRAMES);
    let measured = watched.run(MEASURED_FRAMES);
    let n_read = (measured.last.n_bytes - warm.last.n_bytes) as isize;
    let growth = measured.live_bytes - warm.live_bytes;
    assert!(
        growth * 2 < n_read,
        "{growth} more bytes, while a viewer read {n_read}"
    );

    watched.end.store(measured.last.t_us, Ordering::SeqCst);
    let readers = watched.readers.drain(..);
    let readers: Vec<Viewer> = readers
        .map(|reader| reader.join().expect("the events are right"))
        .collect();
    let firsts = readers
        .iter()
        .filter_map(|viewer| viewer.times.first().copied());
    let start = firsts.max().expect("all viewers have read");
    let frames = check_frames(&readers, start, measured.last.t_us);
    check_stalled(&mut stalled, &frames, &readers[0]);
    // The server need not wait for the viewers.
    drop((stalled, readers));
}

#[test]
fn the_sampler_runs_only_while_there_are_viewers() {
    let _alone = crate::alone();
    if has_sampler().is_none() {
        assert!(std::env::var_os("CI").is_none(), "CI needs /proc");
        eprintln!("skipped: there is no /proc/self/task");
        return;
    }
    // That of another test may still run.
    wait_until("no sampler runs", || has_sampler() == Some(false));
    let server = Server::start();
    Load::default().send(&server, 3);
    assert_eq!(get(server.addr, "/console/live?hz=11").status, 400);
    assert_eq!(has_sampler(), Some(false));
    for _ in 0..2 {
        let mut viewers = [(); 2].map(|()| Viewer::open(server.addr));
        viewers.iter_mut().for_each(Viewer::next_frame);
        assert_eq!(has_sampler(), Some(true));
        let [first, mut second] = viewers;
        drop(first);
        second.next_frame();
        assert_eq!(has_sampler(), Some(true));
        drop(second);
        wait_until("the sampler ends", || has_sampler() == Some(false));
    }
}
