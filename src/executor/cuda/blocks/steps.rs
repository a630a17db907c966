//! Orders a step's block copies among its launches.

use std::collections::VecDeque;

use super::held::Held;
use super::{BlockCopier, StepBlocks, StepFailure};
use crate::cuda::{CudaExecutor, DeviceStep, to_load_error};
use crate::host::BlockPort;
use souffleur_base::error::LoadError;
use souffleur_kernels::cuda::driver::{DriverError, Stream};
use souffleur_state::step::{StepPlan, TableDelta};

impl CudaExecutor {
    /// The executor, with a store that blocks of `block_tokens` are saved to and loaded from.
    ///
    /// # Errors
    /// Blocks are not whole pages, the kernel cannot copy the model's heads, or the device lacks memory for staging.
    pub fn with_store(
        mut self,
        block_tokens: usize,
        port: Box<dyn BlockPort>,
    ) -> Result<Self, LoadError> {
        let bytes = self.backend.block_bytes(block_tokens);
        let bytes = bytes.map_err(|reason| {
            LoadError::Device(format!("the KV store cannot be used: {reason}"))
        })?;
        let copier = BlockCopier::new(&self.device, port, (block_tokens, bytes));
        self.blocks = Some(copier.map_err(to_load_error)?);
        self.rows.allow_copies(block_tokens);
        Ok(self)
    }

    /// Begins the saves of a step before its own work is launched, and makes that work wait for all saves of pages that
    /// the step gets.
    pub(in crate::cuda) fn save_blocks(
        &mut self,
        plan: &StepPlan,
    ) -> Result<StepBlocks, DriverError> {
        let Some(blocks) = &mut self.blocks else {
            return Ok(StepBlocks::default());
        };
        blocks.pinned.begin_launch();
        let saves = match &plan.copies {
            Some(copies) if !copies.saves.is_empty() => {
                blocks.save(&copies.saves, &self.backend, &self.compute)?
            }
            _ => None,
        };
        let step = StepBlocks { saves, loads: None };
        wait_for_saves(plan, &self.under_way, &step, &self.compute)?;
        Ok(step)
    }

    /// Copies the blocks that a step loads to the pages of its rows, after the edits of the page table.
    pub(in crate::cuda) fn load_blocks(
        &mut self,
        plan: &StepPlan,
        step: &mut StepBlocks,
    ) -> Result<(), StepFailure> {
        let (Some(blocks), Some(copies)) = (&mut self.blocks, &plan.copies) else {
            return Ok(());
        };
        for load in &copies.loads {
            let held = step
                .loads
                .get_or_insert_with(|| Held::new(&blocks.loading.stream));
            blocks.load(load, held, (&self.backend, &self.compute))?;
        }
        Ok(())
    }

    /// Hands a step's saved blocks to the store and returns the loaded ones, after all of its other work has ended.
    pub(in crate::cuda) fn end_blocks(&mut self, step: StepBlocks) -> Result<(), DriverError> {
        let Some(blocks) = &mut self.blocks else {
            return Ok(());
        };
        if let Some(loads) = step.loads {
            // The scatters run after the copies, and the step's results come after the scatters.
            drop(loads.release());
        }
        let Some(saves) = step.saves else {
            return Ok(());
        };
        saves.copied.synchronize()?;
        for (buffer, ticket) in saves.buffers.release().into_iter().zip(saves.tickets) {
            // A store that has ended keeps nothing.
            let _ = buffer.keep(ticket);
        }
        blocks.copied.push(saves.copied);
        Ok(())
    }
}

/// Makes a step's work wait for the saves, its own and earlier ones, of pages that the step gets and may write to.
fn wait_for_saves(
    plan: &StepPlan,
    under_way: &VecDeque<DeviceStep>,
    step: &StepBlocks,
    compute: &Stream,
) -> Result<(), DriverError> {
    let earlier = under_way.iter().map(|step| &step.blocks);
    let saves = earlier.chain([step]).filter_map(|step| step.saves.as_ref());
    for saves in saves {
        let mut appended = plan.table.iter().filter_map(|delta| match delta {
            TableDelta::Append { pages, .. } => Some(pages),
            _ => None,
        });
        if appended.any(|pages| pages.iter().any(|page| saves.pages.contains(page))) {
            compute.wait(&saves.copied)?;
        }
    }
    Ok(())
}
