//! Runs texts alone, and measures attention: for quality checks and calibration.

use std::sync::Arc;

use super::CpuExecutor;
use souffleur_base::error::StepError;
use souffleur_base::ids::{PageId, RowId, SeqId, StateSlot, StepId};
use souffleur_kernels::cpu::calibration::Calibration;
use souffleur_kernels::cpu::recall::Recall;
use souffleur_state::pool::pages::PageRun;
use souffleur_state::sampling::{LogprobWish, SamplingParams};
use souffleur_state::step::{RowStart, RowWork, StateStart, StepPlan, StepRow, TableDelta};

impl CpuExecutor {
    /// Runs a prompt alone, `chunk` tokens in a step, and passes the logits of each position to `on_logits`, in order.
    ///
    /// Overwrites the K/V of the first pages, the first row and the first state: not for executors that serve requests.
    ///
    /// # Errors
    /// [`StepError::Rejected`] when the prompt is empty, does not fit, or holds a token beyond the vocabulary.
    pub fn score(
        &mut self,
        prompt: &[u32],
        chunk: usize,
        on_logits: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), StepError> {
        let (row, seq) = (RowId::new(1), SeqId::new(0));
        let n_pages = prompt.len().div_ceil(self.page_size);
        let greedy = SamplingParams {
            temperature: 0.0,
            // The row never grows beyond the prompt.
            max_new_tokens: 0,
            ..Default::default()
        };
        let start = RowStart {
            row,
            seq,
            tokens: prompt.into(),
            prompt_tokens: prompt.len() as u32,
            sampling: greedy.into(),
            grammar: None,
            vectors: None,
            images: None,
            pooling: None,
            prefix: PageRun::empty(),
            state: self.keeps_states().then_some(StateStart {
                live: StateSlot::new(1),
                from: None,
            }),
            draft_texts: Default::default(),
        };
        let pages = (1..=n_pages as u32).map(PageId::new).collect();
        let mut plan = StepPlan {
            step: StepId::new(0),
            starts: vec![start],
            table: vec![TableDelta::Append { row, pages }],
            rows: Vec::new(),
            copies: None,
            vision: None,
        };
        if self.rows.has_windows() {
            let pages = (1..=n_pages as u32).map(PageId::new).collect();
            plan.table.push(TableDelta::AppendWindows { row, pages });
        }
        let wish = LogprobWish {
            start: Some(0),
            ..Default::default()
        };
        let wish = Arc::new(wish);
        for first in (0..prompt.len().max(1)).step_by(chunk.max(1)) {
            let end = prompt.len().min(first + chunk.max(1));
            plan.rows = vec![StepRow {
                row,
                seq,
                work: RowWork::Prefill {
                    positions: first as u32..end as u32,
                },
                sample: end == prompt.len(),
                logprobs: Some(wish.clone()),
                saves: Default::default(),
            }];
            self.run_observed(&plan, &mut |_, position, logits| {
                on_logits(position as usize, logits);
            })?;
            plan.starts.clear();
            plan.table.clear();
        }
        Ok(())
    }

    /// For measurements: fills keys, values and labels of all pages with noise.
    pub fn fill_with_noise(&mut self) {
        self.backend.fill_with_noise();
    }

    /// For measurements: while disabled, double sparsity is not used, and all queries see all keys.
    pub fn disable_sparse_attention(&mut self, is_disabled: bool) {
        self.backend.disable_sparse_attention(is_disabled);
    }

    /// Runs texts one after another, like [`Self::score`], and sums the magnitudes of query and key channels.
    pub fn calibrate(&mut self, texts: &[&[u32]], chunk: usize) -> Result<Calibration, StepError> {
        self.backend.calibrate(); // Starts new sums, which the second call returns.
        for text in texts {
            self.score(text, chunk, &mut |_, _| {})?;
        }
        Ok(self.backend.calibrate().unwrap_or_default())
    }

    /// Runs texts like [`Self::calibrate`], and measures the share of the highest-scored keys that the labels select.
    pub fn recall(
        &mut self,
        texts: &[&[u32]],
        chunk: usize,
        recall: Recall,
    ) -> Result<Option<f64>, StepError> {
        self.backend.count_recall(Some(recall));
        for text in texts {
            self.score(text, chunk, &mut |_, _| {})?;
        }
        let counted = self.backend.count_recall(None);
        Ok(counted.and_then(|recall| recall.share()))
    }
}
