//! Saves the tree's unsaved blocks: steps copy them, and the store writes them once the steps have succeeded.

use super::{PendingSave, Tier};
use crate::cache::prefix_cache::{SaveCounts, StoreRecordChange, UnsavedBlock, UnsavedPart};
use crate::plan::SaveBudget;
use crate::scheduler::{Next, Scheduler};
use crate::step::{BlockSave, BlockSource};
use souffleur_base::ids::Ticket;

impl Scheduler {
    /// Frees the buffers of blocks that were written or dropped. `kept`: the store has the blocks. If not, the tree
    /// offers all blocks again, since the store rejects a block if it lacks an earlier block of the same path.
    pub fn blocks_written(&mut self, tickets: &[Ticket], kept: bool) {
        let Some(tier) = &mut self.tier else {
            return;
        };
        for ticket in tickets {
            if tier.free_save(*ticket) && !kept {
                tier.restart_store_record();
            }
        }
        self.pipeline.note_change();
    }

    pub(in crate::scheduler) fn save_demand(&mut self) -> Option<SaveBudget> {
        let tier = self.tier.as_mut()?;
        let max_blocks = tier.free_for_saves();
        let store_record = std::mem::take(&mut tier.store_record);
        (max_blocks > 0 || store_record != StoreRecordChange::Keep).then_some(SaveBudget {
            base: tier.due_saves(),
            extra_when_idle: tier.limits.saves_when_idle,
            max_blocks,
            max_states: tier.states.free_for_saves(),
            block_tokens: tier.block_tokens(),
            store_record,
        })
    }

    /// Whether pending saves alone justify a plan; `decodes` if its step decodes anyway.
    pub(in crate::scheduler) fn has_unsaved(&self, decodes: bool) -> bool {
        let tier = self.tier.as_ref();
        tier.is_some_and(|tier| {
            let is_due = !decodes || tier.due_saves() > 0;
            is_due && tier.stats.queued_paths > 0 && tier.free_for_saves() > 0
        })
    }

    pub(in crate::scheduler) fn take_save_counts(&mut self, counts: SaveCounts) {
        if let Some(tier) = &mut self.tier {
            tier.stats.queued_paths = counts.queued;
            tier.stats.dropped_tokens = counts.dropped_tokens;
        }
    }

    pub(in crate::scheduler) fn save(&mut self, blocks: Vec<UnsavedBlock>) {
        let Some(tier) = &mut self.tier else {
            return;
        };
        for block in blocks {
            tier.save(block);
        }
    }

    /// Emits a step without rows if there is something to copy: an otherwise idle engine still saves. An image to encode
    /// also gets a step.
    pub(in crate::scheduler) fn run_copies(&mut self) -> Next {
        match &self.tier {
            Some(tier) if !tier.copies.is_empty() => {
                self.cut_slice();
                self.emit(Vec::new(), Vec::new())
            }
            _ => self.run_slice(),
        }
    }
}

impl Tier {
    /// Number of blocks that can be saved now: none without a free buffer for a state that may follow.
    fn free_for_saves(&self) -> usize {
        let has_state_buffer = self.states.total == 0 || self.states.free_for_saves() > 0;
        if self.serves && has_state_buffer {
            self.blocks.free_for_saves()
        } else {
            0
        }
    }

    /// Number of blocks that the next step always saves: 0 in most steps if blocks are large.
    fn due_saves(&self) -> usize {
        if self.steps_since_save + 1 >= self.limits.steps_per_save {
            self.limits.saves_per_step
        } else {
            0
        }
    }

    fn save(&mut self, block: UnsavedBlock) {
        let ticket = self.ticket();
        let UnsavedBlock {
            namespace,
            tokens,
            block,
            part,
        } = block;
        let (from, is_state) = match part {
            UnsavedPart::Pages(pages) => (BlockSource::Pages(pages), false),
            UnsavedPart::State(slot) => (BlockSource::State(slot), true),
        };
        if is_state {
            self.states.saving += 1
        } else {
            self.blocks.saving += 1
        }
        self.copies.saves.push(BlockSave { ticket, from });
        self.saves.insert(
            ticket,
            PendingSave {
                namespace,
                tokens,
                block,
                is_state,
            },
        );
    }
}
