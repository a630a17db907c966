//! The scheduler's side of the KV store: what is looked for and fetched for requests, what is saved of the tree, and who has
//! which buffer.
//!
//! The store answers when it likes, or never. So nothing here waits for it without an end that somebody else brings about:
//! a request that is looked up or fetched for stays in the queue, others pass it, and whoever carries the orders answers
//! for a store that is late. Of buffers the scheduler is the only accountant: `free + saving + fetching + ready == total`.

mod buffers;
mod fetches;
mod misses;
mod saves;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::ids::{SeqId, StepId, Ticket};
use crate::state::cache::namespace::Namespace;
use crate::state::cache::prefix_cache::SaveAccount;
use crate::state::cache::prefix_history::StoredMiss;
use crate::state::cache::radix_tree::SaveRules;
use crate::state::step::BlockCopies;
use crate::state::tiers::BlockPlace;
use buffers::Buffers;

/// Bounds of the scheduler's use of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TierLimits {
    /// Which blocks are saved.
    pub saves: SaveRules,
    /// Buffers of blocks, of which half are for saves at most.
    pub buffers: usize,
    /// Buffers of states likewise; 0 where no layer keeps any.
    pub state_buffers: usize,
    /// Blocks that a step saves however little it prefills,
    pub saves_per_step: usize,
    /// one step in so many, where a block is more than a step should copy.
    pub steps_per_save: usize,
    /// Blocks of a step that does nothing else.
    pub saves_at_rest: usize,
    /// Blocks that are loaded for a request at a time; a longer prefix comes in rounds. A prefix with states, which are there
    /// at its end alone, comes at once.
    pub blocks_per_load: usize,
}

/// An order to the store.
#[derive(Clone, Debug)]
pub enum StoreOrder {
    /// Says how much of a prompt there is: [`Scheduler::prefix_found`](super::Scheduler::prefix_found).
    Find {
        /// The sequence that asks.
        seq: SeqId,
        /// Where the prompt's prefix may be shared.
        namespace: Namespace,
        /// The prompt, and the output before a retraction.
        tokens: Arc<[u32]>,
    },
    /// Brings blocks into buffers: [`Scheduler::blocks_fetched`](super::Scheduler::blocks_fetched).
    Fetch {
        /// The sequence that asks.
        seq: SeqId,
        /// Names the run.
        ticket: Ticket,
        /// The blocks of the prompt, as they were found.
        path: Arc<[BlockPlace]>,
        /// Which of them.
        blocks: Range<usize>,
    },
    /// Writes the block that a step has saved: [`Scheduler::blocks_written`](super::Scheduler::blocks_written).
    Write {
        /// Names the save.
        ticket: Ticket,
        /// Where its path may be shared.
        namespace: Namespace,
        /// The path, to the end of the block or beyond.
        tokens: Arc<[u32]>,
        /// How many blocks are before it.
        block: u32,
    },
    /// Gives the buffers of a save or a fetch back. A fetch that is not answered yet is answered all the same.
    Discard {
        /// Names it.
        ticket: Ticket,
    },
}

/// The part of a prompt that the store has.
#[derive(Clone, Debug)]
pub struct PrefixFound {
    /// The blocks of the prompt that it has, for a fetch.
    pub path: Arc<[BlockPlace]>,
    /// Blocks from the beginning on.
    pub blocks: usize,
    /// Of these, blocks that are faster fetched than computed: all or none.
    pub worth: usize,
    /// Why there are no more, if it had the next one, or [`StoredMiss::Late`] if it has not said what it has.
    pub miss: Option<StoredMiss>,
}

/// Counts of the work done with a store, and the holders of its buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TierStats {
    /// It finds, fetches and saves.
    pub serves: bool,
    /// Buffers, and of these:
    pub buffers: usize,
    /// those that nobody has,
    pub free_buffers: usize,
    /// those of blocks that are saved and not yet written,
    pub saving_buffers: usize,
    /// those that are filled by the store,
    pub fetching_buffers: usize,
    /// and those that wait for their step.
    pub ready_buffers: usize,
    /// Buffers of states, and of these:
    pub state_buffers: usize,
    /// those that nobody has.
    pub free_state_buffers: usize,
    /// Paths of the tree that wait to be saved.
    pub queued_paths: usize,
    /// Tokens of the tree that were gone before they could be saved.
    pub dropped_tokens: u64,
    /// Blocks handed to the store to be written.
    pub saved_blocks: u64,
    /// Prompt tokens whose K/V came from the store.
    pub loaded_tokens: u64,
    /// Fetches begun.
    pub fetches: u64,
    /// Fetches that brought nothing.
    pub late_fetches: u64,
    /// Fetches that found no free buffer, and were not begun.
    pub refused_fetches: u64,
}

/// The store as it concerns one sequence.
#[derive(Debug, Default)]
pub struct SequenceTier {
    phase: TierPhase,
    /// As [`PrefixFound::path`].
    path: Arc<[BlockPlace]>,
    /// Blocks of the path that pay to be fetched.
    worth: usize,
    /// Blocks that were found.
    found_blocks: usize,
    /// As [`PrefixFound::miss`].
    gone: Option<StoredMiss>,
    /// The first block that a fetch was to bring and did not, and why.
    short: Option<(usize, StoredMiss)>,
    /// Tokens from the beginning on that need not be saved.
    stored_tokens: usize,
    /// Prompt tokens that came from the store at the first admission.
    loaded_tokens: u32,
    /// It has not started over since: what is loaded counts.
    is_first: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TierPhase {
    /// The store is asked what there is.
    #[default]
    Finding,
    /// It has told; nothing is under way.
    Found,
    /// Blocks are on their way.
    Fetching { ticket: Ticket },
    /// They are in memory, for these tokens.
    Ready {
        ticket: Ticket,
        from: usize,
        to: usize,
    },
    /// The sequence has what it got of it.
    Done,
}

impl SequenceTier {
    /// True while it is not known how much of the prompt there is.
    pub(super) fn is_finding(&self) -> bool {
        self.phase == TierPhase::Finding
    }

    /// Tokens from the beginning on that the store has.
    pub(super) fn stored_tokens(&self) -> usize {
        self.stored_tokens
    }

    /// Prompt tokens that came from the store.
    pub(super) fn loaded_tokens(&self) -> u32 {
        self.loaded_tokens
    }
}

/// See the module.
pub(super) struct Tier {
    limits: TierLimits,
    serves: bool,
    next_ticket: u64,
    orders: Vec<StoreOrder>,
    /// For the next step.
    copies: BlockCopies,
    /// Copies of the steps under way, oldest first.
    steps: VecDeque<StepCopies>,
    saves: FxHashMap<Ticket, Saved>,
    /// Fetches that are not answered.
    fetches: FxHashMap<Ticket, Fetching>,
    /// Blocks of each run that was fetched and not loaded yet.
    ready: FxHashMap<Ticket, usize>,
    blocks: Buffers,
    /// A run that is fetched has one.
    states: Buffers,
    stats: TierStats,
    /// Steps since the last one that saved anything.
    steps_since_save: usize,
    /// What the next plan tells the tree.
    account: SaveAccount,
}

/// The copies of a step.
struct StepCopies {
    step: StepId,
    saves: Vec<Ticket>,
    loads: Vec<Ticket>,
}

/// A block that was saved, or its state, until it is written.
struct Saved {
    namespace: Namespace,
    tokens: Arc<[u32]>,
    block: u32,
    is_state: bool,
}

/// A fetch under way.
struct Fetching {
    /// The sequence that waits for it; `None` once nobody does.
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
            account: SaveAccount::default(),
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

    /// States that a run has: one where layers keep any.
    fn states_of_run(&self) -> usize {
        usize::from(self.states.total > 0)
    }

    /// Blocks of so many that are fetched in a round: no more than leave buffers for the next one meanwhile.
    fn round_of(&self, blocks: usize) -> usize {
        match self.states.total {
            0 => {
                let with_next = self.blocks.most_to_fetch() / 2;
                blocks
                    .min(self.limits.blocks_per_load)
                    .min(with_next.max(1))
            }
            _ => blocks,
        }
    }

    /// Blocks that can be fetched now.
    fn free_to_fetch(&self) -> usize {
        match self.states.free() >= self.states_of_run() {
            true => self.blocks.room_to_fetch(),
            false => 0,
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket::new(self.next_ticket)
    }

    /// Gives back what a run has in memory.
    fn discard_ready(&mut self, ticket: Ticket) {
        if self.end_ready(ticket) {
            self.orders.push(StoreOrder::Discard { ticket });
        }
    }

    /// The buffers of a run are free; false if it has none.
    fn end_ready(&mut self, ticket: Ticket) -> bool {
        let Some(n_blocks) = self.ready.remove(&ticket) else {
            return false;
        };
        self.blocks.ready -= n_blocks;
        self.states.ready -= self.states_of_run();
        true
    }

    /// The buffer of a save is free; false if it has none.
    fn end_save(&mut self, ticket: Ticket) -> bool {
        let Some(saved) = self.saves.remove(&ticket) else {
            return false;
        };
        match saved.is_state {
            true => self.states.saving -= 1,
            false => self.blocks.saving -= 1,
        }
        true
    }

    /// Takes the copies that ride in a step.
    pub(super) fn send(&mut self, step: StepId) -> Option<Box<BlockCopies>> {
        self.steps_since_save = match self.copies.saves.is_empty() {
            true => self.steps_since_save.saturating_add(1),
            false => 0,
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

    /// A step has ended; `is_good` if it and all before it have ended well. Only then is what it saved to be trusted.
    pub(super) fn step_done(&mut self, step: StepId, is_good: bool) {
        let Some(copies) = self.steps.pop_front_if(|copies| copies.step == step) else {
            return;
        };
        for ticket in copies.saves {
            match self.saves.get(&ticket) {
                Some(saved) if is_good => {
                    self.stats.saved_blocks += u64::from(!saved.is_state);
                    self.orders.push(StoreOrder::Write {
                        ticket,
                        namespace: saved.namespace.clone(),
                        tokens: saved.tokens.clone(),
                        block: saved.block,
                    });
                }
                _ => self.drop_save(ticket),
            }
        }
        for ticket in copies.loads {
            match is_good {
                // The executor has given the buffers back.
                true => drop(self.end_ready(ticket)),
                false => self.discard_ready(ticket),
            }
        }
    }

    /// Forgets the copies that no step has taken: a step was lost.
    pub(super) fn drop_copies(&mut self) {
        let copies = std::mem::take(&mut self.copies);
        for save in copies.saves {
            self.drop_save(save.ticket);
        }
        for load in copies.loads {
            self.discard_ready(load.ticket);
        }
    }

    /// The store answers nothing any more: what it was asked for is over. What it brought before is still good.
    fn give_up(&mut self) {
        self.fetches.clear();
        self.saves.clear();
        self.copies.saves.clear();
        for buffers in [&mut self.blocks, &mut self.states] {
            (buffers.fetching, buffers.saving) = (0, 0);
        }
    }

    /// The tree is to begin its account anew. A store that has ended has taken it with it.
    fn forget_stored(&mut self) {
        if self.serves {
            self.account = SaveAccount::Forget;
        }
    }

    /// Gives the buffer of a save back. The tree takes the block for stored.
    fn drop_save(&mut self, ticket: Ticket) {
        if self.end_save(ticket) {
            self.forget_stored();
            self.orders.push(StoreOrder::Discard { ticket });
        }
    }
}
