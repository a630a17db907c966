//! Splits the scales of stacked 8-bit experts in the same way as their codes.
//!
//! | scales | a scale for |
//! |---|---|
//! | \[experts, blocks of outputs, blocks of inputs\] | a block of an expert |
//! | \[experts, outputs, 1\], \[experts, outputs\] | an output |
//! | \[experts\], \[experts, 1\], \[experts, 1, 1\] | an expert |

use super::scheme::Scheme;
use crate::json_file::load_error;
use crate::weights::checkpoint::Weights;
use crate::weights::entry::Entry;
use souffleur_base::error::LoadError;
use souffleur_kernels::tensor_view::{RowOrder, Stored};

const SUFFIXES: [&str; 2] = ["_scale_inv", "_scale"];

pub(in super::super) struct StackScales {
    whole: Entry,
    experts: usize,
    /// Matrices per expert in the stack.
    parts: usize,
    shape: Vec<usize>,
    /// Whether all matrices of an expert have the same scale.
    is_shared: bool,
}

impl StackScales {
    pub(in super::super) fn of(&self, expert: usize) -> impl Iterator<Item = Entry> {
        let of_expert = self.whole.range.len() / self.experts;
        let bytes = if self.is_shared {
            of_expert
        } else {
            of_expert / self.parts
        };
        let first = self.whole.range.start + expert * of_expert;
        (0..self.parts).map(move |part| {
            let start = if self.is_shared {
                first
            } else {
                first + part * bytes
            };
            Entry {
                file: self.whole.file,
                stored: self.whole.stored.clone(),
                shape: self.shape.clone(),
                range: start..start + bytes,
                order: RowOrder::AsNumbered,
            }
        })
    }
}

impl Weights {
    /// Finds the scales of a stack `[experts, parts * outputs, inputs]`; `None` for a plain stack.
    ///
    /// # Errors
    /// [`LoadError::Format`] for codes that the configuration does not describe, [`LoadError::MissingTensor`],
    /// [`LoadError::WrongShape`].
    pub(in super::super) fn scales_of_stack(
        &mut self,
        name: &str,
        stack: &Entry,
        parts: usize,
    ) -> Result<Option<StackScales>, LoadError> {
        let Err(dtype) = &stack.stored else {
            return Ok(None);
        };
        let block = match self.scheme() {
            Some(Scheme::Fp8 { block }) if dtype == "F8_E4M3" => block,
            Some(Scheme::Int8) if dtype == "I8" => None,
            _ => return Err(self.refused_stack(name, stack.file, dtype)),
        };
        let &[experts, rows, inputs] = stack.shape.as_slice() else {
            return Err(self.refused_stack(name, stack.file, dtype));
        };
        let outputs = rows / parts;
        let blocks = block.map(|[high, wide]| [outputs.div_ceil(high), inputs.div_ceil(wide)]);
        let wanted = match blocks {
            Some([high, wide]) => vec![experts, parts * high, wide],
            None => vec![experts, rows, 1],
        };
        let (scale, whole) = self.take_scales(name, &wanted)?;
        if !matches!(whole.stored, Ok(Stored::Plain(_))) {
            let got = whole.stored.as_ref().err().map_or("blocks", String::as_str);
            let reason = format!("tensor {scale} has dtype {got}, supported: F32, F16 and BF16");
            return Err(load_error(self.files[whole.file].path(), reason));
        }
        let straddling = block.map(|[high, _]| high);
        let straddling = straddling.filter(|high| parts > 1 && !outputs.is_multiple_of(*high));
        let (shape, is_shared) = match (whole.shape.as_slice(), blocks) {
            (found, Some([high, wide])) if found == wanted && straddling.is_none() => {
                (vec![high, wide], false)
            }
            (&[n] | &[n, 1] | &[n, 1, 1], _) if n == experts => (vec![1], true),
            (&[n, m] | &[n, m, 1], _) if n == experts && m == rows => (vec![outputs, 1], false),
            _ => {
                if let Some(high) = straddling {
                    let reason = format!(
                        "tensor {} has {outputs} outputs per matrix, not a multiple of the block size, {high}, so some \
                         blocks span both the gate and the up projection: use a checkpoint that stores each expert's \
                         tensors separately",
                        self.file_name(name)
                    );
                    return Err(load_error(self.files[stack.file].path(), reason));
                }
                return Err(LoadError::WrongShape {
                    file: self.files[whole.file].path().to_owned(),
                    tensor: scale,
                    expected: wanted,
                    got: whole.shape,
                });
            }
        };
        Ok(Some(StackScales {
            whole,
            experts,
            parts,
            shape,
            is_shared,
        }))
    }

    /// Rejects 4-bit stacks, which cannot be split.
    pub(in super::super) fn refuse_packed(&self, name: &str) -> Result<(), LoadError> {
        let codes = ["qweight", "packed", "blocks"];
        let names = codes.iter().flat_map(|codes| {
            [".", "_", ".weight_"].map(|between| format!("{name}{between}{codes}"))
        });
        let mut found = names.filter_map(|name| self.entries.get_key_value(&name));
        match found.next() {
            Some((name, entry)) => {
                let dtype = entry.stored.as_ref().err().map_or("blocks", String::as_str);
                Err(self.refused_stack(name, entry.file, dtype))
            }
            None => Ok(()),
        }
    }

    fn take_scales(
        &mut self,
        stack: &str,
        expected: &[usize],
    ) -> Result<(String, Entry), LoadError> {
        for suffix in SUFFIXES {
            let name = format!("{stack}{suffix}");
            if let Some(entry) = self.entries.remove(&name) {
                return Ok((self.file_name(&name), entry));
            }
        }
        Err(LoadError::MissingTensor {
            file: self.searched().to_owned(),
            tensor: self.file_name(&format!("{stack}{}", SUFFIXES[0])),
            expected: expected.to_vec(),
        })
    }

    fn refused_stack(&self, name: &str, file: usize, dtype: &str) -> LoadError {
        let name = self.file_name(name);
        let reason = format!(
            "tensor {name} holds the matrices of all experts in dtype {dtype}, supported: F32, F16 and BF16, and \
             8-bit codes as quantization_config describes them (fp8, int-quantized); use a checkpoint that stores \
             each expert's tensors separately, or the model in bfloat16"
        );
        load_error(self.files[file].path(), reason)
    }
}
