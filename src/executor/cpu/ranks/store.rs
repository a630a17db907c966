//! Connects the KV store to several ranks: a block of the store is the ranks' parts, in rank order.
//!
//! Each rank copies its parts from and to buffers of its [`RankPort`]. The thread that gives the ranks their steps
//! copies between these and the store's buffers: loads before a step, saves after it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::host::{BlockPort, LoadedPart, Wanted};
use souffleur_base::error::{LoadError, StepError};
use souffleur_base::ids::Ticket;
use souffleur_base::kv_layout::KvLayout;
use souffleur_state::step::{BlockLoad, StepPlan};
use souffleur_state::tiers::BlockKind;

/// The store's port, and the buffers of all ranks.
pub(super) struct RanksStore {
    port: Box<dyn BlockPort>,
    block_tokens: usize,
    /// In rank order.
    exchanges: Vec<Exchange>,
}

/// A rank's parts on their way. Both sides use it in turn: the ranks in a step, their leader between steps.
#[derive(Clone, Default)]
pub(super) struct Exchange(Arc<Mutex<Parts>>);

#[derive(Default)]
struct Parts {
    /// In the order of the plan's saves.
    saved: Vec<Saved>,
    loaded: Vec<Loaded>,
}

struct Saved {
    ticket: Ticket,
    kind: BlockKind,
    part: Vec<u8>,
}

struct Loaded {
    ticket: Ticket,
    /// Indices of blocks in the run, and their parts.
    blocks: Vec<(usize, Vec<u8>)>,
    state: Option<Vec<u8>>,
}

impl Exchange {
    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RanksStore {
    pub(super) fn new(port: Box<dyn BlockPort>, block_tokens: usize, n_ranks: usize) -> Self {
        Self {
            port,
            block_tokens,
            exchanges: (0..n_ranks).map(|_| Exchange::default()).collect(),
        }
    }

    /// The exchange of a rank, and the tokens of a block.
    pub(super) fn of_rank(&self, index: usize) -> (Exchange, usize) {
        (self.exchanges[index].clone(), self.block_tokens)
    }

    /// Takes the plan's loads from the store, and forgets what a failed step has left.
    pub(super) fn before_step(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        for exchange in &self.exchanges {
            *exchange.parts() = Parts::default();
        }
        let loads = plan.copies.iter().flat_map(|copies| &copies.loads);
        for load in loads {
            self.load(load)?;
        }
        // A step without rows only copies blocks, so the store's threads need not pause.
        self.port.computes(!plan.rows.is_empty());
        Ok(())
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
                let mut parts = exchange.parts();
                let Some(loaded) = parts.loaded.last_mut() else {
                    continue;
                };
                match part {
                    LoadedPart::Block(index, _) => loaded.blocks.push((index, bytes.to_vec())),
                    LoadedPart::State(_) => loaded.state = Some(bytes.to_vec()),
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
        self.port.computes(false);
        if !has_run {
            return;
        }
        let saved = self.exchanges.iter();
        let saved = saved.map(|exchange| std::mem::take(&mut exchange.parts().saved));
        let saved: Vec<Vec<Saved>> = saved.collect();
        let n_saves = saved.iter().map(Vec::len).min().unwrap_or(0);
        for index in 0..n_saves {
            let Saved { ticket, kind, .. } = &saved[0][index];
            self.port.save(*ticket, *kind, &mut |block| {
                let mut rest = block;
                for of_rank in &saved {
                    let part = &of_rank[index].part;
                    let (to, after) = rest.split_at_mut(part.len());
                    to.copy_from_slice(part);
                    rest = after;
                }
            });
        }
    }
}

/// The store as a rank's executor sees it.
pub(super) struct RankPort {
    exchange: Exchange,
    kv_bytes: usize,
    state_bytes: usize,
}

impl RankPort {
    /// # Errors
    /// If blocks cannot hold the data of a layer.
    pub(super) fn new(
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
}

impl BlockPort for RankPort {
    fn save(&mut self, ticket: Ticket, kind: BlockKind, gather: &mut dyn FnMut(&mut [u8])) -> bool {
        let bytes = match kind {
            BlockKind::Kv => self.kv_bytes,
            BlockKind::State => self.state_bytes,
            BlockKind::Window => return false,
        };
        let mut part = vec![0; bytes];
        gather(&mut part);
        let mut parts = self.exchange.parts();
        parts.saved.push(Saved { ticket, kind, part });
        true
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
            scatter(LoadedPart::Block(*index, block));
        }
        if let Some(state) = state.as_deref().filter(|_| wanted.state) {
            scatter(LoadedPart::State(state));
        }
        true
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

    #[test]
    fn a_block_has_the_parts_of_all_ranks_in_their_order() {
        let (kept, ticket) = (Kept::default(), Ticket::new(7));
        let mut store = RanksStore::new(Box::new(kept.clone()), BLOCK_TOKENS, 2);
        let mut ports = [0, 1].map(|rank| RankPort {
            exchange: store.of_rank(rank).0,
            kv_bytes: 3,
            state_bytes: 0,
        });
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
