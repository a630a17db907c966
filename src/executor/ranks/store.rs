//! Connects the KV store to several ranks: a block of the store is the ranks' parts, in rank order.
//!
//! Each rank copies its parts from and to buffers of its [`RankPort`]. The thread that gives the ranks their steps
//! copies between these and the store's buffers: loads before a step, saves after it.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::parts::{Part, PartPool};
use crate::host::{BlockPort, HostBuffer, LoadedPart, Wanted};
use souffleur_base::error::{LoadError, StepError};
use souffleur_base::ids::Ticket;
use souffleur_base::kv_layout::KvLayout;
use souffleur_state::step::{BlockLoad, StepPlan};
use souffleur_state::tiers::BlockKind;

/// The store's port, and the buffers of all ranks.
pub(crate) struct RanksStore {
    port: Box<dyn BlockPort>,
    block_tokens: usize,
    /// Whether the ranks compute on the CPU, so that threads of the store should pause.
    is_on_cpu: bool,
    /// In rank order.
    exchanges: Vec<Exchange>,
}

/// A rank's parts on their way. Both sides use it in turn: the ranks in a step, their leader between steps.
#[derive(Clone, Default)]
pub(crate) struct Exchange {
    parts: Arc<Mutex<Parts>>,
    pool: PartPool,
}

#[derive(Default)]
struct Parts {
    /// In the order of the plan's saves.
    saved: Vec<Saved>,
    loaded: Vec<Loaded>,
}

struct Saved {
    ticket: Ticket,
    kind: BlockKind,
    part: Part,
}

struct Loaded {
    ticket: Ticket,
    /// Indices of blocks in the run, and their parts.
    blocks: Vec<(usize, Part)>,
    state: Option<Part>,
}

impl Exchange {
    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RanksStore {
    /// For blocks of `block_tokens` tokens.
    pub(crate) fn new(
        (block_tokens, port): (usize, Box<dyn BlockPort>),
        n_ranks: usize,
        is_on_cpu: bool,
    ) -> Self {
        Self {
            port,
            block_tokens,
            is_on_cpu,
            exchanges: (0..n_ranks).map(|_| Exchange::default()).collect(),
        }
    }

    /// The exchange of a rank, and the tokens of a block.
    pub(crate) fn of_rank(&self, index: usize) -> (Exchange, usize) {
        (self.exchanges[index].clone(), self.block_tokens)
    }

    /// Takes the plan's loads from the store. A step may be in flight.
    pub(super) fn before_step(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        let loads = plan.copies.iter().flat_map(|copies| &copies.loads);
        for load in loads {
            if let Err(error) = self.load(load) {
                self.forget();
                return Err(error);
            }
        }
        // A step without rows only copies blocks, so the store's threads need not pause.
        self.compute(!plan.rows.is_empty());
        Ok(())
    }

    fn compute(&mut self, computes: bool) {
        if self.is_on_cpu {
            self.port.computes(computes);
        }
    }

    /// Forgets the parts on their way, as after a failed step. The parts that a step in flight saves follow when it
    /// ends.
    pub(super) fn forget(&mut self) {
        for exchange in &self.exchanges {
            *exchange.parts() = Parts::default();
        }
    }

    fn load(&mut self, load: &BlockLoad) -> Result<(), StepError> {
        let n_ranks = self.exchanges.len();
        for exchange in &self.exchanges {
            exchange.parts().loaded.push(Loaded {
                ticket: load.ticket,
                blocks: Vec::new(),
                state: None,
            });
        }
        let parts = load.parts(self.block_tokens);
        let wanted = Wanted {
            blocks: parts.len(),
            state: !load.states.is_empty(),
        };
        let exchanges = &self.exchanges;
        let mut scatter = |part: LoadedPart<'_>| {
            let bytes = match part {
                LoadedPart::Block(_, bytes) | LoadedPart::State(bytes) => bytes,
            };
            let of_ranks = bytes.chunks_exact(bytes.len() / n_ranks);
            for (exchange, bytes) in exchanges.iter().zip(of_ranks) {
                let of_rank = exchange.pool.copy(bytes);
                let mut parts = exchange.parts();
                let Some(loaded) = parts.loaded.last_mut() else {
                    continue;
                };
                match part {
                    LoadedPart::Block(index, _) => loaded.blocks.push((index, of_rank)),
                    LoadedPart::State(_) => loaded.state = Some(of_rank),
                }
            }
        };
        if self.port.load(load.ticket, wanted, &mut scatter) {
            return Ok(());
        }
        Err(StepError::Lost(format!(
            "the KV store no longer has the blocks to load into row {} (ticket {})",
            load.row, load.ticket
        )))
    }

    /// Gives the parts that the ranks have saved to the store, if `has_run`: a failed step saves nothing.
    pub(super) fn after_step(&mut self, has_run: bool) {
        self.compute(false);
        if !has_run {
            return self.forget();
        }
        let saved = self.exchanges.iter();
        let saved = saved.map(|exchange| std::mem::take(&mut exchange.parts().saved));
        let saved: Vec<Vec<Saved>> = saved.collect();
        let Some((first, others)) = saved.split_first() else {
            return;
        };
        for Saved { ticket, kind, part } in first {
            let is_same = |saved: &&Saved| saved.ticket == *ticket && saved.kind == *kind;
            let others = others.iter().map(|of_rank| of_rank.iter().find(is_same));
            // A block is not saved if a rank could not copy its part.
            let Some(others) = others.collect::<Option<Vec<&Saved>>>() else {
                continue;
            };
            self.port.save(*ticket, *kind, &mut |block| {
                let mut rest = block;
                let others = others.iter().map(|saved| &saved.part);
                for part in std::iter::once(part).chain(others) {
                    let part = part.bytes();
                    let (to, after) = rest.split_at_mut(part.len());
                    to.copy_from_slice(part);
                    rest = after;
                }
            });
        }
    }
}

/// The store as a rank's executor sees it.
pub(crate) struct RankPort {
    exchange: Exchange,
    kv_bytes: usize,
    state_bytes: usize,
}

impl RankPort {
    /// # Errors
    /// If blocks cannot hold the data of a layer.
    pub(crate) fn new(
        layout: &KvLayout,
        (exchange, block_tokens): (Exchange, usize),
    ) -> Result<Self, LoadError> {
        let planes = layout.block_planes(block_tokens);
        let planes = planes.map_err(LoadError::Memory)?;
        Ok(Self {
            exchange,
            kv_bytes: planes.iter().sum(),
            state_bytes: layout.state_planes().iter().sum(),
        })
    }

    fn bytes_of(&self, kind: BlockKind) -> Option<usize> {
        match kind {
            BlockKind::Kv => Some(self.kv_bytes),
            BlockKind::State => Some(self.state_bytes),
            BlockKind::Window => None,
        }
    }

    fn buffer(&self, kind: BlockKind, part: Part) -> Box<dyn HostBuffer> {
        let exchange = self.exchange.clone();
        Box::new(RankBuffer {
            exchange,
            kind,
            part,
        })
    }
}

impl BlockPort for RankPort {
    fn save(&mut self, ticket: Ticket, kind: BlockKind, gather: &mut dyn FnMut(&mut [u8])) -> bool {
        let Some(bytes) = self.bytes_of(kind) else {
            return false;
        };
        let mut part = self.exchange.pool.take(bytes);
        gather(part.bytes_mut());
        let mut parts = self.exchange.parts();
        parts.saved.push(Saved { ticket, kind, part });
        true
    }

    fn take_buffer(&mut self, kind: BlockKind) -> Option<Box<dyn HostBuffer>> {
        let bytes = self.bytes_of(kind)?;
        let part = self.exchange.pool.take(bytes);
        Some(self.buffer(kind, part))
    }

    fn take_run(&mut self, ticket: Ticket, n_blocks: usize) -> Option<Vec<Box<dyn HostBuffer>>> {
        let loaded = {
            let mut parts = self.exchange.parts();
            let mut loads = parts.loaded.iter();
            let found = loads.position(|loaded| loaded.ticket == ticket)?;
            parts.loaded.remove(found)
        };
        let mut blocks = loaded.blocks;
        blocks.sort_unstable_by_key(|(index, _)| *index);
        let is_whole = blocks.len() >= n_blocks;
        let blocks = blocks.into_iter().take(n_blocks);
        let buffers = blocks.map(|(_, part)| self.buffer(BlockKind::Kv, part));
        is_whole.then(|| buffers.collect())
    }

    fn load(
        &mut self,
        ticket: Ticket,
        wanted: Wanted,
        scatter: &mut dyn FnMut(LoadedPart<'_>),
    ) -> bool {
        let mut parts = self.exchange.parts();
        let mut loads = parts.loaded.iter();
        let Some(found) = loads.position(|loaded| loaded.ticket == ticket) else {
            return false;
        };
        let Loaded { blocks, state, .. } = parts.loaded.remove(found);
        if wanted.state && state.is_none() {
            return false;
        }
        for (index, block) in &blocks {
            scatter(LoadedPart::Block(*index, block.bytes()));
        }
        if let Some(state) = state.as_ref().filter(|_| wanted.state) {
            scatter(LoadedPart::State(state.bytes()));
        }
        true
    }
}

/// A rank's part of a block, which a device copies asynchronously.
struct RankBuffer {
    exchange: Exchange,
    kind: BlockKind,
    part: Part,
}

impl HostBuffer for RankBuffer {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.part.bytes_mut()
    }

    fn pages_mut(&mut self) -> &mut [u8] {
        self.part.pages_mut()
    }

    fn owner(&self) -> Arc<dyn Any + Send + Sync> {
        self.part.owner()
    }

    fn keep(self: Box<Self>, ticket: Ticket) -> bool {
        let Self {
            exchange,
            kind,
            part,
        } = *self;
        let mut parts = exchange.parts();
        parts.saved.push(Saved { ticket, kind, part });
        true
    }

    fn abandon(self: Box<Self>) {
        self.part.leak();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use souffleur_base::ids::{RowId, StepId};
    use souffleur_state::step::BlockCopies;

    const BLOCK_TOKENS: usize = 4;

    /// A store that keeps blocks of six bytes.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Blocks>>);

    type Blocks = Vec<(Ticket, Vec<u8>)>;

    impl Kept {
        fn blocks(&self) -> MutexGuard<'_, Blocks> {
            self.0.lock().expect("no thread panics")
        }
    }

    impl BlockPort for Kept {
        fn save(
            &mut self,
            ticket: Ticket,
            _: BlockKind,
            gather: &mut dyn FnMut(&mut [u8]),
        ) -> bool {
            let mut block = vec![0; 6];
            gather(&mut block);
            self.blocks().push((ticket, block));
            true
        }

        fn load(
            &mut self,
            ticket: Ticket,
            _: Wanted,
            scatter: &mut dyn FnMut(LoadedPart<'_>),
        ) -> bool {
            let blocks = self.blocks();
            let Some((_, block)) = blocks.iter().find(|(kept, _)| *kept == ticket) else {
                return false;
            };
            scatter(LoadedPart::Block(0, block));
            true
        }
    }

    fn plan(loads: Vec<BlockLoad>) -> StepPlan {
        let copies = BlockCopies {
            saves: Vec::new(),
            loads,
        };
        StepPlan {
            step: StepId::new(0),
            starts: Vec::new(),
            table: Vec::new(),
            rows: Vec::new(),
            copies: Some(Box::new(copies)),
            vision: None,
        }
    }

    fn load(ticket: Ticket) -> BlockLoad {
        BlockLoad {
            ticket,
            row: RowId::new(1),
            skip_tokens: 0,
            positions: 0..BLOCK_TOKENS as u32,
            states: Default::default(),
        }
    }

    fn two_ranks(kept: &Kept) -> (RanksStore, [RankPort; 2]) {
        let port: Box<dyn BlockPort> = Box::new(kept.clone());
        let store = RanksStore::new((BLOCK_TOKENS, port), 2, true);
        let ports = [0, 1].map(|rank| RankPort {
            exchange: store.of_rank(rank).0,
            kv_bytes: 3,
            state_bytes: 0,
        });
        (store, ports)
    }

    #[test]
    fn a_block_is_saved_if_the_devices_of_all_ranks_have_copied_their_parts() {
        let (kept, tickets) = (Kept::default(), [Ticket::new(1), Ticket::new(2)]);
        let (mut store, mut ports) = two_ranks(&kept);
        let mut buffers: Vec<Box<dyn HostBuffer>> = Vec::new();
        for (rank, port) in ports.iter_mut().enumerate() {
            for _ in tickets.iter().skip(rank) {
                let mut buffer = port.take_buffer(BlockKind::Kv).expect("memory");
                buffer.bytes_mut().fill(rank as u8 + 1);
                buffers.push(buffer);
            }
        }
        // Another step begins before the copies end. Rank 1 has no part of the first block.
        store.before_step(&plan(Vec::new())).expect("no loads");
        let saved = [tickets[0], tickets[1], tickets[1]];
        for (buffer, ticket) in buffers.into_iter().zip(saved) {
            assert!(buffer.keep(ticket));
        }
        store.after_step(true);
        assert_eq!(*kept.blocks(), [(tickets[1], vec![1, 1, 1, 2, 2, 2])]);
        let loaded = store.before_step(&plan(vec![load(tickets[1])]));
        loaded.expect("the block is kept");
        for (rank, port) in ports.iter_mut().enumerate() {
            assert!(port.take_run(tickets[0], 1).is_none());
            let mut run = port.take_run(tickets[1], 1).expect("it is loaded");
            assert_eq!(run.len(), 1);
            assert_eq!(run[0].bytes_mut(), [rank as u8 + 1; 3]);
        }
    }

    #[test]
    fn a_block_has_the_parts_of_all_ranks_in_their_order() {
        let (kept, ticket) = (Kept::default(), Ticket::new(7));
        let (mut store, mut ports) = two_ranks(&kept);
        for has_run in [false, true] {
            store.before_step(&plan(Vec::new())).expect("no loads");
            for (rank, port) in ports.iter_mut().enumerate() {
                let mut gather = |part: &mut [u8]| part.fill(rank as u8 + 1);
                assert!(port.save(ticket, BlockKind::Kv, &mut gather));
            }
            store.after_step(has_run);
            let expected = has_run.then(|| (ticket, vec![1, 1, 1, 2, 2, 2]));
            assert_eq!(*kept.blocks(), Vec::from_iter(expected));
        }
        let loaded = store.before_step(&plan(vec![load(ticket)]));
        loaded.expect("the block is kept");
        for (rank, port) in ports.iter_mut().enumerate() {
            let mut parts = Vec::new();
            let mut scatter = |part: LoadedPart<'_>| match part {
                LoadedPart::Block(index, bytes) => parts.push((index, bytes.to_vec())),
                LoadedPart::State(_) => panic!("there is no state"),
            };
            let wanted = Wanted {
                blocks: 1,
                state: false,
            };
            assert!(port.load(ticket, wanted, &mut scatter));
            assert_eq!(parts, [(0, vec![rank as u8 + 1; 3])]);
            assert!(!port.load(ticket, wanted, &mut |_| {}), "loaded once");
        }
        let unknown = store.before_step(&plan(vec![load(Ticket::new(8))]));
        assert!(matches!(unknown, Err(StepError::Lost(_))));
    }
}
