//! A store of small blocks whose contents are derived from their keys.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use souffleur_base::ids::{SeqId, Ticket};
use souffleur_state::cache::namespace::Namespace;
use souffleur_store::{
    Answer, BlockKind, BlockPlace, BlockUse, Commit, Fetch, Find, FingerprintParts, Geometry, Keys,
    Loaded, Needs, Outcome, Plane, PrefetchTimeout, Store, StoreConfig, TierState,
};

pub const BLOCKS: usize = 8;
const TOKENS: usize = 64;
const PLANE_BYTES: usize = 3001;
const PLANES: u32 = 3;
/// Space for about 340 records.
pub const DISK_BYTES: u64 = 5 << 20;
const HOST_BUFFERS: u64 = 32;
pub const TIMEOUT: Duration = Duration::from_secs(120);

pub struct World {
    pub store: Store,
    pub answers: Receiver<Answer>,
    pub keys: Keys,
}

impl World {
    /// Opens the store in a folder and waits until it serves.
    pub fn open(folder: &Path) -> Self {
        let planes = (0..PLANES).map(|layer| Plane {
            layer,
            buffer: 0,
            bytes: PLANE_BYTES,
        });
        let geometry = Geometry {
            block_tokens: TOKENS,
            needs: Needs::default(),
            planes: [planes.collect(), Arc::default(), Arc::default()],
        };
        let config = StoreConfig {
            path: folder.to_owned(),
            disk_bytes: DISK_BYTES,
            host_bytes: HOST_BUFFERS * geometry.buffer_bytes(BlockKind::Kv) as u64,
            prefetch_timeout: PrefetchTimeout::default(),
            drop_behind: false,
            write_share: 1.0,
        };
        let (sink, answers) = crossbeam_channel::unbounded();
        let store = Store::start(
            config,
            geometry,
            Box::new(|_| Ok(FingerprintParts::new().part("model", "killed"))),
            Box::new(move |answer| drop(sink.send(answer))),
        );
        let store = store.expect("the store starts");
        let keys = loop {
            match answers
                .recv_timeout(TIMEOUT)
                .expect("the store reports its state")
            {
                Answer::State(TierState::Serving { keys, .. }) => break keys,
                Answer::State(TierState::Off { reason, .. }) => panic!("{reason}"),
                _ => (),
            }
        };
        Self {
            store,
            answers,
            keys,
        }
    }

    /// The keys of a prompt's blocks, in order.
    pub fn path(&self, prompt: u32) -> Vec<BlockPlace> {
        self.keys.path(&Namespace::default(), &tokens(prompt))
    }

    /// Queues a block for writing; the ticket identifies the answer.
    pub fn save(&self, place: BlockPlace, ticket: Ticket) {
        let pool = self.store.pools().of(BlockKind::Kv).expect("a K/V pool");
        let mut block = pool.take(BlockUse::Saving).expect("free buffer");
        block.bytes_mut().copy_from_slice(&content(&place));
        let commit = Commit {
            ticket,
            place,
            block,
        };
        self.store.commit(commit).expect("the queue has space");
    }

    /// The next answer to a save.
    pub fn saved(&self) -> (Ticket, Outcome) {
        match self.answers.recv_timeout(TIMEOUT).expect("an answer") {
            Answer::Committed { ticket, outcome } => (ticket, outcome),
            other => panic!("{other:?}"),
        }
    }

    /// The number of a prompt's blocks that are found and loaded. Checks that they have the saved contents.
    pub fn load(&self, prompt: u32) -> usize {
        let find = Find {
            seq: SeqId::new(1),
            namespace: Namespace::default(),
            tokens: tokens(prompt).into(),
            from: 0,
            prefill_tokens_per_s: None,
        };
        self.store.find(find).expect("the queue has space");
        let found = match self.answers.recv_timeout(TIMEOUT).expect("an answer") {
            Answer::Found { path, .. } => path,
            other => panic!("{other:?}"),
        };
        if found.is_empty() {
            return 0;
        }
        let fetch = Fetch {
            seq: SeqId::new(1),
            ticket: Ticket::new(1),
            blocks: 0..found.len(),
            path: found.clone(),
            timeout: TIMEOUT,
        };
        self.store.fetch(fetch).expect("the queue has space");
        match self.answers.recv_timeout(TIMEOUT).expect("an answer") {
            Answer::Fetched { loaded, .. } => check(&loaded, &found),
            Answer::Late { .. } => 0,
            other => panic!("{other:?}"),
        }
    }
}

fn check(loaded: &Loaded, path: &[BlockPlace]) -> usize {
    for (block, place) in loaded.kv.iter().zip(path) {
        assert!(block.bytes() == content(place), "wrong bytes of {place:?}");
    }
    loaded.kv.len()
}

fn tokens(prompt: u32) -> Vec<u32> {
    let tokens = 0..(BLOCKS * TOKENS) as u32;
    tokens.map(|token| token ^ prompt << 12).collect()
}

fn content(place: &BlockPlace) -> Vec<u8> {
    let mut seed = [0; 8];
    seed.copy_from_slice(&place.key.0[..8]);
    let mut random = fastrand::Rng::with_seed(u64::from_le_bytes(seed));
    let bytes = std::iter::repeat_with(|| random.u8(..));
    bytes.take(PLANES as usize * PLANE_BYTES).collect()
}
