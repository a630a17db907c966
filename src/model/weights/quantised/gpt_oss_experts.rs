//! Extracts the matrices of gpt-oss experts from stacks, which are transposed or interleave gate and up.
//!
//! | tensor | shape | content |
//! |---|---|---|
//! | `gate_up_proj` | \[experts, hidden, 2 width\] | inputs as rows; gate and up outputs alternate |
//! | `down_proj` | \[experts, width, hidden\] | inputs as rows |
//! | `gate_up_proj_blocks` | \[experts, 2 width, hidden / 32, 16\] U8 | gate and up rows alternate; a byte has two neighbours, the first in its low half |
//! | `gate_up_proj_scales` | \[experts, 2 width, hidden / 32\] U8 | exponents of two, plus 127 |
//! | `down_proj_blocks`, `down_proj_scales` | likewise | |
//! | `gate_up_proj_bias`, `down_proj_bias` | \[experts, 2 width\], \[experts, hidden\] | |

use std::ops::Range;

use super::gpt_oss::{BLOCK, Strided, StridedBytes};
use crate::config::experts::ExpertsConfig;
use crate::json_file::load_error;
use crate::weights::checkpoint::Weights;
use crate::weights::entry::Entry;
use souffleur_base::error::LoadError;
use souffleur_kernels::tensor_view::{RowOrder, Stored};

impl Weights {
    pub(in super::super) fn gpt_oss_expert<'a>(&'a self, name: &str) -> Option<StridedBytes<'a>> {
        let matrix = self.gpt_oss.get(name)?;
        let bytes =
            |(file, range): &(usize, Range<usize>)| &self.files[*file].bytes()[range.clone()];
        Some(StridedBytes {
            matrix,
            codes: bytes(&matrix.codes),
            scales: matrix.scales.as_ref().map_or(&[], bytes),
        })
    }

    /// Extracts matrices and biases of experts from transposed or interleaved stacks.
    ///
    /// # Errors
    /// [`LoadError::WrongShape`] or [`LoadError::Format`] for a stack that differs from the configuration.
    pub fn extract_gpt_oss_experts(
        &mut self,
        experts: &ExpertsConfig,
        hidden: usize,
    ) -> Result<(), LoadError> {
        let width = experts.width;
        for layer in (0..experts.layers.len()).filter(|layer| experts.are_in(*layer)) {
            let module = format!("{}.experts", experts.names.module(layer));
            for (stack, parts, [outputs, inputs]) in [
                ("gate_up_proj", &[0, 1][..], [width, hidden]),
                ("down_proj", &[2], [hidden, width]),
            ] {
                let stack = format!("{module}.{stack}");
                let target = (experts, layer, parts);
                self.extract_stack(&stack, target, [outputs, inputs])?;
                self.extract_biases(&format!("{stack}_bias"), target, outputs)?;
            }
        }
        Ok(())
    }

    fn extract_stack(
        &mut self,
        stack: &str,
        (experts, layer, parts): (&ExpertsConfig, usize, &[usize]),
        [outputs, inputs]: [usize; 2],
    ) -> Result<(), LoadError> {
        let (count, all) = (experts.count(), parts.len() * outputs);
        let (codes, scales, dtype) = match self.entries.remove(stack) {
            Some(entry) => {
                let name = stack.to_owned();
                self.expect(&name, &entry, &[count, inputs, all])?;
                let dtype = match &entry.stored {
                    Ok(Stored::Plain(dtype)) => *dtype,
                    _ => return Err(self.wrong_type(&name, &entry, "F32, F16 and BF16")),
                };
                (entry, None, Some(dtype))
            }
            None => {
                let name = |part: &str| format!("{stack}_{part}");
                let Some(codes) = self.entries.remove(&name("blocks")) else {
                    return Ok(());
                };
                if !inputs.is_multiple_of(BLOCK) {
                    let reason = format!(
                        "tensor {} has {inputs} inputs, expected a multiple of {BLOCK}, the size of a block",
                        name("blocks")
                    );
                    return Err(load_error(self.files[codes.file].path(), reason));
                }
                let n = inputs / BLOCK;
                self.expect(&name("blocks"), &codes, &[count, all, n, BLOCK / 2])?;
                let scales = self.entries.remove(&name("scales"));
                let scales = scales.ok_or_else(|| LoadError::MissingTensor {
                    file: self.searched().to_owned(),
                    tensor: name("scales"),
                    expected: vec![count, all, n],
                })?;
                self.expect(&name("scales"), &scales, &[count, all, n])?;
                for (part, entry) in [("blocks", &codes), ("scales", &scales)] {
                    if entry.stored != Err("U8".to_owned()) {
                        return Err(self.wrong_type(&name(part), entry, "U8"));
                    }
                }
                (codes, Some(scales), None)
            }
        };
        for expert in 0..count {
            let part_of = |entry: &Entry| {
                let bytes = entry.range.len() / count;
                let start = entry.range.start + expert * bytes;
                (entry.file, start..start + bytes)
            };
            let projections = experts.names.projections(layer, expert);
            for (first, part) in parts.iter().enumerate() {
                let matrix = Strided {
                    codes: part_of(&codes),
                    scales: scales.as_ref().map(part_of),
                    dtype,
                    shape: [outputs, inputs],
                    first,
                    step: parts.len(),
                };
                self.gpt_oss
                    .insert(format!("{}.weight", projections[*part]), matrix);
            }
        }
        Ok(())
    }

    fn extract_biases(
        &mut self,
        name: &str,
        (experts, layer, parts): (&ExpertsConfig, usize, &[usize]),
        outputs: usize,
    ) -> Result<(), LoadError> {
        let Some(entry) = self.entries.remove(name) else {
            return Ok(());
        };
        let (count, step) = (experts.count(), parts.len());
        self.expect(name, &entry, &[count, step * outputs])?;
        let bytes = entry.range.len() / count;
        let element = bytes / (step * outputs);
        for expert in 0..count {
            let projections = experts.names.projections(layer, expert);
            for (first, part) in parts.iter().enumerate() {
                let start = entry.range.start + expert * bytes;
                let bias = Entry {
                    file: entry.file,
                    stored: entry.stored.clone(),
                    shape: vec![outputs],
                    range: start + first * element..start + bytes,
                    order: RowOrder::Every { step },
                };
                self.entries
                    .insert(format!("{}.bias", projections[*part]), bias);
            }
        }
        Ok(())
    }

    fn expect(&self, name: &str, entry: &Entry, expected: &[usize]) -> Result<(), LoadError> {
        if entry.shape == expected {
            return Ok(());
        }
        Err(LoadError::WrongShape {
            file: self.files[entry.file].path().to_owned(),
            tensor: name.to_owned(),
            expected: expected.to_vec(),
            got: entry.shape.clone(),
        })
    }

    fn wrong_type(&self, name: &str, entry: &Entry, supported: &str) -> LoadError {
        let got = match &entry.stored {
            Ok(Stored::Plain(dtype)) => dtype.name(),
            Ok(Stored::Blocks(block)) => block.name(),
            Err(name) => name,
        };
        let reason = format!("tensor {name} has dtype {got}, supported: {supported}");
        load_error(self.files[entry.file].path(), reason)
    }
}
