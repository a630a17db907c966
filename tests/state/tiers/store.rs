//! A naive block store: a map from token paths to bytes, which answers when a test chooses, and its buffers.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use souffleur_base::ids::{SeqId, Ticket};
use souffleur_executor::host::{BlockPort, LoadedPart, Wanted};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::cache::prefix_history::StoredMiss;
use souffleur_state::scheduler::Scheduler;
use souffleur_state::scheduler::tier::{PrefixFound, StoreOrder};
use souffleur_state::tiers::BlockKind;

type Path = (Namespace, Vec<u32>);

/// Blocks, and the states at their ends, by the tokens up to their ends.
#[derive(Default)]
pub struct Disk {
    pub blocks: HashMap<Path, Vec<u8>>,
    pub states: HashMap<Path, Vec<u8>>,
}

/// The blocks that a fetch has read, and the state at their end.
pub struct FetchedRun {
    pub blocks: Vec<Vec<u8>>,
    pub state: Option<Vec<u8>>,
}

/// Buffers by ticket.
#[derive(Default)]
pub struct Buffers {
    pub saved: HashMap<Ticket, (BlockKind, Vec<u8>)>,
    pub fetched: HashMap<Ticket, FetchedRun>,
    /// The executor finds no free buffer.
    pub is_full: bool,
}

pub struct Port {
    buffers: Arc<Mutex<Buffers>>,
    block_tokens: usize,
    token_bytes: usize,
}

impl BlockPort for Port {
    fn save(&mut self, ticket: Ticket, kind: BlockKind, gather: &mut dyn FnMut(&mut [u8])) -> bool {
        let mut buffers = self.buffers.lock().expect("no holder panics");
        if buffers.is_full {
            return false;
        }
        let mut bytes = match kind {
            BlockKind::Kv => vec![0; self.block_tokens * self.token_bytes],
            BlockKind::State => vec![0; self.token_bytes],
            BlockKind::Window => panic!("no window is saved"),
        };
        gather(&mut bytes);
        let before = buffers.saved.insert(ticket, (kind, bytes));
        assert!(before.is_none(), "{ticket} is saved twice");
        true
    }

    fn load(
        &mut self,
        ticket: Ticket,
        wanted: Wanted,
        scatter: &mut dyn FnMut(LoadedPart<'_>),
    ) -> bool {
        let mut buffers = self.buffers.lock().expect("no holder panics");
        let Some(run) = buffers.fetched.remove(&ticket) else {
            return false;
        };
        if run.blocks.len() < wanted.blocks || run.state.is_some() != wanted.state {
            return false;
        }
        for (index, block) in run.blocks.iter().take(wanted.blocks).enumerate() {
            scatter(LoadedPart::Block(index, block));
        }
        if let Some(state) = &run.state {
            scatter(LoadedPart::State(state));
        }
        true
    }
}

pub struct NaiveStore {
    pub disk: Disk,
    pub buffers: Arc<Mutex<Buffers>>,
    /// Unanswered orders, in the order of arrival.
    pub pending: Vec<StoreOrder>,
    pub seen: Vec<StoreOrder>,
    /// Loading takes longer than computing.
    pub is_slow: bool,
    /// The reason reported for a fetch that ends early.
    pub cut_by: StoredMiss,
    evicted: HashSet<Path>,
    block_tokens: usize,
    /// A prompt resumes only at a stored state.
    has_states: bool,
    prompts: HashMap<SeqId, (Namespace, Arc<[u32]>)>,
    discarded: HashSet<Ticket>,
}

impl NaiveStore {
    pub fn new(block_tokens: usize, has_states: bool, disk: Disk) -> Self {
        Self {
            disk,
            buffers: Arc::default(),
            pending: Vec::new(),
            seen: Vec::new(),
            is_slow: false,
            cut_by: StoredMiss::Late,
            evicted: HashSet::new(),
            block_tokens,
            has_states,
            prompts: HashMap::new(),
            discarded: HashSet::new(),
        }
    }

    pub fn port(&self, token_bytes: usize) -> Box<dyn BlockPort> {
        Box::new(Port {
            buffers: self.buffers.clone(),
            block_tokens: self.block_tokens,
            token_bytes,
        })
    }

    /// Takes orders. Discards take effect at once.
    pub fn take(&mut self, orders: Vec<StoreOrder>) {
        for order in orders {
            self.seen.push(order.clone());
            match order {
                StoreOrder::Discard { ticket } => {
                    let mut buffers = self.buffers.lock().expect("no holder panics");
                    buffers.saved.remove(&ticket);
                    buffers.fetched.remove(&ticket);
                    self.discarded.insert(ticket);
                }
                other => self.pending.push(other),
            }
        }
    }

    fn path(&self, namespace: &Namespace, tokens: &[u32], n_blocks: usize) -> Path {
        let path = tokens[..n_blocks * self.block_tokens].to_vec();
        (namespace.clone(), path)
    }

    /// The number of stored blocks of a path, from its beginning without a gap.
    pub fn stored_len(&self, namespace: &Namespace, tokens: &[u32]) -> usize {
        let is_there = |n_blocks: &usize| {
            let path = self.path(namespace, tokens, *n_blocks);
            self.disk.blocks.contains_key(&path)
        };
        let blocks = 1..=tokens.len() / self.block_tokens;
        blocks.take_while(is_there).count()
    }

    /// The miss at the block after the first `n_stored` blocks, if the store has evicted it.
    fn miss_after(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        n_stored: usize,
    ) -> Option<StoredMiss> {
        let is_whole = (n_stored + 1) * self.block_tokens <= tokens.len();
        let is_gone = is_whole
            && self
                .evicted
                .contains(&self.path(namespace, tokens, n_stored + 1));
        is_gone.then_some(StoredMiss::Evicted)
    }

    /// The last end in the range of blocks at which a sequence can resume.
    fn resumable(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        blocks: std::ops::Range<usize>,
    ) -> usize {
        if !self.has_states {
            return blocks.end;
        }
        let has_state = |n_blocks: &usize| {
            let path = self.path(namespace, tokens, *n_blocks);
            self.disk.states.contains_key(&path)
        };
        let ends = (blocks.start + 1..=blocks.end).rev();
        ends.into_iter().find(has_state).unwrap_or(blocks.start)
    }

    /// Answers one of the orders; a fetch returns at most `limit` blocks.
    pub fn answer(&mut self, index: usize, limit: usize, scheduler: &mut Scheduler) {
        match self.pending.remove(index) {
            StoreOrder::Find {
                seq,
                namespace,
                tokens,
            } => {
                let found = self.found(&namespace, &tokens);
                self.prompts.insert(seq, (namespace, tokens));
                scheduler.prefix_found(seq, found);
            }
            StoreOrder::Fetch {
                seq,
                ticket,
                blocks,
                ..
            } => {
                let (namespace, tokens) = self.prompts[&seq].clone();
                let limit = if self.discarded.contains(&ticket) {
                    0
                } else {
                    limit
                };
                let n_stored = self.stored_len(&namespace, &tokens).min(blocks.end);
                let end = n_stored
                    .min(blocks.start.saturating_add(limit))
                    .max(blocks.start);
                let end = self.resumable(&namespace, &tokens, blocks.start..end);
                let paths = (blocks.start + 1..=end).map(|n| self.path(&namespace, &tokens, n));
                let read = paths.map(|path| self.disk.blocks[&path].clone());
                let run = FetchedRun {
                    blocks: read.collect(),
                    state: self
                        .disk
                        .states
                        .get(&self.path(&namespace, &tokens, end))
                        .filter(|_| self.has_states)
                        .cloned(),
                };
                let n_blocks = run.blocks.len();
                if n_blocks > 0 {
                    let mut buffers = self.buffers.lock().expect("no holder panics");
                    buffers.fetched.insert(ticket, run);
                }
                let miss = match blocks.start + n_blocks {
                    end if end == blocks.end => None,
                    end if end == n_stored => Some(StoredMiss::Evicted),
                    _ => Some(self.cut_by),
                };
                scheduler.blocks_fetched(ticket, n_blocks, miss);
            }
            StoreOrder::Write {
                ticket,
                namespace,
                tokens,
                block,
            } => {
                let kept = self.write(ticket, namespace, &tokens, block as usize);
                scheduler.blocks_written(&[ticket], kept);
            }
            StoreOrder::Discard { .. } => unreachable!("discards are carried out at once"),
        }
    }

    fn found(&self, namespace: &Namespace, tokens: &[u32]) -> PrefixFound {
        let n_stored = self.stored_len(namespace, tokens);
        let blocks = self.resumable(namespace, tokens, 0..n_stored);
        let miss = self.miss_after(namespace, tokens, n_stored);
        PrefixFound {
            path: Arc::default(),
            blocks,
            worth: if self.is_slow { 0 } else { blocks },
            miss: miss.filter(|_| blocks == n_stored),
        }
    }

    /// Writes a saved block; returns whether the store holds it afterwards.
    fn write(
        &mut self,
        ticket: Ticket,
        namespace: Namespace,
        tokens: &[u32],
        block: usize,
    ) -> bool {
        let mut buffers = self.buffers.lock().expect("no holder panics");
        let saved = buffers.saved.remove(&ticket);
        drop(buffers);
        let has_parent = self.stored_len(&namespace, tokens) >= block;
        let Some((kind, saved)) = saved.filter(|_| has_parent) else {
            return false;
        };
        let path = self.path(&namespace, tokens, block + 1);
        let before = match kind {
            BlockKind::State => self.disk.states.insert(path, saved.clone()),
            _ => self.disk.blocks.insert(path, saved.clone()),
        };
        assert!(
            before.is_none_or(|before| before == saved),
            "one path has two contents"
        );
        true
    }

    /// Drops a block and all blocks after it, which no lookup would find any more.
    pub fn evict(&mut self, index: usize) {
        let mut paths: Vec<Path> = self.disk.blocks.keys().cloned().collect();
        paths.sort_by(|a, b| a.1.cmp(&b.1));
        let Some((namespace, gone)) = paths.get(index % paths.len().max(1)).cloned() else {
            return;
        };
        let stays = |(other, path): &Path| *other != namespace || !path.starts_with(&gone);
        let gone_paths = paths.iter().filter(|path| !stays(path)).cloned();
        self.evicted.extend(gone_paths);
        self.disk.blocks.retain(|path, _| stays(path));
        self.disk.states.retain(|path, _| stays(path));
    }
}
