//! Checks a step plan before the step writes anything: rejects a plan that contradicts itself or the rows' state.

mod copies;
mod images;
mod limits;
mod states;
mod windows;

use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};

pub(super) use self::limits::Limits;
use crate::check::states::Slots;
use crate::check::windows::RowWindows;
use crate::row::Row;
use souffleur_base::ids::{PageId, RowId, SeqId, StateSlot, Ticket};
use souffleur_state::step::{RowStart, RowWork, StepPlan, StepRow, TableDelta};

/// A row as it will be once the plan's starts and table edits are applied.
#[derive(Clone, Copy)]
struct PlannedRow {
    seq: SeqId,
    n_pages: usize,
    n_tokens: usize,
    sampled_tokens: usize,
    may_have_drafts: bool,
    surplus: usize,
    computed: usize,
    has_prompt_embeds: bool,
    /// Positions before this must come from the cache.
    cached_until: usize,
    /// The slot of the row's recurrent state.
    live: Option<StateSlot>,
    windows: RowWindows,
    starts: bool,
    has_work: bool,
}

type Tickets = FxHashSet<Ticket>;

/// Working memory of the checks, reused so that steps allocate nothing.
#[derive(Default)]
pub(super) struct Scratch {
    planned_rows: FxHashMap<RowId, PlannedRow>,
    slots: Slots,
    tickets: Tickets,
}

struct Check<'a> {
    rows: &'a [Option<Row>],
    limits: &'a Limits,
    planned_rows: &'a mut FxHashMap<RowId, PlannedRow>,
    slots: &'a mut Slots,
    tickets: &'a mut Tickets,
}

/// Checks a plan; the error names the fault and, for a fault in a single row, the row.
pub(super) fn check(
    plan: &StepPlan,
    rows: &[Option<Row>],
    limits: &Limits,
    scratch: &mut Scratch,
) -> Result<(), String> {
    scratch.planned_rows.clear();
    scratch.slots.clear();
    scratch.tickets.clear();
    let mut check = Check {
        rows,
        limits,
        planned_rows: &mut scratch.planned_rows,
        slots: &mut scratch.slots,
        tickets: &mut scratch.tickets,
    };
    if let Some(copies) = &plan.copies {
        check.saves(copies)?;
    }
    for start in &plan.starts {
        check
            .start(start)
            .map_err(|reason| format!("row {} cannot start: {reason}", start.row))?;
    }
    for delta in &plan.table {
        check.delta(delta)?;
    }
    for load in plan.copies.iter().flat_map(|copies| &copies.loads) {
        check.load(load).map_err(|reason| {
            format!(
                "the load with ticket {} into row {} is invalid: {reason}",
                load.ticket, load.row
            )
        })?;
    }
    for work in &plan.rows {
        check
            .work(work)
            .map_err(|reason| format!("row {}, sequence {}: {reason}", work.row, work.seq))?;
    }
    images::check_ends(plan, rows, limits)?;
    scratch.slots.check_sources()
}

impl PlannedRow {
    /// The positions that the work may compute. A plan does not know the drafts that the step before has accepted, so a
    /// decode may begin later than planned.
    fn positions(&self, work: &RowWork, limits: &Limits) -> Result<Range<usize>, String> {
        let (position, room) = match work {
            RowWork::Prefill { positions } => {
                return Ok(positions.start as usize..positions.end as usize);
            }
            RowWork::Decode { position, room } => (*position as usize, *room),
        };
        if !(1..=limits.max_room).contains(&room) {
            return Err(format!(
                "a decode has room for {room} query tokens, limits are 1 to {}",
                limits.max_room
            ));
        }
        let is_late = position < self.computed && position + self.surplus >= self.computed;
        let first = if is_late { self.computed } else { position };
        Ok(first..first + room as usize)
    }

    fn check_tokens(&self, work: &StepRow, first: usize, end: usize) -> Result<(), String> {
        match work.work {
            RowWork::Prefill { .. } if end > self.n_tokens => Err(format!(
                "a prefill ends at position {end}, but the row has {} tokens",
                self.n_tokens
            )),
            RowWork::Prefill { .. }
                if work.sample && (end < self.n_tokens || self.sampled_tokens > 0) =>
            {
                Err(format!(
                    "a prefill samples after {end} of {} tokens: it may only sample at the last, before any decode",
                    self.n_tokens
                ))
            }
            RowWork::Decode { .. }
                if first + 1 != self.n_tokens + self.sampled_tokens || self.sampled_tokens == 0 =>
            {
                let n_known = self.n_tokens + self.sampled_tokens;
                Err(format!(
                    "a decode is at position {first}, but the row has {n_known} tokens, {} of them sampled",
                    self.sampled_tokens
                ))
            }
            _ => Ok(()),
        }
    }
}

impl Check<'_> {
    fn planned_row(&mut self, row: RowId) -> Result<&mut PlannedRow, String> {
        let current = self
            .rows
            .get(row.index())
            .and_then(Option::as_ref)
            .map(|current| PlannedRow {
                seq: current.seq,
                n_pages: current.n_pages,
                n_tokens: current.tokens.len(),
                sampled_tokens: current.sampled_tokens,
                may_have_drafts: current.may_have_drafts,
                surplus: current.surplus,
                computed: current.computed,
                has_prompt_embeds: current.has_prompt_embeds,
                cached_until: current.cached_until(),
                live: current.live,
                windows: RowWindows {
                    n_pages: current.n_windows,
                    first: current.first_window,
                },
                starts: false,
                has_work: false,
            });
        match (self.planned_rows.entry(row), current) {
            (std::collections::hash_map::Entry::Occupied(entry), _) => Ok(entry.into_mut()),
            (std::collections::hash_map::Entry::Vacant(entry), Some(current)) => {
                Ok(entry.insert(current))
            }
            (_, None) => Err(format!("row {row} was never started")),
        }
    }

    fn start(&mut self, start: &RowStart) -> Result<(), String> {
        let max_row = self.rows.len() - 1;
        if !(1..=max_row).contains(&start.row.index()) {
            return Err(format!("the row id is outside 1 to {max_row}"));
        }
        let n_tokens = start.tokens.len();
        let computed = start.prefix.len() * self.limits.page_size;
        if n_tokens == 0 || start.prompt_tokens as usize > n_tokens || computed >= n_tokens {
            return Err(format!(
                "the row has {n_tokens} tokens, expected all {} of the prompt, and more than the {computed} cached ones",
                start.prompt_tokens
            ));
        }
        let images = start.images.as_deref();
        images::check_tokens(&start.tokens, images, self.limits)?;
        images::check(start, self.limits)?;
        self.prompt_embeds(start)?;
        self.pages(start.prefix.iter())?;
        self.fits(start.prefix.len())?;
        self.slots.start(start, self.limits.n_state_slots)?;
        let planned = PlannedRow {
            seq: start.seq,
            n_pages: start.prefix.len(),
            n_tokens,
            sampled_tokens: 0,
            may_have_drafts: start.sampling.speculative_num_draft_tokens.unwrap_or(1) > 1,
            surplus: 0,
            computed,
            has_prompt_embeds: start.vectors.is_some(),
            cached_until: images.map_or(0, |images| images.cached_until() as usize),
            live: start.state.map(|state| state.live),
            windows: RowWindows::after_prefix(start.prefix.len(), self.limits),
            starts: true,
            has_work: false,
        };
        match self.planned_rows.insert(start.row, planned) {
            None => Ok(()),
            Some(_) => Err("the row starts twice in one step".to_owned()),
        }
    }

    fn prompt_embeds(&self, start: &RowStart) -> Result<(), String> {
        let Some(prompt_embeds) = &start.vectors else {
            return Ok(());
        };
        let has = (prompt_embeds.len(), prompt_embeds.width());
        let wanted = (start.prompt_tokens as usize, self.limits.hidden_size);
        if has == wanted {
            Ok(())
        } else {
            Err(format!(
                "the row has {} prompt embeddings of size {}, expected {} of {}",
                has.0, has.1, wanted.0, wanted.1
            ))
        }
    }

    fn pages(&self, mut pages: impl Iterator<Item = PageId>) -> Result<(), String> {
        let n_pages = self.limits.n_pages;
        match pages.find(|page| !(1..=n_pages).contains(&page.index())) {
            None => Ok(()),
            Some(page) => Err(format!(
                "page {page} does not exist, pages are 1 to {n_pages}"
            )),
        }
    }

    fn fits(&self, n_pages: usize) -> Result<(), String> {
        match self.limits.row_pages {
            max if n_pages > max => Err(format!(
                "{n_pages} pages are too many: a row has at most {max}"
            )),
            _ => Ok(()),
        }
    }

    fn delta(&mut self, delta: &TableDelta) -> Result<(), String> {
        match delta {
            TableDelta::Append { row, pages } => {
                self.pages(pages.iter().copied())
                    .map_err(|reason| format!("row {row} cannot grow: {reason}"))?;
                let planned = self.planned_row(*row)?;
                planned.n_pages += pages.len();
                let n_pages = planned.n_pages;
                self.fits(n_pages)
                    .map_err(|reason| format!("row {row} cannot grow: {reason}"))?;
            }
            TableDelta::Remap { row, from, pages } => {
                self.pages(pages.iter())
                    .map_err(|reason| format!("row {row} cannot be remapped: {reason}"))?;
                let n_pages = self.planned_row(*row)?.n_pages;
                let end = *from as usize + pages.len();
                if end > n_pages {
                    return Err(format!(
                        "row {row} has {n_pages} pages, so pages {from} to {end} cannot be remapped"
                    ));
                }
            }
            TableDelta::AppendWindows { row, pages } => {
                let limits = self.limits;
                self.planned_row(*row)?
                    .windows
                    .append(pages, limits)
                    .map_err(|reason| format!("row {row} cannot grow: {reason}"))?;
            }
            TableDelta::Windows { row, from, pages } => {
                let limits = self.limits;
                self.planned_row(*row)?
                    .windows
                    .remap(*from as usize, pages, limits)
                    .map_err(|reason| format!("row {row} {reason}"))?;
            }
        }
        Ok(())
    }

    fn work(&mut self, work: &StepRow) -> Result<(), String> {
        let limits = self.limits;
        let page_size = limits.page_size;
        let row = self.planned_row(work.row)?;
        if row.seq != work.seq {
            return Err(format!("the row holds sequence {}", row.seq));
        }
        if std::mem::replace(&mut row.has_work, true) {
            return Err("the row has two pieces of work in one step".to_owned());
        }
        let Range { start: first, end } = row.positions(&work.work, limits)?;
        if first >= end {
            return Err(format!("positions {first} to {end} are empty"));
        }
        if end > row.n_pages * page_size {
            let slots = row.n_pages * page_size;
            return Err(format!(
                "the positions up to {end} need pages, but the row's {} pages hold {slots} tokens",
                row.n_pages
            ));
        }
        row.windows.check(first, end, limits)?;
        if row.has_prompt_embeds && first != row.computed {
            return Err(format!(
                "the work begins at position {first}, expected {}: a row with prompt embeddings computes each position once",
                row.computed
            ));
        }
        images::check_cached(first, row.cached_until)?;
        match row.live {
            Some(live) => {
                if first != row.computed {
                    return Err(format!(
                        "the work begins at position {first}, expected {}: a row with a state computes each position once",
                        row.computed
                    ));
                }
                let starts = row.starts;
                let is_decode = work.work.is_decode();
                // Copied at a page end that the decode may not reach.
                let last_save = if is_decode && row.may_have_drafts {
                    row.n_pages * page_size
                } else {
                    end
                };
                self.slots
                    .work(work, (live, starts), last_save, self.limits.n_state_slots)?;
            }
            None if !work.saves.is_empty() => {
                return Err("the plan saves a state, but the row has none".to_owned());
            }
            None => {}
        }
        let row = self.planned_row(work.row)?;
        if first > row.computed {
            return Err(format!(
                "the work begins at position {first}, but the row has only {} computed positions",
                row.computed
            ));
        }
        row.check_tokens(work, first, end)
    }
}
