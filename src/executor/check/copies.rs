//! Checks a plan's block copies: saves of whole blocks, and loads that continue a row's computed positions.

use super::Check;
use super::limits::Limits;
use super::states::check_slot;
use souffleur_base::ids::Ticket;
use souffleur_state::step::{BlockCopies, BlockLoad, BlockSave, BlockSource};

impl Check<'_> {
    /// Checks the saves, before any row has changed.
    pub(super) fn saves(&mut self, copies: &BlockCopies) -> Result<(), String> {
        let block_tokens = self.block_tokens()?;
        for BlockSave { ticket, from } in &copies.saves {
            let failed =
                |reason: String| format!("the save with ticket {ticket} is invalid: {reason}");
            self.use_ticket(*ticket).map_err(failed)?;
            let pages = match from {
                BlockSource::Pages(pages) => pages,
                BlockSource::State(slot) => {
                    check_slot(*slot, self.limits.n_state_slots).map_err(failed)?;
                    continue;
                }
            };
            let n_tokens = pages.len() * self.limits.page_size;
            if n_tokens != block_tokens {
                return Err(failed(format!(
                    "the pages have {n_tokens} tokens, but a block has {block_tokens}"
                )));
            }
            self.pages(pages.iter().copied()).map_err(failed)?;
        }
        Ok(())
    }

    /// Checks a load after the page table's edits, and counts the loaded tokens as computed.
    pub(super) fn load(&mut self, load: &BlockLoad) -> Result<(), String> {
        let block_tokens = self.block_tokens()?;
        self.use_ticket(load.ticket)?;
        let Limits {
            page_size, windows, ..
        } = *self.limits;
        let (first, end) = (load.positions.start as usize, load.positions.end as usize);
        let skipped = load.skip_tokens as usize;
        if !(first.saturating_sub(skipped)).is_multiple_of(block_tokens) || skipped > first {
            return Err(format!(
                "position {first} less {skipped} skipped tokens is not the start of a block of {block_tokens} tokens"
            ));
        }
        if first >= end || first % page_size != 0 || end % page_size != 0 {
            return Err(format!(
                "positions {first} to {end} are not whole pages of {page_size}"
            ));
        }
        let row = self.planned_row(load.row)?;
        if row.has_prompt_embeds || windows.is_some() {
            return Err("blocks hold neither prompt embeddings nor window pages".to_owned());
        }
        if row.live != load.states.first().copied() {
            return Err("the row has a different state than the load, or none".to_owned());
        }
        if first != row.computed || row.sampled_tokens > 0 {
            return Err(format!(
                "the load begins at position {first}, but the row has {} computed positions: a load must continue its \
                 prefix or an earlier load",
                row.computed
            ));
        }
        if end > row.n_pages * page_size || end >= row.n_tokens {
            return Err(format!(
                "the load ends at position {end}, but the row's pages hold {} tokens, and the last of its {} tokens must \
                 be computed, not loaded",
                row.n_pages * page_size,
                row.n_tokens
            ));
        }
        row.computed = end;
        let copies = load.states.iter().skip(1);
        copies
            .copied()
            .try_for_each(|copy| self.slots.write(copy, self.limits.n_state_slots))
    }

    fn block_tokens(&self) -> Result<usize, String> {
        let none = || "the plan copies blocks, but there is no store".to_owned();
        self.limits.block_tokens.ok_or_else(none)
    }

    fn use_ticket(&mut self, ticket: Ticket) -> Result<(), String> {
        if self.tickets.insert(ticket) {
            Ok(())
        } else {
            Err("the ticket is used twice in one step".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use smallvec::smallvec;

    use super::*;
    use crate::rows::Rows;
    use souffleur_base::error::StepError;
    use souffleur_base::ids::{PageId, RowId, SeqId, StateSlot, StepId};
    use souffleur_state::pool::pages::PageRun;
    use souffleur_state::sampling::SamplingParams;
    use souffleur_state::step::{RowStart, RowWork, StepPlan, StepRow, TableDelta};

    const ROW: RowId = RowId::new(1);
    const SEQ: SeqId = SeqId::new(1);

    fn rows(block_tokens: Option<usize>) -> Rows {
        let limits = Limits {
            n_pages: 64,
            page_size: 4,
            row_pages: usize::MAX,
            vocab_size: 100,
            max_room: 1,
            hidden_size: 8,
            image_width: 8,
            n_state_slots: None,
            windows: None,
            long_above: None,
            bidirectional: None,
            block_tokens,
        };
        Rows::new(4, limits)
    }

    /// A row of 40 tokens, whose first page is cached, and a load of its next 28 tokens, which begins within a block.
    fn plan() -> StepPlan {
        let prefix: Arc<[PageId]> = [PageId::new(1)].into();
        let mut run = PageRun::empty();
        run.push(&prefix, 0..1);
        let start = RowStart {
            row: ROW,
            seq: SEQ,
            tokens: (0..40).collect(),
            prompt_tokens: 40,
            sampling: Arc::new(SamplingParams::default()),
            grammar: None,
            vectors: None,
            images: None,
            pooling: None,
            prefix: run,
            state: None,
            draft_texts: Default::default(),
        };
        let load = BlockLoad {
            ticket: Ticket::new(1),
            row: ROW,
            skip_tokens: 4,
            positions: 4..32,
            states: smallvec![],
        };
        let save = BlockSave {
            ticket: Ticket::new(2),
            from: BlockSource::Pages((20..24).map(PageId::new).collect()),
        };
        StepPlan {
            step: StepId::new(1),
            starts: vec![start],
            table: vec![TableDelta::Append {
                row: ROW,
                pages: (2..=10).map(PageId::new).collect(),
            }],
            rows: vec![StepRow {
                row: ROW,
                seq: SEQ,
                work: RowWork::Prefill { positions: 32..40 },
                sample: true,
                logprobs: None,
                saves: smallvec![],
            }],
            copies: Some(Box::new(BlockCopies {
                saves: vec![save],
                loads: vec![load],
            })),
            vision: None,
        }
    }

    #[test]
    fn saves_need_whole_blocks_and_loads_continue_a_prefix() {
        type Edit = fn(&mut BlockCopies);
        let table: [(Edit, &str); 9] = [
            (|_| {}, ""),
            (
                |copies| {
                    copies.loads[0].positions = 0..32;
                    copies.loads[0].skip_tokens = 0;
                },
                "must continue its prefix",
            ),
            (
                |copies| copies.loads[0].positions = 4..30,
                "not whole pages",
            ),
            (
                |copies| copies.loads[0].positions = 4..40,
                "must be computed, not loaded",
            ),
            (
                |copies| copies.loads[0].skip_tokens = 0,
                "not the start of a block",
            ),
            (
                |copies| copies.loads[0].row = RowId::new(2),
                "never started",
            ),
            (
                |copies| copies.loads[0].states = smallvec![StateSlot::new(1)],
                "has a different state",
            ),
            (|copies| copies.loads[0].ticket = Ticket::new(2), "twice"),
            (
                |copies| copies.saves[0].from = BlockSource::Pages(smallvec![PageId::new(1)]),
                "a block has 16",
            ),
        ];
        for (edit, reason) in table {
            let mut plan = plan();
            plan.copies.as_deref_mut().into_iter().for_each(edit);
            match (rows(Some(16)).check(&plan), reason) {
                (Ok(()), "") => {}
                (Err(StepError::Rejected(refusal)), reason) if !reason.is_empty() => {
                    assert!(refusal.contains(reason), "{refusal}");
                }
                (checked, reason) => panic!("{checked:?}, expected {reason:?}"),
            }
        }
        assert!(rows(None).check(&plan()).is_err(), "there is no store");
    }

    #[test]
    fn a_row_continues_where_its_load_ends() {
        let mut with_a_gap = plan();
        with_a_gap.rows[0].work = RowWork::Prefill { positions: 33..40 };
        assert!(rows(Some(16)).check(&with_a_gap).is_err());
    }

    #[test]
    fn a_load_may_span_several_steps() {
        let mut first = plan();
        first.rows.clear();
        let mut rows = rows(Some(16));
        let copies = first.copies.as_mut().expect("the plan has copies");
        copies.loads[0].positions = 4..16;
        rows.check(&first).expect("a load may end within a row");
        rows.start(&first.starts[0]);
        for delta in &first.table {
            rows.edit(delta);
        }
        let load = &first.copies.as_ref().expect("the plan has copies").loads[0];
        rows.load(load);
        let mut second = plan();
        second.step = StepId::new(2);
        second.starts.clear();
        second.table.clear();
        let copies = second.copies.as_mut().expect("the plan has copies");
        copies.loads[0].skip_tokens = 0;
        copies.loads[0].positions = 16..32;
        rows.check(&second).expect("the second load continues");
        let copies = second.copies.as_mut().expect("the plan has copies");
        copies.loads[0].positions = 4..32;
        copies.loads[0].skip_tokens = 4;
        assert!(rows.check(&second).is_err(), "a part is already loaded");
    }
}
