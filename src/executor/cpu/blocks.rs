//! Copies KV blocks to and from the KV store's buffers, on the kernel threads, at the start of a step.

use super::CpuExecutor;
use crate::host::{BlockPort, LoadedPart, StoreLink, Wanted};
use souffleur_base::error::{LoadError, StepError};
use souffleur_state::step::{BlockLoad, BlockSave, BlockSource};
use souffleur_state::tiers::BlockKind;

impl CpuExecutor {
    /// Connects the executor to a KV store with blocks of `block_tokens` tokens.
    ///
    /// # Errors
    /// The page size does not divide a block, or blocks cannot hold the data of a layer; the error names the layer.
    pub fn with_store(
        mut self,
        block_tokens: usize,
        port: Box<dyn BlockPort>,
    ) -> Result<Self, LoadError> {
        let refused =
            |reason: String| LoadError::Memory(format!("the KV store cannot be used: {reason}"));
        if block_tokens == 0 || !block_tokens.is_multiple_of(self.page_size) {
            return Err(refused(format!(
                "the KV store's blocks have {block_tokens} tokens, expected a positive multiple of page_size, {}",
                self.page_size
            )));
        }
        let n_slots = (self.n_pages + 1) * self.page_size;
        self.backend
            .prepare_blocks(&self.kv_layout, n_slots, block_tokens)
            .map_err(refused)?;
        self.rows.allow_copies(block_tokens);
        self.store = Some(StoreLink { port, block_tokens });
        Ok(self)
    }

    pub(super) fn set_computing(&mut self, is_computing: bool) {
        if let Some(link) = &mut self.store {
            link.port.computes(is_computing);
        }
    }

    /// Copies blocks to buffers. A block without a free buffer is not saved: the store finds nothing under its ticket.
    pub(super) fn save_blocks(&mut self, saves: &[BlockSave]) {
        let Some(link) = &mut self.store else {
            return;
        };
        for BlockSave { ticket, from } in saves {
            let backend = &mut self.backend;
            match from {
                BlockSource::Pages(pages) => link.port.save(*ticket, BlockKind::Kv, &mut |block| {
                    backend.save_block(pages, block);
                }),
                BlockSource::State(slot) => {
                    link.port.save(*ticket, BlockKind::State, &mut |state| {
                        backend.save_state(*slot, state);
                    })
                }
            };
        }
    }

    /// Copies fetched blocks to the pages of started rows, and fetched states to their slots.
    pub(super) fn load_blocks(&mut self, loads: &[BlockLoad]) -> Result<(), StepError> {
        let Some(link) = &mut self.store else {
            return Ok(());
        };
        for load in loads {
            let parts = load.parts(link.block_tokens);
            let backend = &mut self.backend;
            let mut scatter = |part: LoadedPart<'_>| match part {
                LoadedPart::Block(index, block) => {
                    if let Some(positions) = parts.of(index) {
                        backend.load_block(load.row, positions, block);
                    }
                }
                LoadedPart::State(state) => {
                    let slots = load.states.iter();
                    slots.for_each(|slot| backend.load_state(*slot, state));
                }
            };
            let wanted = Wanted {
                blocks: parts.len(),
                state: !load.states.is_empty(),
            };
            if !link.port.load(load.ticket, wanted, &mut scatter) {
                return Err(StepError::Lost(format!(
                    "the KV store no longer has the blocks to load into row {} (ticket {})",
                    load.row, load.ticket
                )));
            }
            self.rows.load(load);
        }
        Ok(())
    }
}
