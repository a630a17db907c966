//! Computes token masks for the CUDA sampler, for rows whose output follows a grammar.
//!
//! Grammars run on the host and need the previous step's tokens. A step with such rows launches its forward pass
//! without a graph. While the device computes, the host waits for the previous step's tokens, advances the grammars and
//! writes the masks; then the device samples. Steps without grammars are not delayed.

use crate::cuda::grammars::RowGrammars;
use crate::cuda::row_outputs::SAMPLED_WORDS;
use crate::cuda::stage::Upload;
use crate::cuda::{CudaExecutor, DeviceStep};
use souffleur_base::ids::RowId;
use souffleur_kernels::cuda::backend::CudaFailure;
use souffleur_kernels::cuda::driver::{DevicePtr, DriverError};
use souffleur_kernels::cuda::sampling::{SampleWork, Sampled};
use souffleur_state::sampling;
use souffleur_state::step::{RowVerdict, StepPlan};

pub(super) struct MaskedWorks {
    pub(super) uploaded: Upload,
    pub(super) works: DevicePtr<SampleWork>,
    pub(super) masks: Masks,
}

#[derive(Clone, Copy)]
pub(super) struct Masks {
    /// All masks, contiguous.
    pub(super) words: DevicePtr<u32>,
    pub(super) mask_words: usize,
}

impl Masks {
    pub(super) const NONE: Self = Self {
        words: DevicePtr::NULL,
        mask_words: 0,
    };
}

impl CudaExecutor {
    /// Sets the grammars of the rows that start. If such a row already has a grammar, all grammars are advanced first.
    pub(super) fn start_grammars(&mut self, plan: &StepPlan) -> Result<(), DriverError> {
        let starts = plan.starts.iter();
        if starts.clone().any(|start| self.grammars.has(start.row)) {
            self.advance_grammars()?;
        }
        starts.for_each(|start| self.grammars.start(start, self.vocab_size));
        Ok(())
    }

    /// Waits for the tokens that the steps in flight sample, and advances the grammars by them.
    fn advance_grammars(&mut self) -> Result<(), DriverError> {
        for step in &mut self.in_flight {
            if step.has_outcomes || !step.follows_grammars {
                continue;
            }
            let words = self.readbacks.words(&step.readback)?;
            let sampled = &words[..step.row_outputs.len() * SAMPLED_WORDS];
            step.record_outcomes(bytemuck::cast_slice(sampled), &mut self.grammars);
        }
        Ok(())
    }

    /// Writes the masks of a step, while the device computes its logits.
    pub(super) fn masked_works(
        &mut self,
        mut works: Vec<SampleWork>,
    ) -> Result<MaskedWorks, CudaFailure> {
        self.advance_grammars()?;
        let mut masks: Vec<u32> = Vec::new();
        let mut mask_words = 0;
        for work in &mut works {
            let row = RowId::new(work.row);
            let Some(grammar) = self.grammars.get_mut(row).filter(|_| work.row != 0) else {
                continue;
            };
            grammar.prepare();
            let Some(mask) = grammar.mask() else {
                continue;
            };
            mask_words = mask.words().len();
            work.mask = (masks.len() / mask_words) as u32;
            // Banned tokens stay allowed if the mask allows no other token.
            work.may_ban = u32::from(mask.allows_other_than(self.samplers.bans(row)));
            masks.extend_from_slice(mask.words());
        }
        let works_len = works.len() * size_of::<SampleWork>() / size_of::<u32>();
        let mut words: Vec<u32> = bytemuck::cast_slice(&works).to_vec();
        words.extend(masks);
        let uploaded = self.mask_uploads.upload(&words, &self.compute)?;
        Ok(MaskedWorks {
            works: uploaded.start.cast(),
            masks: Masks {
                words: uploaded.start.add(works_len),
                mask_words,
            },
            uploaded,
        })
    }
}

impl DeviceStep {
    /// Advances the grammars of the step's rows by the sampled tokens, and records the outcome of each row.
    pub(super) fn record_outcomes(&mut self, sampled: &[Sampled], grammars: &mut RowGrammars) {
        for (output, sampled) in self.row_outputs.iter().zip(sampled) {
            if !output.sample {
                continue;
            }
            let sampled = sampling::Sampled {
                token: sampled.token,
                nan: sampled.is_nan(),
            };
            // Another sequence, with another grammar, may have the row by now.
            let grammar = if output.follows_grammar {
                grammars.get_mut(output.row)
            } else {
                None
            };
            self.rows[output.work].verdict = RowVerdict::of(sampled, grammar);
        }
        self.has_outcomes = true;
    }
}
