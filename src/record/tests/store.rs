//! Tests that the log of an engine with a KV store is replayed without the store.

use std::collections::HashMap;

use super::*;
use souffleur_base::ids::{SeqId, Ticket};
use souffleur_executor::fake::FAKE_TOKEN_BYTES;
use souffleur_executor::host::{BlockPort, LoadedPart, Wanted};
use souffleur_state::cache::prefix_history::StoredMiss;
use souffleur_state::cache::radix_tree::SaveRules;
use souffleur_state::scheduler::tier::{PrefixFound, StoreOrder, TierLimits};
use souffleur_state::tiers::BlockKind;

const BLOCK_TOKENS: usize = 8;

type Buffers = HashMap<Ticket, Vec<Vec<u8>>>;

/// The buffers that the executor and the store exchange.
#[derive(Clone, Default)]
struct SharedBuffers(Arc<Mutex<Buffers>>);

impl SharedBuffers {
    fn put(&self, ticket: Ticket, blocks: Vec<Vec<u8>>) {
        self.0
            .lock()
            .expect("no holder panics")
            .insert(ticket, blocks);
    }

    fn take(&self, ticket: Ticket) -> Option<Vec<Vec<u8>>> {
        self.0.lock().expect("no holder panics").remove(&ticket)
    }
}

impl BlockPort for SharedBuffers {
    fn save(&mut self, ticket: Ticket, _: BlockKind, gather: &mut dyn FnMut(&mut [u8])) -> bool {
        let mut block = vec![0; BLOCK_TOKENS * FAKE_TOKEN_BYTES];
        gather(&mut block);
        self.put(ticket, vec![block]);
        true
    }

    fn load(
        &mut self,
        ticket: Ticket,
        wanted: Wanted,
        scatter: &mut dyn FnMut(LoadedPart<'_>),
    ) -> bool {
        let blocks = self.take(ticket).unwrap_or_default();
        for (index, block) in blocks.iter().take(wanted.blocks).enumerate() {
            scatter(LoadedPart::Block(index, block));
        }
        blocks.len() >= wanted.blocks
    }
}

/// A store that answers at once. It rejects every 8th write, reports the last block of every 3rd fetch as damaged, and
/// reports the next block as evicted in every 8th lookup.
#[derive(Default)]
struct Store {
    n_writes: usize,
    n_fetches: usize,
    buffers: SharedBuffers,
    blocks: HashMap<Vec<u32>, Vec<u8>>,
    prompts: HashMap<SeqId, Arc<[u32]>>,
}

impl Store {
    fn answer(&mut self, order: StoreOrder, scheduler: &mut RecordedScheduler) {
        let end = |block: usize| (block + 1) * BLOCK_TOKENS;
        match order {
            StoreOrder::Find { seq, tokens, .. } => {
                let whole = 0..tokens.len() / BLOCK_TOKENS;
                let is_there = |block: &usize| self.blocks.contains_key(&tokens[..end(*block)]);
                let blocks = whole.take_while(is_there).count();
                self.prompts.insert(seq, tokens);
                let is_evicted = self.prompts.len().is_multiple_of(8);
                let found = PrefixFound {
                    path: Arc::default(),
                    blocks,
                    worth: blocks,
                    miss: is_evicted.then_some(StoredMiss::Evicted),
                };
                scheduler.prefix_found(seq, found);
            }
            StoreOrder::Fetch {
                seq,
                ticket,
                blocks,
                ..
            } => {
                let tokens = &self.prompts[&seq];
                self.n_fetches += 1;
                let is_damaged = self.n_fetches.is_multiple_of(3);
                let blocks = blocks.start..blocks.end - usize::from(is_damaged);
                let read: Vec<Vec<u8>> = blocks
                    .map(|block| self.blocks[&tokens[..end(block)]].clone())
                    .collect();
                let n_blocks = read.len();
                self.buffers.put(ticket, read);
                let miss = is_damaged.then_some(StoredMiss::Damaged);
                scheduler.blocks_fetched(ticket, n_blocks, miss);
            }
            StoreOrder::Write {
                ticket,
                tokens,
                block,
                ..
            } => {
                let saved = self.buffers.take(ticket).unwrap_or_default();
                let path = tokens[..end(block as usize)].to_vec();
                self.n_writes += 1;
                let kept = !self.n_writes.is_multiple_of(8);
                if kept {
                    self.blocks
                        .extend(saved.into_iter().map(|saved| (path.clone(), saved)));
                }
                scheduler.blocks_written(&[ticket], kept);
            }
            StoreOrder::Discard { ticket } => drop(self.buffers.take(ticket)),
        }
    }
}

fn run_with_store(sink: &Arc<LogSink>, setup: &ControlSetup) {
    let mut engine = Engine::with_setup(setup, Some(sink.recorder(1)));
    let mut store = Store::default();
    let executor = FakeExecutor::new(FakeOptions {
        page_size: 1,
        n_pages: setup.limits.total_pages,
        vocab_size: VOCAB,
        verify: true,
        n_states: 0,
        hidden_size: 0,
        faults: Vec::new(),
    });
    engine.executor = executor.with_store(BLOCK_TOKENS, Box::new(store.buffers.clone()));
    engine.states.scheduler.store_serves(true);
    let mut random = fastrand::Rng::with_seed(3);
    for round in 0..60 {
        let shared = (0..32).map(|token| (token * 3 + round % 6 * 17) % VOCAB);
        let own = (0..random.u32(1..12)).map(|token| (token * 7 + round) % VOCAB);
        let prompt: Vec<u32> = shared.chain(own).collect();
        engine.submit(&prompt, random.u32(1..12));
        for _ in 0..random.u32(2..8) {
            serve(&mut engine, &mut store);
            engine.end_step();
        }
    }
    while !engine.steps.is_empty() || serve(&mut engine, &mut store) {
        engine.end_step();
    }
    engine.drain();
    let stats = engine.states.scheduler.stats();
    let tier = stats.store.expect("there is a store");
    assert!(tier.loaded_tokens > 0 && tier.saved_blocks > 0, "{tier:?}");
    assert_eq!(tier.free_buffers, tier.buffers, "{tier:?}");
}

/// Answers pending orders; returns false if there are none.
fn serve(engine: &mut Engine, store: &mut Store) -> bool {
    let mut has_served = false;
    loop {
        let orders = engine.states.scheduler.take_store_orders();
        if orders.is_empty() {
            return has_served;
        }
        has_served = true;
        for order in orders {
            store.answer(order, &mut engine.states.scheduler);
        }
        engine.drive();
    }
}

#[test]
fn a_log_with_a_store_replays_without_one() {
    let mut setup = setup();
    setup.limits.tier = Some(TierLimits {
        saves: SaveRules {
            block_tokens: BLOCK_TOKENS,
            min_hits: 1,
        },
        buffers: 12,
        state_buffers: 0,
        saves_per_step: 2,
        steps_per_save: 1,
        saves_when_idle: 2,
        blocks_per_load: 2,
    });
    let log = log_with(&setup, NO_LIMIT, |sink| run_with_store(sink, &setup));
    let replayed = replay_of(&log).expect("it can be replayed");
    assert_eq!(replayed.difference, None);
    let entries = entries_of(&log);
    let is_fetched = |entry: &Entry| matches!(entry, Entry::Fetched { blocks, .. } if *blocks > 0);
    assert!(entries.iter().any(is_fetched));
    let is_short = |entry: &Entry| {
        matches!(
            entry,
            Entry::FetchedShort {
                miss: StoredMiss::Damaged,
                ..
            }
        )
    };
    let is_evicted = |entry: &Entry| {
        matches!(
            entry,
            Entry::FoundShort {
                miss: StoredMiss::Evicted,
                ..
            }
        )
    };
    assert!(entries.iter().any(is_short) && entries.iter().any(is_evicted));
    // If the fetches return no blocks, the replay differs.
    let silent: Vec<Entry> = entries
        .into_iter()
        .map(|entry| match entry {
            Entry::Fetched { ticket, .. } => Entry::Fetched { ticket, blocks: 0 },
            other => other,
        })
        .collect();
    let replayed = replay_of(&forged(&setup, &silent)).expect("it can be replayed");
    assert!(replayed.difference.is_some());
}

#[test]
fn a_log_whose_blocks_are_not_whole_pages_is_refused() {
    let mut setup = setup();
    setup.limits.page_size = PageSize::new(16).expect("it is positive");
    for (block_tokens, is_valid) in [(0, false), (8, false), (24, false), (16, true), (64, true)] {
        setup.limits.tier = Some(TierLimits {
            saves: SaveRules {
                block_tokens,
                min_hits: 1,
            },
            buffers: 2,
            state_buffers: 0,
            saves_per_step: 1,
            steps_per_save: 1,
            saves_when_idle: 2,
            blocks_per_load: 2,
        });
        match replay_of(&forged(&setup, &[])) {
            Ok(_) => assert!(is_valid, "{block_tokens}"),
            Err(ReplayError::Setup(reason)) => {
                assert!(!is_valid && reason.contains("block_tokens"), "{reason}");
            }
            Err(other) => panic!("blocks of {block_tokens} tokens: {other}"),
        }
    }
}
