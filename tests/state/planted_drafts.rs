//! Tests that [`crate::scheduler_world`] finds planted faults in the treatment of drafts. A fault changes plans or
//! results between scheduler and executor; the same requests without it keep every guarantee.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use souffleur_base::ids::{PageId, RowId, SeqId};
use souffleur_state::plan::Settle;
use souffleur_state::pool::pages::PageRun;
use souffleur_state::pool::state_pool::SavedState;
use souffleur_state::step::{RowResult, RowVerdict, RowWork, StepPlan, TableDelta};

use crate::drafts::{ROOM, WINDOW, setup, with_states, with_windows};
use crate::panics;
use crate::scheduler_world::{Ask, Setup, VOCAB, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftFault {
    /// An ended sequence publishes its last token, which was not fed to the model: its slot has a rejected draft.
    PublishRejected,
    AcceptRejected,
    /// The scheduler takes the greatest possible length for the length.
    KeepHighest,
    GrowByAPageTooFew,
    LeaveWindowsByHighest,
    /// A copy of the state has tokens past its position.
    SavePastAccepted,
    /// Pages are for one step's room only, though the step before it has drafts, too.
    ReserveOneStep,
}

/// A fault, with the facts about the executor's rows that it needs.
pub struct Planted {
    fault: DraftFault,
    page_size: usize,
    rows: HashMap<RowId, PlantedRow>,
    /// How often the fault was planted.
    pub n_planted: usize,
}

#[derive(Default)]
struct PlantedRow {
    n_pages: usize,
    /// The latest decode, its room, and the part of it that was not used.
    last_step: u64,
    room: u32,
    unused: u32,
    withheld: SmallVec<[PageId; 2]>,
}

impl Planted {
    fn new(fault: DraftFault, page_size: u32) -> Self {
        Self {
            fault,
            page_size: page_size as usize,
            rows: HashMap::new(),
            n_planted: 0,
        }
    }

    pub fn alter_plan(&mut self, plan: &mut StepPlan) {
        for start in &plan.starts {
            let row = PlantedRow {
                n_pages: start.prefix.len(),
                ..PlantedRow::default()
            };
            self.rows.insert(start.row, row);
        }
        self.return_withheld(plan);
        for delta in &plan.table {
            if let (TableDelta::Append { pages, .. }, Some(row)) =
                (delta, self.rows.get_mut(&delta.row()))
            {
                row.n_pages += pages.len();
            }
        }
        let step = plan.step.get();
        for work in &mut plan.rows {
            let RowWork::Decode { position, room } = &mut work.work else {
                continue;
            };
            let Some(row) = self.rows.get_mut(&work.row) else {
                continue;
            };
            let is_ahead = row.last_step + 1 == step;
            match self.fault {
                DraftFault::KeepHighest if is_ahead && row.unused > 0 => {
                    *position += row.unused;
                    self.n_planted += 1;
                }
                DraftFault::GrowByAPageTooFew if *room > 1 => {
                    self.n_planted += pop_pages(&mut plan.table, work.row, 1).len();
                }
                DraftFault::ReserveOneStep if *room > 1 => {
                    let needed = (*position + *room) as usize;
                    let excess = row.n_pages.saturating_sub(needed.div_ceil(self.page_size));
                    row.withheld = pop_pages(&mut plan.table, work.row, excess);
                    row.n_pages -= row.withheld.len();
                    self.n_planted += row.withheld.len();
                }
                DraftFault::LeaveWindowsByHighest if is_ahead && row.room > 1 => {
                    let highest = (*position + row.room - 1) as usize;
                    let n_left = (highest + 1).saturating_sub(WINDOW) / self.page_size;
                    plan.table.push(left_windows(work.row, n_left));
                    self.n_planted += usize::from(n_left > 0);
                }
                _ => {}
            }
        }
    }

    /// Appends the pages that the row lacked in its previous step.
    fn return_withheld(&mut self, plan: &mut StepPlan) {
        for (id, row) in &mut self.rows {
            if !row.withheld.is_empty() {
                let pages = std::mem::take(&mut row.withheld);
                plan.table.insert(0, TableDelta::Append { row: *id, pages });
            }
        }
    }

    pub fn alter_results(&mut self, plan: &StepPlan, results: &mut [RowResult]) {
        for (work, result) in plan.rows.iter().zip(results) {
            let RowWork::Decode { room, .. } = work.work else {
                continue;
            };
            if let Some(row) = self.rows.get_mut(&work.row) {
                row.last_step = plan.step.get();
                row.room = room;
                row.unused = room - result.accepted;
            }
            let is_rejected = result.accepted < 1 + result.drafts.n_tokens;
            if self.fault == DraftFault::AcceptRejected
                && is_rejected
                && result.verdict == RowVerdict::Open
            {
                let draft = result.tokens.last().map_or(0, |last| (last + 1) % VOCAB);
                result.tokens.push(draft);
                result.accepted += 1;
                self.n_planted += 1;
            }
        }
    }

    /// `whole_of` returns the tokens of a sequence that has ended.
    pub fn alter_settlements(
        &mut self,
        settlements: &mut [Settle],
        whole_of: impl Fn(SeqId) -> Vec<u32>,
    ) {
        for settle in settlements {
            let Settle::Release(release) = settle else {
                continue;
            };
            let Some(key) = &mut release.key else {
                continue;
            };
            match self.fault {
                DraftFault::PublishRejected => {
                    let whole = whole_of(release.seq);
                    let n_pages = release.protected_pages + release.private.len();
                    let has_pages = n_pages * self.page_size >= whole.len();
                    if key.len + 1 == whole.len() && has_pages {
                        key.len += 1;
                        key.tokens = whole.into();
                        self.n_planted += 1;
                    }
                }
                DraftFault::SavePastAccepted => {
                    let page_size = self.page_size;
                    let first = key.prompt_len + page_size;
                    let in_output = |saved: &&mut SavedState| saved.position >= first;
                    for saved in release.states.iter_mut().filter(in_output) {
                        saved.position -= page_size;
                        self.n_planted += 1;
                    }
                }
                _ => {}
            }
        }
    }
}

/// Removes the last `n` pages that a plan appends to a row, or all if there are fewer.
fn pop_pages(table: &mut [TableDelta], row: RowId, n: usize) -> SmallVec<[PageId; 2]> {
    let mut popped = SmallVec::new();
    for delta in table.iter_mut().rev() {
        if let TableDelta::Append { row: of, pages } = delta
            && *of == row
        {
            while popped.len() < n
                && let Some(page) = pages.pop()
            {
                popped.insert(0, page);
            }
        }
    }
    popped
}

/// Unmaps the first window pages of a row.
fn left_windows(row: RowId, n_left: usize) -> TableDelta {
    let dummies: Arc<[PageId]> = vec![PageId::new(0); n_left].into();
    let mut pages = PageRun::empty();
    pages.push(&dummies, 0..n_left as u32);
    TableDelta::Windows {
        row,
        from: 0,
        pages: Box::new(pages),
    }
}

/// Runs requests with drafts, and then turns that continue their outputs; most of them in steps of several rows.
fn converse(world: &mut World) {
    let ask = |prompt: Vec<u32>| Ask {
        num_draft_tokens: Some(ROOM),
        prompt,
        // Most outputs end with EOS, after less than this.
        max_new_tokens: 400,
        ..Ask::default()
    };
    let prompt = |number: u32| -> Vec<u32> {
        let tokens = (0..20 + number).map(|at| at * 7 + number * 3);
        tokens.collect()
    };
    world.submit_all(&mut (0..8).map(|number| ask(prompt(number))));
    world.drain();
    let turns: Vec<Ask> = world
        .views
        .iter()
        .map(|view| ask([&view.ask.prompt[..], &view.delivered, &[9, 8, 7]].concat()))
        .collect();
    world.submit_all(&mut turns.into_iter());
    world.assert_clean();
}

/// Asserts that the checks find the fault, and find nothing without it.
fn check(fault: DraftFault, setup: &Setup) {
    let mut world = World::new(setup.clone());
    converse(&mut world);
    let seen = world.drafts_seen;
    assert!(seen.accepted[2] > 0 && seen.rejected[2] > 0, "{seen:?}");
    let n_planted = Cell::new(0);
    let is_found = panics(|| {
        let mut world = World::new(setup.clone());
        world.planted = Some(Planted::new(fault, setup.page_size));
        let run = panics(|| converse(&mut world));
        let planted = world.planted.as_ref();
        n_planted.set(planted.map_or(0, |planted| planted.n_planted));
        assert!(!run);
    });
    assert!(n_planted.get() > 0, "{fault:?} was not planted");
    let page_size = setup.page_size;
    assert!(is_found, "{fault:?} with pages of {page_size}");
}

#[test]
fn planted_publication_of_a_rejected_token_is_found() {
    check(DraftFault::PublishRejected, &setup(1));
}

#[test]
fn planted_acceptance_of_a_rejected_token_is_found() {
    for page_size in [1, 4, 16] {
        check(DraftFault::AcceptRejected, &setup(page_size));
    }
}

#[test]
fn planted_highest_bound_after_a_rejection_is_found() {
    for page_size in [1, 4, 16] {
        check(DraftFault::KeepHighest, &setup(page_size));
    }
}

#[test]
fn planted_growth_by_a_page_too_few_is_found() {
    for page_size in [1, 4] {
        check(DraftFault::GrowByAPageTooFew, &setup(page_size));
    }
}

#[test]
fn planted_windows_left_by_the_highest_bound_are_found() {
    for page_size in [1, 4] {
        check(DraftFault::LeaveWindowsByHighest, &with_windows(page_size));
    }
}

#[test]
fn planted_state_past_the_accepted_tokens_is_found() {
    for page_size in [1, 4] {
        check(DraftFault::SavePastAccepted, &with_states(page_size));
    }
}

#[test]
fn planted_reserve_of_one_steps_room_is_found() {
    for page_size in [1, 4] {
        check(DraftFault::ReserveOneStep, &setup(page_size));
    }
}
