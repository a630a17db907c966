//! Converts a step plan to the lists that CUDA kernels read.

use crate::cuda::list_buffer::{ListBuffer, Section};
use crate::cuda::rotary::list_positions;
use crate::cuda::row_outputs::{Logprobs, RowOutput};
use crate::cuda::samplers::{RowSamplers, StartLists};
use crate::rows::Rows;
use crate::wanted::{WantedOutput, find_wanted};
use souffleur_base::error::StepError;
use souffleur_kernels::cuda::backend::GridToken;
use souffleur_kernels::cuda::params::{Segment, Tile};
use souffleur_kernels::cuda::sampling::{
    DecodeRow, LogprobWork, MAX_TOP, NONE, SampleWork, TableRun,
};
use souffleur_state::prompt_images::is_key;
use souffleur_state::prompt_vectors::VectorRun;
use souffleur_state::sampling::LogprobWish;
use souffleur_state::step::{RowWork, StepPlan, StepRow, TableDelta};

/// Buffers in which a step is laid out, reused by later steps.
#[derive(Default)]
pub(super) struct Layout {
    /// Every list, as uploaded.
    pub(super) lists: ListBuffer,
    /// Indices of the plan's rows in the order of the step's tokens: decodes first.
    pub(super) order: Vec<usize>,
    pub(super) wanted: Vec<WantedOutput>,
    /// One for each entry of `wanted`.
    pub(super) row_outputs: Vec<RowOutput>,
    /// The prompt embeddings that the step reads.
    pub(super) prompt_embeds: Vec<VectorRun>,
    /// The tokens of images, which have 3-D M-RoPE positions.
    pub(super) grid_tokens: Vec<GridToken>,
    decodes: Vec<DecodeRow>,
    segments: Vec<Segment>,
    tiles: Vec<(u32, Tile)>,
    runs: Vec<TableRun>,
    logprobs: Vec<LogprobWork>,
    ids: Vec<u32>,
}

pub(super) struct Lists {
    pub(super) starts: Option<StartLists>,
    pub(super) table_runs: Section<TableRun>,
    pub(super) table_pages: Section<u32>,
    /// Padded to the graph's batch size, if the step runs as a graph.
    pub(super) decode_rows: Section<DecodeRow>,
    /// Rotary positions of all tokens, padded like `decode_rows`; `None` if they are the places in the sequences.
    pub(super) rotary: Option<Section<u32>>,
    /// Places of all tokens in their sequences, divided by the period of queries, padded like `decode_rows`; `None` if
    /// queries are not scaled by position.
    pub(super) periods: Option<Section<u32>>,
    pub(super) prefill_segments: Section<Segment>,
    pub(super) prefill_tokens: Section<u32>,
    pub(super) tiles: Section<Tile>,
    pub(super) wanted_tokens: Section<u32>,
    /// `wanted_tokens` as segments of one query each, if the last layer runs only for them.
    pub(super) reads: Option<Section<Segment>>,
    /// The indices of `wanted`: a range of them selects rows of the last layer's output. Empty if no entry is a state.
    pub(super) wanted_indices: Section<u32>,
    /// One for each entry of `wanted`, padded like `decode_rows`.
    pub(super) sample_works: Section<SampleWork>,
    /// In the order of the rows of logits.
    pub(super) logprob_works: Section<LogprobWork>,
    pub(super) logprob_ids: Section<u32>,
    /// Number of log probabilities; `max_top` is the largest number of tokens ranked for one row.
    pub(super) n_logprobs: usize,
    pub(super) max_top: u32,
    /// Whether the host computes log probabilities of a row.
    pub(super) needs_host: bool,
}

pub(super) struct StepShape {
    pub(super) queries_per_tile: usize,
    pub(super) vocab_size: usize,
    pub(super) padded_rows: usize,
    pub(super) logit_rows: usize,
    /// If the step reads at most this many tokens, its last layer runs only for them.
    pub(super) read_rows: usize,
    /// Whether the model has M-RoPE.
    pub(super) rotates_by_grid: bool,
    /// Positions whose queries have one factor; `None` if queries are not scaled.
    pub(super) query_period: Option<u32>,
}

impl Layout {
    /// Sorts decodes first. Returns the number of decodes and the number of prefill tokens.
    pub(super) fn sort(&mut self, plan: &StepPlan) -> (usize, usize) {
        let decodes = |work: &RowWork| matches!(work, RowWork::Decode { .. });
        let rows = || plan.rows.iter().enumerate();
        self.order.clear();
        self.order
            .extend(rows().filter(|row| decodes(&row.1.work)).map(|row| row.0));
        let n_decode = self.order.len();
        self.order
            .extend(rows().filter(|row| !decodes(&row.1.work)).map(|row| row.0));
        let prefills = plan.rows.iter().filter(|row| !decodes(&row.work));
        let n_prefill = prefills.map(|row| row.work.positions().len()).sum();
        (n_decode, n_prefill)
    }

    /// Lays out a plan that was checked and sorted, and advances the rows.
    pub(super) fn lay_out(
        &mut self,
        plan: &StepPlan,
        rows: &mut Rows,
        samplers: &mut RowSamplers,
        shape: &StepShape,
    ) -> Result<Lists, StepError> {
        self.lists.clear();
        let starts = if plan.starts.is_empty() {
            None
        } else {
            Some(samplers.lay_out(&plan.starts, &mut self.lists)?)
        };
        let (table_runs, table_pages) = self.table(plan, rows);
        let loads = plan.copies.iter().flat_map(|copies| &copies.loads);
        loads.for_each(|load| rows.load(load));
        for work in &plan.rows {
            rows.advance(work);
        }
        let decode_rows = self.decode_rows(plan, shape);
        let rotary = self.rotary(plan, rows, shape);
        let periods = self.periods(plan, shape);
        let (prefill_segments, prefill_tokens) = self.prefills(plan, rows, decode_rows.len());
        let tiles = self.tiles(shape.queries_per_tile);
        let order = self.order.iter();
        let order = order.map(|&work| (work, plan.rows[work].work.positions()));
        find_wanted(plan, order, rows, &mut self.wanted);
        let pools = self.wanted.iter().any(|wanted| wanted.pools);
        if pools {
            // Rows of logits are numbered within parts of a fixed size; states between them would shift the numbers.
            self.wanted.sort_by_key(|wanted| wanted.pools);
        }
        let wanted_tokens = self
            .lists
            .list(self.wanted.iter().map(|wanted| wanted.token_index));
        let reads = self.reads(plan, shape);
        let n_indices = if pools { self.wanted.len() as u32 } else { 0 };
        let wanted_indices = self.lists.list(0..n_indices);
        let sample_works = self.sample_works(plan, shape);
        let (n_logprobs, max_top) = self.list_outputs(plan, rows, shape);
        let needs_host = |output: &RowOutput| matches!(output.logprobs, Logprobs::Host { .. });
        Ok(Lists {
            starts,
            table_runs,
            table_pages,
            decode_rows,
            rotary,
            periods,
            prefill_segments,
            prefill_tokens,
            tiles,
            wanted_tokens,
            reads,
            wanted_indices,
            sample_works,
            logprob_works: self.lists.list(self.logprobs.iter().copied()),
            logprob_ids: self.lists.list(self.ids.iter().copied()),
            n_logprobs,
            max_top,
            needs_host: self.row_outputs.iter().any(needs_host),
        })
    }

    fn table(&mut self, plan: &StepPlan, rows: &mut Rows) -> (Section<TableRun>, Section<u32>) {
        self.runs.clear();
        let first_word = self.lists.begin();
        let mut first_page = 0;
        let mut run = |runs: &mut Vec<TableRun>, row: u32, first_index: usize, n_pages: usize| {
            runs.push(TableRun {
                row,
                first_index: first_index as u32,
                n_pages: n_pages as u32,
                first_page,
            });
            first_page += n_pages as u32;
        };
        for start in &plan.starts {
            rows.start(start);
            if !start.prefix.is_empty() {
                run(&mut self.runs, start.row.get(), 0, start.prefix.len());
                self.lists
                    .extend(start.prefix.iter().map(|page| page.get()));
            }
        }
        for delta in &plan.table {
            let (row, first_index) = (delta.row().get(), rows.edit(delta));
            match delta {
                TableDelta::Append { pages, .. } => {
                    run(&mut self.runs, row, first_index, pages.len());
                    self.lists.extend(pages.iter().map(|page| page.get()));
                }
                TableDelta::Remap { pages, .. } => {
                    run(&mut self.runs, row, first_index, pages.len());
                    self.lists.extend(pages.iter().map(|page| page.get()));
                }
                // The CUDA executor has no window pages: a plan with them is rejected.
                TableDelta::AppendWindows { .. } | TableDelta::Windows { .. } => {}
            }
        }
        let pages = self.lists.end(first_word);
        (self.lists.list(self.runs.iter().copied()), pages)
    }

    fn decode_rows(&mut self, plan: &StepPlan, shape: &StepShape) -> Section<DecodeRow> {
        let rows = self.order.iter().map(|index| &plan.rows[*index]);
        let decodes = rows.filter_map(|row| match row.work {
            RowWork::Decode { position, .. } => Some(DecodeRow {
                row: row.row.get(),
                position,
            }),
            RowWork::Prefill { .. } => None,
        });
        self.decodes.clear();
        self.decodes.extend(decodes);
        let padded = self.decodes.len().max(shape.padded_rows);
        self.decodes.resize(padded, DecodeRow::default());
        self.lists.list(self.decodes.iter().copied())
    }

    /// Without M-RoPE there are none, nor if no row has images. The graphs of a model with M-RoPE always read them.
    fn rotary(&mut self, plan: &StepPlan, rows: &Rows, shape: &StepShape) -> Option<Section<u32>> {
        self.grid_tokens.clear();
        let has_images = |work: &StepRow| rows.row(work.row).images.is_some();
        let reads = shape.padded_rows > 0 || plan.rows.iter().any(has_images);
        if !shape.rotates_by_grid || !reads {
            return None;
        }
        let works = self.order.iter().map(|index| {
            let work = &plan.rows[*index];
            let images = rows.row(work.row).images.as_ref();
            (work.work.positions(), images.map(|images| &*images.table))
        });
        let lists = (&mut self.lists, &mut self.grid_tokens);
        Some(list_positions(works, shape.padded_rows, lists))
    }

    fn periods(&mut self, plan: &StepPlan, shape: &StepShape) -> Option<Section<u32>> {
        let period = shape.query_period?;
        let works = self.order.iter().map(|index| &plan.rows[*index].work);
        let first_word = self.lists.begin();
        let positions = works.flat_map(RowWork::positions);
        self.lists
            .extend(positions.map(|position| position / period));
        let list = self.lists.end(first_word);
        let padding = shape.padded_rows.saturating_sub(list.len());
        self.lists.extend(std::iter::repeat_n(0, padding));
        Some(self.lists.end(first_word))
    }

    fn prefills(
        &mut self,
        plan: &StepPlan,
        rows: &mut Rows,
        first_token: usize,
    ) -> (Section<Segment>, Section<u32>) {
        self.segments.clear();
        self.prompt_embeds.clear();
        let first_word = self.lists.begin();
        let mut first_token = first_token as u32;
        for work in self.order.iter().map(|index| &plan.rows[*index]) {
            let RowWork::Prefill { positions } = &work.work else {
                // The row drops the vectors of its images.
                rows.take_vectors(work, 0, drop);
                continue;
            };
            let range = positions.start as usize..positions.end as usize;
            self.lists
                .extend(rows.row(work.row).inputs(range).iter().copied());
            let runs = &mut self.prompt_embeds;
            rows.take_vectors(work, first_token as usize, |run| runs.push(run));
            self.segments.push(Segment {
                row: work.row.get(),
                first_token,
                n_tokens: positions.len() as u32,
                first_position: positions.start,
            });
            first_token += positions.len() as u32;
        }
        let tokens = self.lists.end(first_word);
        (self.lists.list(self.segments.iter().copied()), tokens)
    }

    /// Sorts tiles by descending context length, so that the tiles that start last are the fastest.
    fn tiles(&mut self, queries_per_tile: usize) -> Section<Tile> {
        self.tiles.clear();
        for (index, segment) in (0..).zip(&self.segments) {
            for first_query in (0..segment.n_tokens).step_by(queries_per_tile) {
                let tile = Tile {
                    segment: index,
                    first_query,
                };
                self.tiles
                    .push((segment.first_position + first_query, tile));
            }
        }
        self.tiles
            .sort_by_key(|(position, _)| std::cmp::Reverse(*position));
        self.lists.list(self.tiles.iter().map(|(_, tile)| *tile))
    }

    fn reads(&mut self, plan: &StepPlan, shape: &StepShape) -> Option<Section<Segment>> {
        let segments = (0..).zip(&self.wanted).map(|(index, wanted)| Segment {
            row: plan.rows[wanted.work].row.get(),
            first_token: index,
            n_tokens: 1,
            first_position: wanted.position as u32,
        });
        (self.wanted.len() <= shape.read_rows).then(|| self.lists.list(segments))
    }

    fn sample_works(&mut self, plan: &StepPlan, shape: &StepShape) -> Section<SampleWork> {
        let row_of = |wanted: &WantedOutput| {
            if wanted.sample {
                plan.rows[wanted.work].row.get()
            } else {
                0
            }
        };
        let rows = self.wanted.iter().map(row_of);
        let padding = shape.padded_rows.saturating_sub(self.wanted.len());
        let works = rows.chain(std::iter::repeat_n(0, padding));
        let works = works
            .zip(0..)
            .map(|(row, index)| unmasked(row, index % shape.logit_rows as u32));
        self.lists.list(works)
    }

    /// Lists the outputs of the rows of logits. Returns the number of log probabilities and the largest number of
    /// tokens ranked for one row.
    fn list_outputs(&mut self, plan: &StepPlan, rows: &Rows, shape: &StepShape) -> (usize, u32) {
        self.row_outputs.clear();
        self.logprobs.clear();
        self.ids.clear();
        let (mut n_logprobs, mut max_top) = (0, 0);
        for (index, wanted) in self.wanted.iter().enumerate() {
            let work = &plan.rows[wanted.work];
            let token = if wanted.sample || wanted.pools {
                0
            } else {
                rows.row(work.row).tokens[wanted.position + 1]
            };
            let logprobs = match &work.logprobs {
                None => Logprobs::Unwanted,
                // The kernel has no log probability for an image.
                Some(wish) if n_ranked(wish, shape.vocab_size) > MAX_TOP || is_key(token) => {
                    let wish = wish.clone();
                    Logprobs::Host { token, wish }
                }
                Some(wish) => {
                    let top = n_ranked(wish, shape.vocab_size);
                    let (first_out, n_ids) = (n_logprobs, wish.token_ids.len());
                    self.logprobs.push(LogprobWork {
                        logits_row: (index % shape.logit_rows) as u32,
                        token,
                        sampled: if wanted.sample { index as u32 } else { NONE },
                        top,
                        first_id: self.ids.len() as u32,
                        n_ids: n_ids as u32,
                        first_out: first_out as u32,
                        reserved: 0,
                    });
                    self.ids.extend(wish.token_ids.iter());
                    n_logprobs += 1 + top as usize + n_ids;
                    max_top = max_top.max(top);
                    Logprobs::Device {
                        first_out,
                        top: top as usize,
                        n_ids,
                    }
                }
            };
            self.row_outputs.push(RowOutput {
                work: wanted.work,
                row: work.row,
                sample: wanted.sample,
                follows_grammar: false,
                logprobs,
            });
        }
        (n_logprobs, max_top)
    }
}

fn n_ranked(wish: &LogprobWish, vocab_size: usize) -> u32 {
    wish.top.min(vocab_size as u32)
}

fn unmasked(row: u32, logits_row: u32) -> SampleWork {
    SampleWork {
        row,
        logits_row,
        mask: NONE,
        may_ban: 1,
    }
}
