//! Simulates the KV store in virtual time, with the real index and a model of the disk.
//!
//! The index, the keys and the cost model come from [`souffleur_state::tiers`]. As in the real store, the disk does one
//! job at a time: a whole fetch, or a write if no fetch can start. Lookups take no time. A fetch takes the disk's
//! latency once, and each block takes its size divided by the disk's rate.

mod work;

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::disk::StoreModel;
use souffleur_base::ids::{SeqId, Ticket};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::scheduler::tier::{PrefixFound, StoreOrder};
use souffleur_state::step::{BlockCopies, BlockSource};
use souffleur_state::tiers::{
    BlockIndex, BlockKind, BlockPlace, CostModel, FingerprintParts, Keys, Paths, Secret,
};
use work::{Fetch, Job, Write};

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StoreOutcome {
    pub disk_bytes: u64,
    /// Bytes on the disk at the end.
    pub held_bytes: u64,
    /// Blocks of keys and values on the disk at the end.
    pub held_blocks: usize,
    /// Blocks and states written.
    pub written: u64,
    /// Blocks and states that were not written, because the store already had them.
    pub known: u64,
    /// Blocks and states that were not written, because an earlier block is missing and no lookup could find them.
    pub orphans: u64,
    /// Blocks and states that were not written for lack of space.
    pub no_space: u64,
    /// Blocks and states evicted.
    pub evicted: u64,
    pub read: u64,
    /// Fetches that loaded no block: they missed their deadline, were cancelled, or found no block.
    pub late: u64,
    /// Prompts whose blocks were slower to load than to compute.
    pub too_slow: u64,
    pub read_s: f64,
    pub write_s: f64,
}

pub(super) enum StoreAnswer {
    Found { seq: SeqId, found: PrefixFound },
    Fetched { ticket: Ticket, blocks: usize },
    Written { ticket: Ticket, kept: bool },
}

pub(super) struct VirtualStore<'a> {
    model: &'a StoreModel,
    keys: Keys,
    paths: Paths,
    index: BlockIndex,
    cost: CostModel,
    fetches: VecDeque<Fetch>,
    writes: VecDeque<Write>,
    current_job: Option<Job>,
    /// The tickets of state saves, until they are written.
    saved_states: FxHashSet<Ticket>,
    /// The number of fetched blocks, by ticket, until a step loads them.
    ready: FxHashMap<Ticket, usize>,
    answers: Vec<StoreAnswer>,
    outcome: StoreOutcome,
}

impl<'a> VirtualStore<'a> {
    pub fn new(model: &'a StoreModel) -> Self {
        let fingerprint = FingerprintParts::new().fingerprint();
        let block_tokens = model.shape.geometry.block_tokens;
        let keys = Keys::new(Secret::new([0; 32]), fingerprint, block_tokens);
        Self {
            model,
            paths: Paths::new(keys.clone()),
            keys,
            index: BlockIndex::default(),
            cost: CostModel::default(),
            fetches: VecDeque::new(),
            writes: VecDeque::new(),
            current_job: None,
            saved_states: FxHashSet::default(),
            ready: FxHashMap::default(),
            answers: Vec::new(),
            outcome: StoreOutcome {
                disk_bytes: model.disk_bytes,
                ..StoreOutcome::default()
            },
        }
    }

    /// The time of the next event of the store: the end of the current job, or the next deadline.
    pub fn next_event_s(&self) -> Option<f64> {
        let job = self.current_job.iter().map(|job| job.ends_s);
        let deadlines = self.fetches.iter().map(|fetch| fetch.deadline_s);
        job.chain(deadlines).min_by(f64::total_cmp)
    }

    pub fn record_copies(&mut self, copies: &BlockCopies) {
        let states = copies.saves.iter();
        let states = states.filter(|save| matches!(save.from, BlockSource::State(_)));
        self.saved_states.extend(states.map(|save| save.ticket));
        for load in &copies.loads {
            self.ready.remove(&load.ticket);
        }
    }

    pub fn take_orders(
        &mut self,
        orders: Vec<StoreOrder>,
        now_s: f64,
        prefill_tokens_per_s: Option<f64>,
    ) {
        for order in orders {
            match order {
                StoreOrder::Find {
                    seq,
                    namespace,
                    tokens,
                } => {
                    let found = self.find(&namespace, &tokens, prefill_tokens_per_s);
                    self.answers.push(StoreAnswer::Found { seq, found });
                }
                StoreOrder::Fetch {
                    ticket,
                    path,
                    blocks,
                    ..
                } => self.queue_fetch(ticket, path, blocks, now_s),
                StoreOrder::Write {
                    ticket,
                    namespace,
                    tokens,
                    block,
                } => {
                    let is_state = self.saved_states.remove(&ticket);
                    let kind = if is_state {
                        BlockKind::State
                    } else {
                        BlockKind::Kv
                    };
                    match self.paths.place(&namespace, &tokens, block) {
                        Some(place) => self.writes.push_back(Write {
                            ticket,
                            place,
                            kind,
                        }),
                        None => {
                            let kept = false;
                            self.answers.push(StoreAnswer::Written { ticket, kept });
                        }
                    }
                }
                StoreOrder::Discard { ticket } => self.discard(ticket, now_s),
            }
        }
    }

    /// Completes the jobs that are due, and starts the next ones.
    pub fn advance(&mut self, now_s: f64) {
        loop {
            match self.current_job.take() {
                Some(job) if job.ends_s > now_s => self.current_job = Some(job),
                Some(job) => self.finish(job),
                None => {}
            }
            self.end_late(now_s);
            if self.current_job.is_some() {
                return;
            }
            let next = self.begin_read(now_s);
            self.current_job = next.or_else(|| self.begin_write(now_s));
            if self.current_job.is_none() {
                return;
            }
        }
    }

    pub fn take_answers(&mut self) -> Vec<StoreAnswer> {
        std::mem::take(&mut self.answers)
    }

    pub fn outcome(&self) -> StoreOutcome {
        StoreOutcome {
            held_bytes: self.held_bytes(),
            held_blocks: self.index.records(BlockKind::Kv),
            ..self.outcome
        }
    }

    fn block_tokens(&self) -> usize {
        self.model.shape.geometry.block_tokens
    }

    fn find(
        &mut self,
        namespace: &Namespace,
        tokens: &[u32],
        prefill_tokens_per_s: Option<f64>,
    ) -> PrefixFound {
        let needs = self.model.shape.geometry.needs;
        let block_tokens = self.block_tokens();
        let mut chain = self.keys.chain(namespace);
        let places = tokens.chunks_exact(block_tokens);
        let places = places.map(|tokens| chain.push(tokens));
        let is_there = |place: &BlockPlace| self.index.prefix(std::slice::from_ref(place)) == 1;
        let path: Vec<_> = places.take_while(is_there).collect();
        let blocks = self.index.usable(&path, path.len(), &needs, block_tokens);
        let [kv, state] =
            [BlockKind::Kv, BlockKind::State].map(|kind| self.model.payload_bytes(kind));
        let n_tokens = blocks * block_tokens;
        let bytes = blocks as u64 * kv + state;
        let pays = blocks > 0 && self.cost.pays(n_tokens, bytes, prefill_tokens_per_s);
        self.outcome.too_slow += u64::from(blocks > 0 && !pays);
        PrefixFound {
            path: path.into(),
            blocks,
            worth: if pays { blocks } else { 0 },
            miss: None,
        }
    }
}

#[cfg(test)]
mod tests;
