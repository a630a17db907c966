use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::files::MemoryFiles;
use super::*;
use crate::ids::SeqId;
use crate::state::cache::namespace::Namespace;

const TOKENS: usize = 4;
const KV_BYTES: usize = 1000;
const STATE_BYTES: usize = 600;
/// Longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn geometry(state: bool, window_tokens: usize) -> Geometry {
    let plane = |bytes| -> Arc<[Plane]> {
        Arc::from([Plane {
            layer: 0,
            buffer: 0,
            bytes,
        }])
    };
    let none = Arc::default;
    Geometry {
        block_tokens: TOKENS,
        needs: Needs {
            state,
            window_tokens,
        },
        planes: [
            plane(KV_BYTES),
            if window_tokens > 0 { plane(KV_BYTES) } else { none() },
            if state { plane(STATE_BYTES) } else { none() },
        ],
    }
}

/// A store on a disk in memory, and what it says.
struct World {
    files: MemoryFiles,
    geometry: Geometry,
    host_bytes: u64,
    store: Option<Store>,
    answers: Receiver<Answer>,
    keys: Option<Keys>,
    next: u64,
}

impl World {
    fn new(geometry: Geometry, host_bytes: u64) -> Self {
        let mut world = Self {
            files: MemoryFiles::new(),
            geometry,
            host_bytes,
            store: None,
            answers: crossbeam_channel::never(),
            keys: None,
            next: 0,
        };
        world.start();
        world
    }

    fn dense(blocks_in_memory: usize) -> Self {
        Self::new(geometry(false, 0), (blocks_in_memory * KV_BYTES) as u64)
    }

    fn start_with(&mut self, identify: Identify) {
        let (sink, answers): (Sender<Answer>, _) = unbounded();
        let config = StoreConfig {
            path: PathBuf::from("/kv"),
            disk_bytes: 1 << 30,
            host_bytes: self.host_bytes,
            prefetch_timeout: PrefetchTimeout::default(),
            drop_behind: true,
        };
        let sink: Sink = Box::new(move |answer| drop(sink.send(answer)));
        let files = Box::new(self.files.clone());
        let store = Store::start_on(files, config, self.geometry.clone(), identify, sink);
        self.store = Some(store.expect("it fits"));
        self.answers = answers;
    }

    /// Starts until it serves.
    fn start(&mut self) {
        self.start_with(Box::new(|_| Ok(FingerprintParts::new().part("a", 1))));
        loop {
            match self.answer() {
                Answer::State(TierState::Serving { keys, .. }) => {
                    self.keys = Some(keys);
                    return;
                }
                Answer::State(TierState::Identifying | TierState::Recovering) => (),
                other => panic!("{other:?}"),
            }
        }
    }

    fn restart(&mut self) {
        let store = self.store.take().expect("it runs");
        assert!(store.shut_down());
        self.start();
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("it runs")
    }

    fn answer(&self) -> Answer {
        let answer = self.answers.recv_timeout(PATIENCE);
        answer.expect("an answer comes")
    }

    fn path(&self, prompt: u32, blocks: usize) -> Vec<BlockPlace> {
        let keys = self.keys.as_ref().expect("it serves");
        keys.path(&Namespace::default(), &tokens(prompt, blocks))
    }

    fn take(&self, kind: BlockKind) -> HostBlock {
        let pool = self.store().pools().of(kind).expect("there is the kind");
        pool.take(BlockUse::Saving).expect("one is free")
    }

    fn save(&mut self, place: BlockPlace, kind: BlockKind) -> Outcome {
        let mut block = self.take(kind);
        block.bytes_mut().fill(byte(&place, kind));
        self.next += 1;
        let ticket = Ticket::new(self.next);
        let commit = Commit {
            ticket,
            place,
            block,
        };
        self.store().commit(commit).expect("there is room");
        match self.answer() {
            Answer::Committed {
                ticket: answered,
                outcome,
            } => {
                assert_eq!(answered, ticket);
                outcome
            }
            other => panic!("{other:?}"),
        }
    }

    fn find(&self, prompt: u32, blocks: usize, rate: Option<f64>) -> (Arc<[BlockPlace]>, usize, usize) {
        let find = Find {
            seq: SeqId::new(7),
            namespace: Namespace::default(),
            tokens: tokens(prompt, blocks).into(),
            from: 0,
            prefill_tokens_per_s: rate,
        };
        self.store().find(find).expect("there is room");
        match self.answer() {
            Answer::Found {
                seq,
                path,
                blocks,
                worth,
            } => {
                assert_eq!(seq.get(), 7);
                (path, blocks, worth)
            }
            other => panic!("{other:?}"),
        }
    }

    fn ask(&mut self, path: &[BlockPlace], from: usize, timeout: Duration) -> Ticket {
        self.next += 1;
        let fetch = Fetch {
            seq: SeqId::new(7),
            ticket: Ticket::new(self.next),
            path: path.into(),
            blocks: from..path.len(),
            timeout,
        };
        self.store().fetch(fetch).expect("there is room");
        Ticket::new(self.next)
    }

    /// The answer to a fetch. Whatever comes is what was saved.
    fn fetched(&self, path: &[BlockPlace]) -> (Ticket, Result<Loaded, Short>, Option<Short>) {
        match self.answer() {
            Answer::Fetched {
                ticket,
                loaded,
                short,
                ..
            } => {
                check(&loaded, path, &self.geometry);
                (ticket, Ok(loaded), short)
            }
            Answer::Late { ticket, reason, .. } => (ticket, Err(reason), None),
            other => panic!("{other:?}"),
        }
    }

    fn fetch(&mut self, path: &[BlockPlace], from: usize) -> (Result<Loaded, Short>, Option<Short>) {
        let asked = self.ask(path, from, PATIENCE);
        let (ticket, loaded, short) = self.fetched(path);
        assert_eq!(ticket, asked);
        (loaded, short)
    }

    fn counts(&self, kind: BlockKind) -> BlockCounts {
        let pool = self.store().pools().of(kind).expect("there is the kind");
        let counts = pool.counts();
        let used = counts.saving + counts.fetching + counts.ready;
        assert_eq!(counts.free + used, counts.total, "{counts:?}");
        counts
    }
}

fn tokens(prompt: u32, blocks: usize) -> Vec<u32> {
    (0..blocks * TOKENS).map(|t| t as u32 ^ prompt << 16).collect()
}

fn byte(place: &BlockPlace, kind: BlockKind) -> u8 {
    place.key.0[0] ^ kind.index() as u8
}

/// Every buffer holds its block's bytes, and the end's needs are met.
fn check(loaded: &Loaded, path: &[BlockPlace], geometry: &Geometry) {
    let needs = geometry.needs;
    let Loaded {
        blocks,
        kv,
        window,
        state,
    } = loaded;
    let mut windows = needs.window_blocks(blocks.end, TOKENS);
    windows.start = windows.start.max(blocks.start);
    let end = blocks.end - 1..blocks.end;
    let states = if needs.state { end } else { 0..0 };
    let state: Vec<&HostBlock> = state.iter().collect();
    let parts = [
        (kv.iter().collect(), blocks.clone()),
        (window.iter().collect(), windows),
        (state, states),
    ];
    for (buffers, blocks) in parts {
        let buffers: Vec<&HostBlock> = buffers;
        assert_eq!(buffers.len(), blocks.len());
        for (buffer, place) in buffers.iter().zip(&path[blocks]) {
            let expected = byte(place, buffer.kind());
            assert!(buffer.bytes().iter().all(|byte| *byte == expected));
            assert_eq!(buffer.usage(), BlockUse::Ready);
        }
    }
}

#[test]
fn blocks_come_back_after_a_restart() {
    let mut world = World::dense(8);
    let path = world.path(0, 5);
    for place in &path {
        assert_eq!(world.save(*place, BlockKind::Kv), Outcome::Written);
    }
    assert_eq!(world.save(path[4], BlockKind::Kv), Outcome::Known);
    world.restart();
    let (found, blocks, worth) = world.find(0, 9, None);
    assert_eq!((&*found, blocks, worth), (&path[..], 5, 5));
    assert_eq!(world.find(1, 9, None).1, 0);
    let (loaded, short) = world.fetch(&path, 2);
    let loaded = loaded.expect("it is there");
    assert_eq!((loaded.blocks.clone(), short), (2..5, None));
    assert_eq!(world.counts(BlockKind::Kv).ready, 3);
    drop(loaded);
    assert_eq!(world.counts(BlockKind::Kv).free, 8);
    let stats = world.store().stats();
    assert_eq!((stats.records, stats.read, stats.damaged), (5, 3, 0));
    assert_eq!(stats.read_bytes, 3 * KV_BYTES as u64);
}

#[test]
fn what_is_computed_faster_is_worth_nothing() {
    let mut world = World::dense(4);
    let place = world.path(0, 1)[0];
    world.save(place, BlockKind::Kv);
    assert_eq!(world.find(0, 1, Some(1e9)).2, 0);
    assert_eq!(world.find(0, 1, Some(1.0)).2, 1);
    assert_eq!(world.store().stats().too_slow, 1);
}

#[test]
fn a_long_prefix_comes_in_rounds_and_saves_keep_their_share() {
    let mut world = World::dense(8);
    let path = world.path(0, 9);
    for place in &path {
        world.save(*place, BlockKind::Kv);
    }
    let (first, short) = world.fetch(&path, 0);
    let first = first.expect("it is there");
    assert_eq!((first.blocks.clone(), short), (0..6, Some(Short::Memory)));
    // The next round waits for buffers; saves have theirs.
    let second = world.ask(&path, 6, PATIENCE);
    let other = world.path(1, 1)[0];
    assert_eq!(world.save(other, BlockKind::Kv), Outcome::Written);
    drop(first);
    let (ticket, loaded, _) = world.fetched(&path);
    assert_eq!(ticket, second);
    // It began with as many as had come back by then.
    let mut end = loaded.expect("it is there").blocks.end;
    while end < 9 {
        let next = world.fetch(&path, end).0.expect("it is there");
        assert_eq!(next.blocks.start, end);
        end = next.blocks.end;
    }
}

#[test]
fn a_fetch_ends_by_its_deadline_or_when_it_is_cancelled() {
    let mut world = World::dense(4);
    let path = world.path(0, 3);
    for place in &path {
        world.save(*place, BlockKind::Kv);
    }
    world.ask(&path, 0, Duration::ZERO);
    let (_, late, _) = world.fetched(&path);
    assert_eq!(late.err(), Some(Short::Deadline));
    let held = world.fetch(&path, 0).0.expect("it is there");
    let waiting = world.ask(&path, 0, PATIENCE);
    world.store().cancel(waiting).expect("there is room");
    let (ticket, late, _) = world.fetched(&path);
    assert_eq!((ticket, late.err()), (waiting, Some(Short::Cancelled)));
    drop(held);
    let gone = world.path(3, 2);
    assert_eq!(world.fetch(&gone, 0).0.err(), Some(Short::Evicted));
    assert_eq!(world.fetch(&path, 3).0.err(), Some(Short::Evicted));
    assert_eq!(world.store().stats().late, 4);
    assert_eq!(world.counts(BlockKind::Kv).free, 4);
}

#[test]
fn a_damaged_block_cuts_a_fetch_short() {
    let mut world = World::dense(8);
    let path = world.path(0, 4);
    for place in &path {
        world.save(*place, BlockKind::Kv);
    }
    let segment = world.files.path("seg-kv");
    world.files.change(&segment, |bytes| bytes[2 * 8192 + 4096 + 5] ^= 1);
    let (loaded, short) = world.fetch(&path, 0);
    assert_eq!(short, Some(Short::Damaged));
    assert_eq!(loaded.expect("the first two are whole").blocks, 0..2);
    assert_eq!(world.find(0, 4, None).1, 2);
    assert_eq!(world.store().stats().damaged, 1);
    assert_eq!(world.save(path[2], BlockKind::Kv), Outcome::Written);
    assert_eq!(world.find(0, 4, None).1, 4);
}

#[test]
fn layers_with_states_go_on_where_there_is_one() {
    let mut world = World::new(geometry(true, 0), 16 * KV_BYTES as u64);
    let path = world.path(0, 6);
    for place in &path {
        assert_eq!(world.save(*place, BlockKind::Kv), Outcome::Written);
    }
    assert_eq!(world.find(0, 6, None).1, 0);
    for block in [1, 4] {
        assert_eq!(world.save(path[block], BlockKind::State), Outcome::Written);
    }
    let (found, blocks, worth) = world.find(0, 6, None);
    assert_eq!((found.len(), blocks, worth), (6, 5, 5));
    let (loaded, short) = world.fetch(&found[..blocks], 0);
    assert_eq!((loaded.expect("it is there").blocks, short), (0..5, None));
    // The state at the end is damaged: the path ends at the one before.
    let segment = world.files.path("seg-state");
    world.files.change(&segment, |bytes| bytes[8192 + 4096] ^= 1);
    let (loaded, short) = world.fetch(&found[..blocks], 0);
    let loaded = loaded.expect("there is a state before");
    assert_eq!((loaded.blocks.clone(), short), (0..2, Some(Short::Damaged)));
    drop(loaded);
    assert_eq!(world.fetch(&found[..blocks], 2).0.err(), Some(Short::Evicted));
    assert_eq!(world.counts(BlockKind::State).free, world.counts(BlockKind::State).total);
}

#[test]
fn windows_are_loaded_of_the_last_blocks_alone() {
    let mut world = World::new(geometry(false, 6), 32 * KV_BYTES as u64);
    let path = world.path(0, 5);
    for place in &path {
        world.save(*place, BlockKind::Kv);
    }
    for block in [1, 2, 3] {
        world.save(path[block], BlockKind::Window);
    }
    // Behind four blocks of 4 tokens, 5 are seen: those of the last two.
    assert_eq!(world.find(0, 5, None).1, 4);
    let (loaded, _) = world.fetch(&path[..4], 0);
    let loaded = loaded.expect("it is there");
    assert_eq!((loaded.kv.len(), loaded.window.len()), (4, 2));
    drop(loaded);
    let (loaded, _) = world.fetch(&path[..4], 3);
    assert_eq!(loaded.expect("it is there").window.len(), 1);
}

#[test]
fn nothing_is_taken_before_the_fingerprint_is_known() {
    let mut world = World::dense(4);
    let place = world.path(0, 1)[0];
    assert!(world.store.take().is_some_and(Store::shut_down));
    let (known, wait) = unbounded::<Result<FingerprintParts, String>>();
    world.start_with(Box::new(move |_| wait.recv().expect("it is told")));
    let identifying = world.answer();
    assert!(matches!(identifying, Answer::State(TierState::Identifying)));
    let commit = Commit {
        ticket: Ticket::new(1),
        place,
        block: world.take(BlockKind::Kv),
    };
    assert_eq!(world.store().commit(commit), Err(Refusal::NotServing));
    assert_eq!(world.store().touch(place.key), Err(Refusal::NotServing));
    assert_eq!(world.store().stats().refused_not_serving, 2);
    assert_eq!(world.counts(BlockKind::Kv).free, 4);
    known.send(Err("the weights are gone".to_owned())).expect("it waits");
    match world.answer() {
        Answer::State(TierState::Off { reason }) => assert_eq!(reason, "the weights are gone"),
        other => panic!("{other:?}"),
    }
    assert!(world.store.take().is_some_and(Store::shut_down));
}

#[test]
fn a_stop_ends_what_would_take_long() {
    let mut world = World::dense(4);
    assert!(world.store.take().is_some_and(Store::shut_down));
    let (begun, identifying) = unbounded();
    world.start_with(Box::new(move |stop| {
        begun.send(()).expect("the test waits");
        while !stop.is_set() {
            std::thread::yield_now();
        }
        Err("stopped".to_owned())
    }));
    identifying.recv_timeout(PATIENCE).expect("it begins");
    assert!(world.store.take().is_some_and(Store::shut_down));
}

#[test]
fn a_stopping_store_answers_everything() {
    let mut world = World::dense(64);
    let path = world.path(0, 40);
    let mut tickets = HashSet::new();
    for (at, place) in path.iter().enumerate() {
        let mut block = world.take(BlockKind::Kv);
        block.bytes_mut().fill(byte(place, BlockKind::Kv));
        let ticket = Ticket::new(at as u64);
        let commit = Commit {
            ticket,
            place: *place,
            block,
        };
        world.store().commit(commit).expect("there is room");
        tickets.insert(ticket);
    }
    let store = world.store.take().expect("it runs");
    let pools = store.pools().clone();
    assert!(store.shut_down());
    while let Ok(answer) = world.answers.try_recv() {
        match answer {
            Answer::Committed { ticket, outcome } => {
                assert_eq!(outcome, Outcome::Written);
                assert!(tickets.remove(&ticket));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(tickets.is_empty(), "{tickets:?}");
    let counts = pools.of(BlockKind::Kv).map(BlockPool::counts);
    assert_eq!(counts.map(|counts| counts.free), Some(64));
    world.start();
    assert_eq!(world.find(0, 40, None).1, 40);
}

#[test]
fn bounds_that_hold_nothing_are_told() {
    let start = |host_bytes, disk_bytes| {
        let config = StoreConfig {
            path: PathBuf::from("/kv"),
            disk_bytes,
            host_bytes,
            prefetch_timeout: PrefetchTimeout::default(),
            drop_behind: false,
        };
        let files = Box::new(MemoryFiles::new());
        let identify: Identify = Box::new(|_| Err("not asked".to_owned()));
        let sink: Sink = Box::new(|_| ());
        let started = Store::start_on(files, config, geometry(true, 0), identify, sink);
        started.err().expect("it does not fit").to_string()
    };
    let few = start(3000, 1 << 30);
    assert!(few.contains("raise kv_host_bytes to 3200"), "{few}");
    let small = start(1 << 20, 4096);
    assert!(small.contains("4096 bytes of disk hold no kv record of 8192"), "{small}");
}

#[test]
fn timeouts_grow_with_tokens_and_are_bounded() {
    let timeout = PrefetchTimeout::default();
    assert_eq!(timeout.of(0), Duration::from_secs(1));
    assert_eq!(timeout.of(8192), Duration::from_secs(3));
    assert_eq!(timeout.of(usize::MAX), PrefetchTimeout::MAX);
}
