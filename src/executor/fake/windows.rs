//! The fake executor's pages for sliding-window layers.

use std::ops::Range;

use super::hashes::{garbage, mix};
use super::refusal::rejected;
use souffleur_base::error::StepError;
use souffleur_base::ids::{PageId, SeqId};
use souffleur_state::pool::pages::{PageSize, Window};
use souffleur_state::pool::window_pool::WindowLimits;

/// Window pages with one hash per slot.
pub(super) struct FakeWindows {
    window: Window,
    kv: Vec<u64>,
}

impl FakeWindows {
    pub(super) fn new(limits: WindowLimits, page_size: usize) -> Self {
        let size = PageSize::new(page_size as u32).unwrap_or(PageSize::ONE);
        Self {
            window: limits.window(size),
            kv: vec![0; (limits.total_pages + 1) * page_size],
        }
    }

    /// Checks the hashes of earlier tokens that the queries of `positions` see, and writes the hashes of `positions`.
    /// Unmapped entries of `pages` are the dummy page.
    pub(super) fn attend(
        &mut self,
        seq: SeqId,
        (tokens, pages): (&[u32], &[PageId]),
        positions: Range<u32>,
    ) -> Result<(), StepError> {
        let (first, end) = (positions.start as usize, positions.end as usize);
        let seen = (first + 1).saturating_sub(self.window.tokens);
        let mut hash = 0;
        for (position, token) in tokens[..end].iter().enumerate() {
            hash = mix(hash, *token);
            if position < seen {
                continue;
            }
            let kv = self.slot(seq, pages, position)?;
            if position >= first {
                *kv = hash;
            } else if *kv != hash {
                return Err(StepError::Lost(format!(
                    "window K/V of sequence {seq} at position {position} was not computed from its tokens"
                )));
            }
        }
        Ok(())
    }

    /// Writes hashes that belong to no tokens at the positions of rejected drafts.
    pub(super) fn spoil(
        &mut self,
        seq: SeqId,
        pages: &[PageId],
        positions: Range<usize>,
    ) -> Result<(), StepError> {
        for position in positions {
            *self.slot(seq, pages, position)? = garbage(seq.get(), position);
        }
        Ok(())
    }

    fn slot(
        &mut self,
        seq: SeqId,
        pages: &[PageId],
        position: usize,
    ) -> Result<&mut u64, StepError> {
        let page_size = self.window.page_size.get();
        let page = pages.get(position / page_size);
        let page = page
            .filter(|page| page.index() > 0)
            .ok_or_else(|| rejected(seq, &format!("has no window page for position {position}")))?;
        let slot = page.index() * page_size + position % page_size;
        let kv = self.kv.get_mut(slot);
        kv.ok_or_else(|| rejected(seq, &format!("has no window page {page}")))
    }
}
