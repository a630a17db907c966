//! The scheduler's side of the KV store: lookups and fetches for requests, saves from the tree, and the accounting of
//! buffers.
//!
//! The store may answer late, or never. So a request in lookup or fetch stays in the queue, other requests may overtake
//! it, and the actor that passes orders to the store answers in place of a late store. Only the scheduler counts
//! buffers: `free + saving + fetching + ready == total`.
//!
//! Plans depend on the store only through its answers, which are in the message log: a replay needs no disk. Discards
//! are orders to the store, not parts of a plan, since no step reads the buffers that they free.

mod buffers;
mod fetches;
mod misses;
mod saves;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::cache::namespace::Namespace;
use crate::cache::prefix_cache::StoreRecordChange;
use crate::cache::prefix_history::StoredMiss;
use crate::cache::radix_tree::SaveRules;
use crate::step::BlockCopies;
use crate::tiers::BlockPlace;
use buffers::Buffers;
use souffleur_base::ids::{SeqId, StepId, Ticket};

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TierLimits {
    pub saves: SaveRules,
    /// Block buffers; saves use at most half.
    pub buffers: usize,
    /// Buffers of recurrent states; saves use at most half. 0 without recurrent layers.
    pub state_buffers: usize,
    /// Blocks saved per saving step, even if the step prefills little.
    pub saves_per_step: usize,
    /// Steps from one save to the next: above 1 if a block is too large to copy in every step.
    pub steps_per_save: usize,
    /// Blocks saved per step without other work.
    pub saves_when_idle: usize,
    /// Blocks that one fetch reads and one step loads (a round); a long prefix takes several rounds. A prefix with
    /// states, which exist only at its end, is loaded at once.
    pub blocks_per_load: usize,
}

#[derive(Clone, Debug)]
pub enum StoreOrder {
    /// Looks up a prompt; [`Scheduler::prefix_found`](super::Scheduler::prefix_found) takes the answer.
    Find {
        seq: SeqId,
        namespace: Namespace,
        /// The prompt, followed by the output before a retraction.
        tokens: Arc<[u32]>,
    },
    /// Reads blocks into buffers; [`Scheduler::blocks_fetched`](super::Scheduler::blocks_fetched) takes the end.
    Fetch {
        seq: SeqId,
        ticket: Ticket,
        path: Arc<[BlockPlace]>,
        blocks: Range<usize>,
    },
    /// Writes a saved block; [`Scheduler::blocks_written`](super::Scheduler::blocks_written) takes the end.
    Write {
        ticket: Ticket,
        namespace: Namespace,
        /// The path, at least to the end of the block.
        tokens: Arc<[u32]>,
        block: u32,
    },
    /// Releases the buffers of a save or a fetch. An unfinished fetch is still answered.
    Discard { ticket: Ticket },
}

#[derive(Clone, Debug)]
pub struct PrefixFound {
    /// The keys of the found blocks in the store.
    pub path: Arc<[BlockPlace]>,
    /// Number of leading blocks of the prompt that the store has.
    pub blocks: usize,
    /// Number of blocks that are faster to fetch than to compute: all or none.
    pub worth: usize,
    /// Why the store lacks the next block, if it once had that block; [`StoredMiss::Late`] if the store did not answer.
    pub miss: Option<StoredMiss>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TierStats {
    pub serves: bool,
    pub buffers: usize,
    pub free_buffers: usize,
    /// Buffers of blocks saved and not yet written.
    pub saving_buffers: usize,
    /// Buffers that the store is filling.
    pub fetching_buffers: usize,
    /// Filled buffers waiting for their step.
    pub ready_buffers: usize,
    pub state_buffers: usize,
    pub free_state_buffers: usize,
    /// Paths of the tree that have unsaved blocks.
    pub queued_paths: usize,
    /// Tokens evicted from the tree before they were saved.
    pub dropped_tokens: u64,
    pub saved_blocks: u64,
    /// Prompt tokens whose K/V came from the store.
    pub loaded_tokens: u64,
    pub fetches: u64,
    /// Fetches that returned no block.
    pub late_fetches: u64,
    /// Fetches not started for lack of a free buffer.
    pub refused_fetches: u64,
}

#[derive(Debug, Default)]
pub struct SequenceTier {
    phase: TierPhase,
    /// Copied from [`PrefixFound`], as are `wanted` (its `worth`), `found_blocks` and `end_miss`.
    path: Arc<[BlockPlace]>,
    wanted: usize,
    found_blocks: usize,
    end_miss: Option<StoredMiss>,
    /// The first block that a fetch failed to read, and why.
    failed: Option<(usize, StoredMiss)>,
    /// Leading tokens that need no save.
    stored_tokens: usize,
    /// Prompt tokens from the store at the first admission.
    loaded_tokens: u32,
    /// The sequence has not restarted since its first admission: loaded tokens count in the statistics.
    is_first_admission: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TierPhase {
    #[default]
    Finding,
    /// The store has answered; no fetch is in flight.
    Found,
    Fetching {
        ticket: Ticket,
    },
    /// Blocks of these tokens are in buffers.
    Ready {
        ticket: Ticket,
        from: usize,
        to: usize,
    },
    /// The sequence gets nothing more from the store.
    Done,
}

impl SequenceTier {
    pub(super) fn is_finding(&self) -> bool {
        self.phase == TierPhase::Finding
    }

    /// True as long as the sequence may get blocks from the store.
    pub(super) fn is_loading(&self) -> bool {
        self.phase != TierPhase::Done
    }

    pub(super) fn stored_tokens(&self) -> usize {
        self.stored_tokens
    }

    pub(super) fn loaded_tokens(&self) -> u32 {
        self.loaded_tokens
    }
}

pub(super) struct Tier {
    limits: TierLimits,
    serves: bool,
    next_ticket: u64,
    orders: Vec<StoreOrder>,
    copies: BlockCopies,
    /// Copies of the steps in flight, oldest first.
    steps: VecDeque<StepCopies>,
    saves: FxHashMap<Ticket, PendingSave>,
    fetches: FxHashMap<Ticket, PendingFetch>,
    /// Number of blocks of each fetch that is not loaded yet.
    ready: FxHashMap<Ticket, usize>,
    blocks: Buffers,
    /// State buffers; a fetch uses one.
    states: Buffers,
    stats: TierStats,
    steps_since_save: usize,
    /// For the next plan: how the tree changes its record of stored blocks.
    store_record: StoreRecordChange,
}

struct StepCopies {
    step: StepId,
    saves: Vec<Ticket>,
    loads: Vec<Ticket>,
}

/// A saved block or state, until it is written.
struct PendingSave {
    namespace: Namespace,
    tokens: Arc<[u32]>,
    block: u32,
    is_state: bool,
}

struct PendingFetch {
    /// The waiting sequence; `None` if it has ended.
    seq: Option<SeqId>,
    blocks: Range<usize>,
}

impl Tier {
    pub(super) fn new(limits: TierLimits) -> Self {
        Self {
            limits,
            serves: false,
            next_ticket: 0,
            orders: Vec::new(),
            copies: BlockCopies::default(),
            steps: VecDeque::new(),
            saves: FxHashMap::default(),
            fetches: FxHashMap::default(),
            ready: FxHashMap::default(),
            blocks: Buffers::new(limits.buffers),
            states: Buffers::new(limits.state_buffers),
            stats: TierStats::default(),
            steps_since_save: 0,
            store_record: StoreRecordChange::default(),
        }
    }

    pub(super) fn block_tokens(&self) -> usize {
        self.limits.saves.block_tokens
    }

    pub(super) fn stats(&self) -> TierStats {
        TierStats {
            serves: self.serves,
            buffers: self.blocks.total,
            free_buffers: self.blocks.free(),
            saving_buffers: self.blocks.saving,
            fetching_buffers: self.blocks.fetching,
            ready_buffers: self.blocks.ready,
            state_buffers: self.states.total,
            free_state_buffers: self.states.free(),
            ..self.stats
        }
    }

    pub(super) fn take_orders(&mut self) -> Vec<StoreOrder> {
        std::mem::take(&mut self.orders)
    }

    /// State buffers per fetch: one if layers keep a state.
    fn states_per_fetch(&self) -> usize {
        usize::from(self.states.total > 0)
    }

    /// How many of `blocks` blocks to fetch in one round. Leaves buffers for the fetch of the next round.
    fn round_len(&self, blocks: usize) -> usize {
        match self.states.total {
            0 => {
                let with_next = self.blocks.max_for_fetches() / 2;
                blocks
                    .min(self.limits.blocks_per_load)
                    .min(with_next.max(1))
            }
            _ => blocks,
        }
    }

    fn free_to_fetch(&self) -> usize {
        if self.states.free() >= self.states_per_fetch() {
            self.blocks.free_for_fetches()
        } else {
            0
        }
    }

    /// Later tickets are above the floor: the store and the executor may still have copies of earlier generations.
    pub(super) fn begin_after(&mut self, floor: u64) {
        self.next_ticket = self.next_ticket.max(floor);
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket::new(self.next_ticket)
    }

    fn discard_ready(&mut self, ticket: Ticket) {
        if self.free_ready(ticket) {
            self.orders.push(StoreOrder::Discard { ticket });
        }
    }

    /// Frees a completed fetch's buffers; false if it has none.
    fn free_ready(&mut self, ticket: Ticket) -> bool {
        let Some(n_blocks) = self.ready.remove(&ticket) else {
            return false;
        };
        self.blocks.ready -= n_blocks;
        self.states.ready -= self.states_per_fetch();
        true
    }

    /// Frees a save's buffer; false if it has none.
    fn free_save(&mut self, ticket: Ticket) -> bool {
        let Some(saved) = self.saves.remove(&ticket) else {
            return false;
        };
        if saved.is_state {
            self.states.saving -= 1
        } else {
            self.blocks.saving -= 1
        }
        true
    }

    /// Takes the copies for a step.
    pub(super) fn take_copies(&mut self, step: StepId) -> Option<Box<BlockCopies>> {
        self.steps_since_save = if self.copies.saves.is_empty() {
            self.steps_since_save.saturating_add(1)
        } else {
            0
        };
        if self.copies.is_empty() {
            return None;
        }
        let copies = std::mem::take(&mut self.copies);
        self.steps.push_back(StepCopies {
            step,
            saves: copies.saves.iter().map(|save| save.ticket).collect(),
            loads: copies.loads.iter().map(|load| load.ticket).collect(),
        });
        Some(Box::new(copies))
    }

    /// Ends a step; `has_succeeded` if it and all steps before it succeeded. Only then are its saves valid.
    pub(super) fn step_done(&mut self, step: StepId, has_succeeded: bool) {
        let Some(copies) = self.steps.pop_front_if(|copies| copies.step == step) else {
            return;
        };
        for ticket in copies.saves {
            match self.saves.get(&ticket) {
                Some(saved) if has_succeeded => {
                    self.stats.saved_blocks += u64::from(!saved.is_state);
                    self.orders.push(StoreOrder::Write {
                        ticket,
                        namespace: saved.namespace.clone(),
                        tokens: saved.tokens.clone(),
                        block: saved.block,
                    });
                }
                Some(_) => self.drop_save(ticket),
                // The store that it was planned for has ended. If the step ran later, the next store has a copy.
                None => self.orders.push(StoreOrder::Discard { ticket }),
            }
        }
        for ticket in copies.loads {
            if has_succeeded {
                // The executor has returned the buffers.
                self.free_ready(ticket);
            } else {
                self.discard_ready(ticket);
            }
        }
    }

    /// Drops copies that no step has taken, after a lost step.
    pub(super) fn drop_copies(&mut self) {
        let copies = std::mem::take(&mut self.copies);
        for save in copies.saves {
            self.drop_save(save.ticket);
        }
        for load in copies.loads {
            self.discard_ready(load.ticket);
        }
    }

    /// Drops all orders in flight, since the store has stopped. Blocks already fetched stay valid.
    fn drop_orders_in_flight(&mut self) {
        self.fetches.clear();
        self.saves.clear();
        self.copies.saves.clear();
        for buffers in [&mut self.blocks, &mut self.states] {
            (buffers.fetching, buffers.saving) = (0, 0);
        }
    }

    /// Makes the tree restart its record of stored blocks, unless the store has stopped, which has ended the record.
    fn restart_store_record(&mut self) {
        if self.serves {
            self.store_record = StoreRecordChange::Forget;
        }
    }

    /// Drops a save. The tree considers its block stored, so the record restarts.
    fn drop_save(&mut self, ticket: Ticket) {
        if self.free_save(ticket) {
            self.restart_store_record();
            self.orders.push(StoreOrder::Discard { ticket });
        }
    }
}
