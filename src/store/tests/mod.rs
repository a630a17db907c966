//! Tests of the KV store on an in-memory file system.

mod buffers;
mod life;
mod loads;

use std::cell::Cell;
use std::path::PathBuf;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::files::{Advice, MemoryFiles};
use super::*;
use souffleur_base::ids::SeqId;
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::prefix_history::StoredMiss;

const TOKENS: usize = 4;
const KV_BYTES: usize = 1000;
const STATE_BYTES: usize = 600;
/// Memory that a buffer of each kind takes, in bytes.
const PAGE_BYTES: u64 = 4096;
/// Longer than any test takes.
const TIMEOUT: Duration = Duration::from_secs(60);

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
            if window_tokens > 0 {
                plane(KV_BYTES)
            } else {
                none()
            },
            if state { plane(STATE_BYTES) } else { none() },
        ],
    }
}

struct World {
    files: MemoryFiles,
    geometry: Geometry,
    host_bytes: u64,
    store: Option<Store>,
    answers: Receiver<Answer>,
    keys: Option<Keys>,
    next: u64,
    /// The reason of the miss in the last lookup.
    missed: Cell<Option<StoredMiss>>,
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
            missed: Cell::new(None),
        };
        world.start();
        world
    }

    fn dense(blocks_in_memory: usize) -> Self {
        let geometry = geometry(false, 0);
        let buffer_bytes = geometry.buffer_bytes(BlockKind::Kv);
        Self::new(geometry, (blocks_in_memory * buffer_bytes) as u64)
    }

    fn start_with(&mut self, identify: Identify) {
        let (sink, answers): (Sender<Answer>, _) = unbounded();
        let config = StoreConfig {
            path: PathBuf::from("/kv"),
            disk_bytes: 1 << 30,
            host_bytes: self.host_bytes,
            prefetch_timeout: PrefetchTimeout::default(),
            drop_behind: true,
            write_share: 1.0,
        };
        let sink: Sink = Box::new(move |answer| drop(sink.send(answer)));
        let files = Box::new(self.files.clone());
        let store = Store::start_on(files, config, self.geometry.clone(), identify, sink);
        self.store = Some(store.expect("the store starts"));
        self.answers = answers;
    }

    /// Starts a store and waits until it serves.
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
        let store = self.store.take().expect("the store runs");
        assert!(store.shut_down());
        self.start();
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("the store runs")
    }

    fn answer(&self) -> Answer {
        let answer = self.answers.recv_timeout(TIMEOUT);
        answer.expect("the store answers")
    }

    fn path(&self, prompt: u32, blocks: usize) -> Vec<BlockPlace> {
        let keys = self.keys.as_ref().expect("the store serves");
        keys.path(&Namespace::default(), &tokens(prompt, blocks))
    }

    fn take(&self, kind: BlockKind) -> HostBlock {
        let pool = self.store().pools().of(kind).expect("the pool exists");
        pool.take(BlockUse::Saving).expect("a buffer is free")
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
        self.store().commit(commit).expect("the queue has space");
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

    fn find(
        &self,
        prompt: u32,
        blocks: usize,
        rate: Option<f64>,
    ) -> (Arc<[BlockPlace]>, usize, usize) {
        let find = Find {
            seq: SeqId::new(7),
            namespace: Namespace::default(),
            tokens: tokens(prompt, blocks).into(),
            from: 0,
            prefill_tokens_per_s: rate,
        };
        self.store().find(find).expect("the queue has space");
        match self.answer() {
            Answer::Found {
                seq,
                path,
                blocks,
                worth,
                miss,
            } => {
                assert_eq!(seq.get(), 7);
                self.missed.set(miss);
                (path, blocks, worth)
            }
            other => panic!("{other:?}"),
        }
    }

    fn request(&mut self, path: &[BlockPlace], from: usize, timeout: Duration) -> Ticket {
        self.next += 1;
        let fetch = Fetch {
            seq: SeqId::new(7),
            ticket: Ticket::new(self.next),
            path: path.into(),
            blocks: from..path.len(),
            timeout,
        };
        self.store().fetch(fetch).expect("the queue has space");
        Ticket::new(self.next)
    }

    /// Waits for the answer to a fetch, and checks that its bytes are the saved ones.
    fn wait_for_fetch(
        &self,
        path: &[BlockPlace],
    ) -> (Ticket, Result<Loaded, Short>, Option<Short>) {
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

    fn fetch(
        &mut self,
        path: &[BlockPlace],
        from: usize,
    ) -> (Result<Loaded, Short>, Option<Short>) {
        let requested = self.request(path, from, TIMEOUT);
        let (ticket, loaded, short) = self.wait_for_fetch(path);
        assert_eq!(ticket, requested);
        (loaded, short)
    }

    fn counts(&self, kind: BlockKind) -> BlockCounts {
        let pool = self.store().pools().of(kind).expect("the pool exists");
        let counts = pool.counts();
        let used = counts.saving + counts.fetching + counts.ready;
        assert_eq!(counts.free + used, counts.total, "{counts:?}");
        counts
    }
}

fn tokens(prompt: u32, blocks: usize) -> Vec<u32> {
    (0..blocks * TOKENS)
        .map(|t| t as u32 ^ prompt << 16)
        .collect()
}

fn byte(place: &BlockPlace, kind: BlockKind) -> u8 {
    place.key.0[0] ^ kind.index() as u8
}

/// Checks that each buffer holds its block's bytes, and that the records needed to resume are present.
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
