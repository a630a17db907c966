//! Saves and loads blocks of hashes, in place of K/V.
//!
//! Each hash covers all tokens up to its position, so the next step that reads the context detects a stale block, and a
//! block of another prefix or position.

use super::refusal::rejected;
use super::{FAKE_TOKEN_BYTES, FakeExecutor};
use crate::host::{BlockPort, LoadedPart, StoreLink, Wanted};
use souffleur_base::error::StepError;
use souffleur_state::step::{BlockLoad, BlockSave, BlockSource};
use souffleur_state::tiers::BlockKind;

impl FakeExecutor {
    /// The executor with a store for blocks of `block_tokens` tokens, [`FAKE_TOKEN_BYTES`] each.
    pub fn with_store(mut self, block_tokens: usize, port: Box<dyn BlockPort>) -> Self {
        self.store = Some(StoreLink { port, block_tokens });
        self
    }

    pub(super) fn save_blocks(&mut self, saves: &[BlockSave]) -> Result<(), StepError> {
        let page_size = self.options.page_size;
        let Some(link) = &mut self.store else {
            return Err(no_store());
        };
        for BlockSave { ticket, from } in saves {
            let pages = match from {
                BlockSource::Pages(pages) => pages,
                BlockSource::State(slot) => {
                    let state = self.states.read(*slot).ok_or_else(|| {
                        StepError::Lost(format!(
                            "save {ticket} names a state that was never written"
                        ))
                    })?;
                    link.port.save(*ticket, BlockKind::State, &mut |bytes| {
                        bytes.copy_from_slice(&state.to_le_bytes());
                    });
                    continue;
                }
            };
            if pages.len() * page_size != link.block_tokens {
                let reason = format!(
                    "save {ticket} has {} pages, which are not a block",
                    pages.len()
                );
                return Err(StepError::Rejected(reason));
            }
            let slots = pages.iter().flat_map(|page| {
                let first = page.index() * page_size;
                first..first + page_size
            });
            let kv = &self.kv;
            link.port.save(*ticket, BlockKind::Kv, &mut |block| {
                let hashes = block.chunks_exact_mut(FAKE_TOKEN_BYTES);
                for (hash, slot) in hashes.zip(slots.clone()) {
                    hash.copy_from_slice(&kv[slot].to_le_bytes());
                }
            });
        }
        Ok(())
    }

    pub(super) fn load_blocks(&mut self, loads: &[BlockLoad]) -> Result<(), StepError> {
        for load in loads {
            self.load_run(load)?;
        }
        Ok(())
    }

    fn load_run(&mut self, load: &BlockLoad) -> Result<(), StepError> {
        let mut link = self.store.take().ok_or_else(no_store)?;
        let parts = load.parts(link.block_tokens);
        let mut hashes = Vec::with_capacity(load.positions.len());
        let block_tokens = link.block_tokens;
        let wanted = Wanted {
            blocks: parts.len(),
            state: !load.states.is_empty(),
        };
        let states = &mut self.states;
        let is_there = link.port.load(load.ticket, wanted, &mut |part| {
            let (index, block) = match part {
                LoadedPart::Block(index, block) => (index, block),
                LoadedPart::State(state) => {
                    let state = state.try_into().map(u64::from_le_bytes).ok();
                    let slots = load.states.iter();
                    slots.for_each(|slot| states.write(*slot, state));
                    return;
                }
            };
            let Some(positions) = parts.of(index) else {
                return;
            };
            let first = positions.start % block_tokens;
            let tokens = block.chunks_exact(FAKE_TOKEN_BYTES).skip(first);
            for (position, hash) in positions.zip(tokens) {
                let hash = hash.try_into().map_or(0, u64::from_le_bytes);
                hashes.push((position, hash));
            }
        });
        self.store = Some(link);
        let row = self.rows.remove(&load.row);
        let row = row
            .ok_or_else(|| StepError::Rejected(format!("row {} has not been started", load.row)))?;
        if !is_there || hashes.len() != load.positions.len() {
            let (seq, ticket) = (row.seq, load.ticket);
            self.rows.insert(load.row, row);
            return Err(StepError::Lost(format!(
                "the blocks of load {ticket} of sequence {seq} are missing"
            )));
        }
        if row.tokens.len() <= load.positions.end as usize {
            return Err(rejected(row.seq, "has no token left to compute"));
        }
        for (position, hash) in hashes {
            let slot = self.slot(&row, position)?;
            self.kv[slot] = hash;
        }
        self.rows.insert(load.row, row);
        Ok(())
    }
}

fn no_store() -> StepError {
    StepError::Rejected("the plan copies blocks, but there is no store".to_owned())
}
