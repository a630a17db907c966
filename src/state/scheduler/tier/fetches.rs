//! Lookup, fetch and load of a request's stored blocks. A long prefix is fetched and loaded in several rounds.

use std::sync::Arc;

use super::{PendingFetch, PrefixFound, SequenceTier, StoreOrder, Tier, TierPhase};
use crate::cache::prefix_cache::StoreRecordChange;
use crate::cache::prefix_history::StoredMiss;
use crate::plan::{FetchDemand, LoadGrant, StoredPrefix};
use crate::scheduler::Scheduler;
use crate::scheduler::outbox::Counter;
use crate::scheduler::sequence::Phase;
use crate::step::{BlockLoad, StepRow};
use souffleur_base::ids::{RowId, SeqId, StateSlot, Ticket};

impl Scheduler {
    /// Records that the store became available or stopped. Requests that wait for a stopped store proceed without it.
    pub fn store_serves(&mut self, serves: bool) {
        let Some(tier) = &mut self.tier else {
            return;
        };
        tier.serves = serves;
        tier.store_record = if serves {
            StoreRecordChange::Forget
        } else {
            StoreRecordChange::End
        };
        if !serves {
            tier.drop_orders_in_flight();
            let chunked = self.batch.chunked();
            let waiting: Vec<SeqId> = self.queue.all().chain(chunked).collect();
            for seq in waiting {
                let seq_tier = self.requests[seq].tier.as_deref_mut();
                if let Some(seq_tier) = seq_tier
                    && !matches!(seq_tier.phase, TierPhase::Ready { .. })
                {
                    seq_tier.phase = TierPhase::Done;
                }
            }
        }
        self.pipeline.note_change();
    }

    pub fn prefix_found(&mut self, seq: SeqId, found: PrefixFound) {
        let Some(tier) = &self.tier else {
            return;
        };
        let block_tokens = tier.block_tokens();
        let Some(sequence) = self.requests.get_mut(seq) else {
            return;
        };
        let n_tokens = sequence.fill.len();
        let seq_tier = sequence.tier.as_deref_mut();
        let Some(seq_tier) = seq_tier.filter(|seq_tier| seq_tier.is_finding()) else {
            return;
        };
        let PrefixFound {
            path,
            blocks,
            worth,
            miss,
        } = found;
        let blocks = blocks.min(n_tokens / block_tokens);
        let worth = worth.min(blocks);
        *seq_tier = SequenceTier {
            phase: match worth {
                0 => TierPhase::Done,
                _ => TierPhase::Found,
            },
            path,
            wanted: worth,
            found_blocks: blocks,
            end_miss: miss,
            failed: None,
            stored_tokens: blocks * block_tokens,
            loaded_tokens: 0,
            is_first_admission: false,
        };
        self.pipeline.note_change();
    }

    /// Ends a fetch, which read the first `n_blocks` of its blocks. `miss`: why the next one is missing.
    pub fn blocks_fetched(&mut self, ticket: Ticket, n_blocks: usize, miss: Option<StoredMiss>) {
        let Some(tier) = &mut self.tier else {
            return;
        };
        let Some(fetch) = tier.fetches.remove(&ticket) else {
            return;
        };
        self.pipeline.note_change();
        tier.blocks.fetching -= fetch.blocks.len();
        tier.states.fetching -= tier.states_per_fetch();
        let n_blocks = n_blocks.min(fetch.blocks.len());
        if n_blocks == 0 {
            tier.stats.late_fetches += 1;
        }
        let block_tokens = tier.block_tokens();
        let sequence = fetch.seq.and_then(|seq| self.requests.get_mut(seq));
        let mut seq_tier = sequence.and_then(|sequence| sequence.tier.as_deref_mut());
        if let Some(seq_tier) = &mut seq_tier
            && n_blocks < fetch.blocks.len()
        {
            let block = fetch.blocks.start + n_blocks;
            seq_tier.failed = Some((block, miss.unwrap_or(StoredMiss::Late)));
        }
        let Some(seq_tier) = seq_tier.filter(|_| n_blocks > 0) else {
            tier.orders.push(StoreOrder::Discard { ticket });
            if let Some(seq) = fetch.seq {
                self.stop_fetching(seq);
            }
            return;
        };
        tier.ready.insert(ticket, n_blocks);
        tier.blocks.ready += n_blocks;
        tier.states.ready += tier.states_per_fetch();
        let first = fetch.blocks.start;
        if n_blocks < fetch.blocks.len() {
            // Missing blocks were late, damaged or evicted: they are computed, and then saved.
            seq_tier.stored_tokens = (first + n_blocks) * block_tokens;
            seq_tier.wanted = first + n_blocks;
        }
        seq_tier.phase = TierPhase::Ready {
            ticket,
            from: first * block_tokens,
            to: (first + n_blocks) * block_tokens,
        };
    }

    /// Ends the use of the store after a fetch without blocks: the blocks found earlier may have been evicted.
    fn stop_fetching(&mut self, seq: SeqId) {
        let sequence = self.requests.get_mut(seq);
        if let Some(seq_tier) = sequence.and_then(|sequence| sequence.tier.as_deref_mut()) {
            seq_tier.phase = TierPhase::Done;
            seq_tier.stored_tokens = 0;
        }
    }

    pub(in crate::scheduler) fn find_stored(&mut self, seq: SeqId) {
        let Some(tier) = &mut self.tier else {
            return;
        };
        let sequence = &mut self.requests[seq];
        let mut tokens: Arc<[u32]> = sequence.fill.clone();
        let limit = sequence.match_limit_of(tokens.len());
        if !tier.serves || limit < tier.block_tokens() {
            return;
        }
        if tier.states.total > 0 {
            // A stored state is usable only if its whole block may come from the store.
            tokens = tokens[..limit].into();
        }
        sequence.tier = Some(Box::default());
        tier.orders.push(StoreOrder::Find {
            seq,
            namespace: sequence.request.namespace.clone(),
            tokens,
        });
    }

    /// The stored prefix that a plan may use.
    pub(in crate::scheduler) fn stored_of(&self, seq: SeqId) -> StoredPrefix {
        let sequence = &self.requests[seq];
        let (Some(tier), Some(seq_tier)) = (&self.tier, &sequence.tier) else {
            return StoredPrefix::None;
        };
        let n_tokens = seq_tier.wanted * tier.block_tokens();
        match seq_tier.phase {
            // The step in flight holds the buffers of the last round; the next round starts after it.
            TierPhase::Found if sequence.rows_in_flight > 0 => StoredPrefix::Fetching,
            TierPhase::Found if tier.serves && tier.free_to_fetch() > 0 => {
                StoredPrefix::Found { tokens: n_tokens }
            }
            TierPhase::Fetching { .. } => StoredPrefix::Fetching,
            TierPhase::Ready { ticket, from, to } => StoredPrefix::Ready {
                ticket,
                from,
                to,
                until: match tier.states.total {
                    0 if tier.serves => n_tokens.max(to),
                    _ => to,
                },
            },
            TierPhase::Finding | TierPhase::Found | TierPhase::Done => StoredPrefix::None,
        }
    }

    /// Fetches the blocks that candidates miss in the tree. A candidate without a free buffer skips the store.
    pub(in crate::scheduler) fn start_fetches(&mut self, demands: Vec<FetchDemand>) {
        for FetchDemand { seq, cached_tokens } in demands {
            let reserved = self.buffers_for_next_round(seq);
            let Some(tier) = &mut self.tier else {
                return;
            };
            let Some(sequence) = self.requests.get_mut(seq) else {
                continue;
            };
            let seq_tier = sequence.tier.as_deref_mut();
            let Some(seq_tier) = seq_tier.filter(|it| it.phase == TierPhase::Found) else {
                continue;
            };
            let first = cached_tokens / tier.block_tokens();
            let missing = seq_tier.wanted.saturating_sub(first);
            let free = tier.free_to_fetch().saturating_sub(reserved);
            let end = first + tier.round_len(missing).min(free);
            if end <= first || sequence.has_ended {
                tier.stats.refused_fetches += 1;
                seq_tier.phase = TierPhase::Done;
                self.pipeline.note_change();
                continue;
            }
            let ticket = tier.ticket();
            seq_tier.phase = TierPhase::Fetching { ticket };
            let path = seq_tier.path.clone();
            tier.fetch(seq, ticket, path, first..end);
        }
    }

    /// Number of buffers that the chunked request needs for its next round; 0 if that request is `seq`, or needs none.
    fn buffers_for_next_round(&self, seq: SeqId) -> usize {
        let chunked = self.batch.chunked().filter(|chunked| *chunked != seq);
        let sequence = chunked.map(|chunked| &self.requests[chunked]);
        let seq_tier = sequence.and_then(|sequence| sequence.tier.as_deref());
        match (&self.tier, sequence, seq_tier) {
            (Some(tier), Some(sequence), Some(seq_tier)) if seq_tier.phase == TierPhase::Found => {
                let end = sequence.kv.as_ref().map_or(0, |kv| kv.committed);
                tier.round_len(seq_tier.wanted.saturating_sub(end / tier.block_tokens()))
            }
            _ => 0,
        }
    }

    /// Fetches the next round of a prefix while the previous one is copied, if enough buffers are free.
    fn fetch_ahead(&mut self, seq: SeqId, cached_tokens: usize) {
        let (Some(tier), Some(seq_tier)) = (&self.tier, &self.requests[seq].tier) else {
            return;
        };
        let first = cached_tokens / tier.block_tokens();
        let round = tier.round_len(seq_tier.wanted.saturating_sub(first));
        if tier.serves && tier.free_to_fetch() >= round {
            self.start_fetches(vec![FetchDemand { seq, cached_tokens }]);
        }
    }

    /// Loads the fetched blocks into a row after its `prefix_len` tokens from the cache or earlier rounds; `live` is
    /// the slot of the row's recurrent state.
    pub(in crate::scheduler) fn begin_load(
        &mut self,
        (seq, row, live): (SeqId, RowId, Option<StateSlot>),
        prefix_len: usize,
        load: Option<LoadGrant>,
    ) {
        let Some(tier) = &mut self.tier else {
            return;
        };
        let sequence = &mut self.requests[seq];
        let is_later_round = sequence.phase == Phase::Chunked;
        let is_new = sequence.cached_tokens.is_none();
        let prompt_len = sequence.request.prompt.len();
        let Some(seq_tier) = sequence.tier.as_deref_mut() else {
            return;
        };
        seq_tier.is_first_admission = is_new || (is_later_round && seq_tier.is_first_admission);
        let mut continues = false;
        if let TierPhase::Ready { ticket, .. } = seq_tier.phase {
            match load {
                Some(load) => {
                    let LoadGrant { begins, to, .. } = load;
                    continues = load.continues;
                    let loaded = to.min(prompt_len).saturating_sub(prefix_len);
                    if seq_tier.is_first_admission {
                        seq_tier.loaded_tokens += loaded as u32;
                        tier.stats.loaded_tokens += loaded as u64;
                    }
                    if seq_tier.is_first_admission && is_later_round {
                        let cached = sequence.cached_tokens.get_or_insert(0);
                        *cached += loaded as u32;
                        self.outbox.count(Counter::CachedTokens, loaded);
                    }
                    tier.copies.loads.push(BlockLoad {
                        ticket,
                        row,
                        skip_tokens: (prefix_len - begins) as u32,
                        positions: prefix_len as u32..to as u32,
                        states: live.into_iter().collect(),
                    });
                }
                None => tier.discard_ready(ticket),
            }
        }
        seq_tier.phase = if continues {
            TierPhase::Found
        } else {
            TierPhase::Done
        };
        if let Some(load) = load.filter(|_| continues) {
            self.fetch_ahead(seq, load.to);
        }
    }

    /// Moves copies of the state at the start of the row's chunk into the load, which writes the state to each of them.
    pub(in crate::scheduler) fn move_copies_to_load(&mut self, step_row: &mut StepRow) {
        let first = step_row.work.positions().start;
        let (row, saves) = (step_row.row, &mut step_row.saves);
        if !saves.iter().any(|save| save.position == first) {
            return;
        }
        let loads = self.tier.as_mut().map(|tier| &mut tier.copies.loads);
        let load = loads.and_then(|loads| loads.iter_mut().find(|load| load.row == row));
        if let Some(load) = load {
            let loaded = saves.iter().filter(|save| save.position == first);
            load.states.extend(loaded.map(|save| save.slot));
        }
        saves.retain(|save| save.position != first);
    }

    /// Discards the fetched blocks of a sequence that ends while it waits or loads in rounds.
    pub(in crate::scheduler) fn discard_fetch(&mut self, seq: SeqId) {
        let Some(tier) = &mut self.tier else {
            return;
        };
        let seq_tier = self.requests.get_mut(seq);
        let seq_tier = seq_tier.and_then(|sequence| sequence.tier.as_deref_mut());
        let Some(seq_tier) = seq_tier else {
            return;
        };
        match std::mem::replace(&mut seq_tier.phase, TierPhase::Done) {
            TierPhase::Fetching { ticket } => tier.abandon(ticket),
            TierPhase::Ready { ticket, .. } => tier.discard_ready(ticket),
            TierPhase::Finding | TierPhase::Found | TierPhase::Done => {}
        }
    }

    /// Lets a sequence that waits again fetch its stored blocks again, unless one of its steps was lost, or the store did
    /// not give the K/V of an image.
    pub(in crate::scheduler) fn allow_fetch_again(&mut self, seq: SeqId) {
        let sequence = &mut self.requests[seq];
        let is_barred = sequence.losses > 0 || sequence.distrusts_store();
        let Some(seq_tier) = sequence.tier.as_deref_mut() else {
            return;
        };
        seq_tier.phase = match seq_tier.phase {
            TierPhase::Done if !is_barred && seq_tier.wanted > 0 => TierPhase::Found,
            TierPhase::Found if is_barred => TierPhase::Done,
            phase => phase,
        };
    }
}

impl Tier {
    fn fetch(
        &mut self,
        seq: SeqId,
        ticket: Ticket,
        path: Arc<[crate::tiers::BlockPlace]>,
        blocks: std::ops::Range<usize>,
    ) {
        self.stats.fetches += 1;
        self.blocks.fetching += blocks.len();
        self.states.fetching += self.states_per_fetch();
        let fetch = PendingFetch {
            seq: Some(seq),
            blocks: blocks.clone(),
        };
        self.fetches.insert(ticket, fetch);
        self.orders.push(StoreOrder::Fetch {
            seq,
            ticket,
            path,
            blocks,
        });
    }

    /// Detaches a fetch from its sequence. The store owns the fetch's buffers until it answers.
    fn abandon(&mut self, ticket: Ticket) {
        if let Some(fetch) = self.fetches.get_mut(&ticket) {
            fetch.seq = None;
            self.orders.push(StoreOrder::Discard { ticket });
        }
    }
}
