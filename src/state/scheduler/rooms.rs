//! Makes room for drafts: plans how many query tokens the rows of a decode may have.

use crate::plan::DecodeDemand;
use crate::step::{RowWork, StepRow};
use souffleur_base::ids::SeqId;
use souffleur_base::in_hand;

use super::Scheduler;

/// Tokens for which each row must find free or evictable pages before any row gets pages for drafts.
const RESERVED_TOKENS: usize = 4;
/// Steps for whose drafts an eviction makes space, so that few plans evict.
const STEPS_OF_SPACE: usize = 8;

impl Scheduler {
    /// Makes room for drafts in a step that only decodes, which then has no more query tokens than a prefill may have.
    /// The pages for it come from the free ones: drafts never retract or wait. A sequence is in `growing` once for each of
    /// its new pages.
    pub(super) fn make_room(&mut self, mut rows: DecodeRows) -> DecodeRows {
        if rows.max_room == 1 {
            return rows;
        }
        let page = self.limits.page_size;
        let mut left = self.free_for_drafts(rows.growing.len(), rows.seqs.len());
        let n_demanded = rows.growing.len();
        let mut demanded = 0;
        let max_tokens = self
            .limits
            .chunk_tokens
            .unwrap_or(self.limits.max_prefill_tokens);
        let mut drafts_left = max_tokens.saturating_sub(rows.seqs.len());
        for index in 0..rows.seqs.len() {
            let seq = rows.seqs[index];
            let grows = demanded < n_demanded && rows.growing[demanded] == seq;
            demanded += usize::from(grows);
            let sequence = self.requests.noted_mut(seq);
            let keeps_state = sequence.held_kv().states.is_some();
            let has_stops = !sequence.request.sampling.stop.is_empty();
            // A state cannot go back before drafts, if a stop string is found among them.
            let room = if keeps_state && has_stops {
                1
            } else {
                (sequence.usable_room() as usize).min(1 + drafts_left)
            };
            let kv = sequence.held_kv_mut();
            kv.room = 1;
            if room == 1 {
                continue;
            }
            let held = kv.n_pages + usize::from(grows);
            let wanted = page.pages_for(kv.committed + room).saturating_sub(held);
            let n_pages = wanted.min(left);
            left -= n_pages;
            rows.n_short += wanted - n_pages;
            let slots = page.tokens_in(held + n_pages) - kv.committed;
            kv.room = room.min(slots) as u32;
            drafts_left -= kv.room as usize - 1;
            rows.growing.extend(std::iter::repeat_n(seq, n_pages));
        }
        in_hand::clear();
        self.release_windows_of(&rows.growing[n_demanded..]);
        rows
    }

    /// Pages that the next plan can grant in addition to `n_demanded`, without an eviction. Rows keep the pages of
    /// rejected drafts, so all `n_rows` rows must find pages for a few more tokens.
    fn free_for_drafts(&self, n_demanded: usize, n_rows: usize) -> usize {
        let free = match self.limits.windows {
            Some(_) => self.memory.free_pages().min(self.free_windows()),
            None => self.memory.free_pages(),
        };
        let soon = n_rows * self.limits.page_size.pages_for(RESERVED_TOKENS);
        let reserve = soon.saturating_sub(self.memory.evictable_pages());
        free.saturating_sub(n_demanded + reserve)
    }

    /// The tokens that must be free after the plan, so that later steps find pages for drafts: a full cache has none. The
    /// cache loses little, and never more than a quarter: rows keep the pages of at most two steps' drafts. 0 if there is
    /// no need.
    pub(super) fn space_for_drafts(&self, rows: &DecodeRows) -> usize {
        let lacks_windows = !self.has_windows_for(rows.growing.len() + rows.n_short);
        let space = rows.n_short * STEPS_OF_SPACE;
        let space = space.min(self.memory.evictable_pages() / 4);
        if rows.n_short == 0 || lacks_windows || space < rows.n_short {
            return 0;
        }
        self.limits.page_size.tokens_in(rows.growing.len() + space)
    }

    /// Forgets the rooms of a decode that is not run.
    pub(super) fn forget_rooms(&mut self) {
        for &seq in self.batch.running() {
            if let Some(kv) = &mut self.requests[seq].kv {
                kv.room = 1;
            }
        }
    }
}

pub(super) struct DecodeRows {
    pub(super) seqs: Vec<SeqId>,
    /// The sequences that need a page for their next token; then those with pages for drafts, once for each page.
    pub(super) growing: Vec<SeqId>,
    /// The largest room that a sequence may have.
    pub(super) max_room: u32,
    /// Pages that drafts lack.
    pub(super) n_short: usize,
}

impl DecodeRows {
    pub(super) fn into_demand(self) -> (Vec<SeqId>, Option<DecodeDemand>) {
        let Self { seqs, growing, .. } = self;
        let demand = (!seqs.is_empty()).then_some(DecodeDemand { growing });
        (seqs, demand)
    }
}

/// The rooms of the rows; empty if each has one query token or is a prefill.
pub(super) fn rooms_of(rows: &[StepRow]) -> Vec<u32> {
    let room_of = |row: &StepRow| match row.work {
        RowWork::Decode { room, .. } => room,
        RowWork::Prefill { .. } => 1,
    };
    if rows.iter().all(|row| room_of(row) == 1) {
        return Vec::new();
    }
    rows.iter().map(room_of).collect()
}
