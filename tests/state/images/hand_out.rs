//! Checks the vectors that rows get: a row computes its positions in order, and each position of an image gets its own
//! vector, once.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use souffleur_base::ids::{RowId, SeqId};
use souffleur_state::prompt_images::PromptImages;
use souffleur_state::step::{RowStart, RowWork, StepPlan};

use super::prompts::Prompt;

struct HeldRow {
    seq: SeqId,
    /// The request's number.
    number: usize,
    /// Tokens with K/V after the steps planned so far.
    computed: u32,
    images: Option<Arc<PromptImages>>,
}

#[derive(Default)]
pub struct HandOut {
    rows: HashMap<RowId, HeldRow>,
    /// Where each request's row has arrived.
    progress: HashMap<usize, u32>,
    /// The requests, in the order of their rows' starts.
    pub starts: Vec<usize>,
    /// Rows that start with a part of an image from the cache.
    pub starts_inside: usize,
    /// Rows that start again after they had computed a part of an image.
    pub restarts_inside: usize,
    /// Chunks that end inside of an image.
    pub ends_inside: usize,
}

impl HandOut {
    /// Takes a plan. The requests' numbers are their seeds.
    pub fn take<'a>(
        &mut self,
        plan: &StepPlan,
        page_size: usize,
        prompt_of: impl Fn(usize) -> &'a Prompt,
    ) {
        for start in &plan.starts {
            self.start(start, page_size, &prompt_of);
        }
        for load in plan.copies.iter().flat_map(|copies| &copies.loads) {
            let row = self.rows.get_mut(&load.row).expect("the row has started");
            assert_eq!(row.computed, load.positions.start);
            row.computed = load.positions.end;
            self.progress.insert(row.number, row.computed);
        }
        for work in &plan.rows {
            let RowWork::Prefill { positions } = &work.work else {
                continue;
            };
            let row = self.rows.get_mut(&work.row).expect("the row has started");
            assert_eq!((row.seq, row.computed), (work.seq, positions.start));
            let prompt = prompt_of(row.number);
            let expected = prompt.vectors_at(positions.clone());
            let number = row.number;
            assert_eq!(row.handed(positions.clone()), expected, "request {number}");
            row.computed = positions.end;
            self.progress.insert(number, positions.end);
            self.ends_inside += usize::from(prompt.is_inside(positions.end));
        }
    }

    fn start<'a>(
        &mut self,
        start: &RowStart,
        page_size: usize,
        prompt_of: impl Fn(usize) -> &'a Prompt,
    ) {
        let number = start.sampling.sampling_seed.expect("the request's number") as usize;
        let computed = (start.prefix.len() * page_size) as u32;
        let prompt = prompt_of(number);
        let before = self.progress.insert(number, computed);
        self.restarts_inside += usize::from(before.is_some_and(|before| prompt.is_inside(before)));
        self.starts_inside += usize::from(prompt.is_inside(computed));
        self.starts.push(number);
        let row = HeldRow {
            seq: start.seq,
            number,
            computed,
            images: start.images.clone(),
        };
        self.rows.insert(start.row, row);
    }
}

impl HeldRow {
    /// The positions that get vectors, with the picture and the place in it that each vector tells.
    fn handed(&self, positions: Range<u32>) -> Vec<(u32, u8, u32)> {
        let mut handed = Vec::new();
        let Some(images) = &self.images else {
            return handed;
        };
        images.for_each_run(positions.clone(), 0, |run| {
            for (token, index) in (run.first_token..).zip(run.vectors.clone()) {
                let value = run.prompt.values(index..index + 1);
                handed.push((
                    positions.start + token as u32,
                    value[0] as u8,
                    value[1] as u32,
                ));
            }
        });
        handed
    }
}
