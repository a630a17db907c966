//! Begins and ends the block copies of a step, in order with its kernel launches.

use std::collections::VecDeque;

use super::held::HeldBuffers;
use super::{BlockCopier, StepBlocks, StepFailure};
use crate::cuda::{CudaExecutor, DeviceStep, to_load_error};
use crate::host::BlockPort;
use souffleur_base::error::LoadError;
use souffleur_kernels::cuda::driver::{DriverError, Stream};
use souffleur_state::step::{StepPlan, TableDelta};

impl CudaExecutor {
    /// Connects the executor to a KV store with blocks of `block_tokens` tokens.
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

    /// Begins a step's saves before its kernels are launched. The kernels wait for all saves of pages that the step is
    /// granted.
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
        wait_for_saves(plan, &self.in_flight, &step, &self.compute)?;
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
                .get_or_insert_with(|| HeldBuffers::new(&blocks.loading.stream));
            blocks.load(load, held, (&self.backend, &self.compute))?;
        }
        Ok(())
    }

    /// Gives a step's saved blocks and loaded buffers to the store, after all other work of the step has ended.
    pub(in crate::cuda) fn end_blocks(&mut self, step: StepBlocks) -> Result<(), DriverError> {
        let Some(blocks) = &mut self.blocks else {
            return Ok(());
        };
        if let Some(loads) = step.loads {
            // The copies have ended: the step's results were read, which the device writes after copies and scatters.
            drop(loads.release());
        }
        let Some(saves) = step.saves else {
            return Ok(());
        };
        saves.copied.synchronize()?;
        for (buffer, ticket) in saves.buffers.release().into_iter().zip(saves.tickets) {
            // A store that has shut down keeps no block.
            let _ = buffer.keep(ticket);
        }
        blocks.spare_events.push(saves.copied);
        Ok(())
    }
}

/// Makes a step's kernels wait for saves, by this step or earlier ones, of pages that the step is granted.
fn wait_for_saves(
    plan: &StepPlan,
    in_flight: &VecDeque<DeviceStep>,
    step: &StepBlocks,
    compute: &Stream,
) -> Result<(), DriverError> {
    let earlier = in_flight.iter().map(|step| &step.blocks);
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
