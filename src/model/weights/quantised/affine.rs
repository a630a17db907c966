//! 4-bit groups with scale and zero point (GPTQ, AWQ, compressed-tensors), converted to Affine4 blocks or f32.

use half::f16;

use super::scales::GroupScales;
use super::scheme::{Group, Packing};
use super::tensors::{Module, Part};
use souffleur_base::error::LoadError;
use souffleur_kernels::blocks::BlockType;
use souffleur_kernels::tensor_view::RowOrder;

/// Outputs converted together: as many as an AWQ word has.
pub const TILE: usize = 8;
/// Inputs of a block, and codes in a word.
const BLOCK: usize = 32;
const CODES: usize = 8;
/// The nibble of each output in an AWQ word.
const AWQ_NIBBLES: [usize; TILE] = [0, 4, 1, 5, 2, 6, 3, 7];

pub struct AffineCodes<'a> {
    packing: Packing,
    codes: Words<'a>,
    scales: GroupScales<'a>,
    zeros: Option<Words<'a>>,
    outputs: usize,
    inputs: usize,
    group: usize,
}

#[derive(Clone, Copy, Default)]
struct GroupParams {
    scale: f32,
    zero: u8,
}

/// Little-endian words, unaligned.
#[derive(Clone, Copy)]
struct Words<'a>(&'a [[u8; 4]]);

impl<'a> Words<'a> {
    fn of(part: Part<'a>) -> Self {
        Self(part.bytes().as_chunks().0)
    }

    fn get(self, index: usize) -> u32 {
        u32::from_le_bytes(self.0[index])
    }

    fn nibble(self, index: usize, nibble: usize) -> u8 {
        (self.get(index) >> (4 * nibble) & 15) as u8
    }
}

/// Receives a block: row, block in the row, the group's scale and zero point, codes.
type TakeBlock<'t> = dyn FnMut(usize, usize, GroupParams, &[u8; BLOCK / 2]) + 't;

impl<'a> AffineCodes<'a> {
    pub fn find(
        module: &Module<'a>,
        packing: Packing,
        group: Group,
        [outputs, inputs]: [usize; 2],
    ) -> Result<Self, LoadError> {
        let group = group.size(inputs);
        let (codes, scales, zeros) = match packing {
            Packing::Gptq { .. } | Packing::Awq => ("qweight", "scales", "qzeros"),
            Packing::CompressedTensors { .. } => {
                ("weight_packed", "weight_scale", "weight_zero_point")
            }
        };
        let word_outputs = outputs.div_ceil(CODES);
        let codes = module.required(codes, &[outputs, inputs / CODES])?;
        check_width(codes, group, [outputs, inputs], packing)?;
        let groups = inputs / group;
        let (code_shape, scale_shape, zero_shape) = match packing {
            Packing::Gptq { .. } => (
                [inputs / CODES, outputs],
                [groups, outputs],
                [groups, word_outputs],
            ),
            Packing::Awq => (
                [inputs, word_outputs],
                [groups, outputs],
                [groups, word_outputs],
            ),
            Packing::CompressedTensors { .. } => (
                [outputs, inputs / CODES],
                [outputs, groups],
                [word_outputs, groups],
            ),
        };
        if codes.shape() != code_shape {
            return Err(codes.wrong_shape(&code_shape));
        }
        let codes = codes.of_dtype("I32")?;
        let scales = module.required(scales, &scale_shape)?;
        if scales.shape() != scale_shape {
            return Err(scales.wrong_shape(&scale_shape));
        }
        let zeros = match packing {
            Packing::CompressedTensors { has_zeros: false } => None,
            _ => Some(module.exact(zeros, &zero_shape, "I32")?),
        };
        check_order(module, inputs, group)?;
        check_stated_shape(module, [outputs, inputs])?;
        Ok(Self {
            packing,
            codes: Words::of(codes),
            scales: GroupScales::of(scales)?,
            zeros: zeros.map(Words::of),
            outputs,
            inputs,
            group,
        })
    }

    /// Whether Affine4 blocks store the scales exactly.
    pub fn fits_blocks(&self) -> bool {
        self.scales.are_half()
    }

    /// Fills `out` with rows of blocks. `rows` is the first row, and the order of rows.
    pub fn convert(&self, rows: (usize, RowOrder), out: &mut [u8]) {
        let block_bytes = BlockType::Affine4.bytes();
        let row_bytes = BlockType::Affine4.row_bytes(self.inputs);
        self.walk(
            rows,
            out.len() / row_bytes,
            &mut |row, block, params, codes| {
                let out = &mut out[row * row_bytes + block * block_bytes..][..block_bytes];
                out[..2].copy_from_slice(&f16::from_f32(params.scale).to_le_bytes());
                out[2] = params.zero;
                out[3..].copy_from_slice(codes);
            },
        );
    }

    /// Like `convert`, but writes rows of f32, which represent the scales exactly.
    pub fn widen(&self, rows: (usize, RowOrder), out: &mut [u8]) {
        let words = out.as_chunks_mut::<4>().0;
        let n_rows = words.len() / self.inputs;
        self.walk(rows, n_rows, &mut |row, block, params, codes| {
            let out = &mut words[row * self.inputs + block * BLOCK..][..BLOCK];
            let zero = f32::from(params.zero);
            let value = |code: u8| (params.scale * (f32::from(code) - zero)).to_le_bytes();
            let (low, high) = out.split_at_mut(BLOCK / 2);
            for ((low, high), code) in low.iter_mut().zip(high).zip(codes) {
                *low = value(code & 15);
                *high = value(code >> 4);
            }
        });
    }

    /// Visits the blocks of `rows` rows from `first` on, in `order`.
    fn walk(&self, (first, order): (usize, RowOrder), rows: usize, take: &mut TakeBlock<'_>) {
        let mut row = 0;
        while row < rows {
            let stored = order.stored_row(first + row);
            let max_run = (TILE - stored % TILE).min(rows - row);
            let follow = |n: &usize| order.stored_row(first + row + n) == stored + n;
            let run = (0..max_run).take_while(follow).count();
            self.walk_within_tile(stored, run, &mut |n, block, params, codes| {
                take(row + n, block, params, codes);
            });
            row += run;
        }
    }

    /// Like `walk`, for consecutive stored rows of one tile.
    fn walk_within_tile(&self, first: usize, rows: usize, take: &mut TakeBlock<'_>) {
        let before = first % TILE;
        let mut row_params = [GroupParams::default(); TILE];
        for block in 0..self.inputs / BLOCK {
            let input = block * BLOCK;
            if input.is_multiple_of(self.group) {
                for (row, params) in row_params[..rows].iter_mut().enumerate() {
                    *params = self.params(first + row, input / self.group);
                }
            }
            let codes = self.codes(first - before, before + rows, block);
            for (row, codes) in codes[before..before + rows].iter().enumerate() {
                take(row, block, row_params[row], codes);
            }
        }
    }

    fn params(&self, output: usize, group: usize) -> GroupParams {
        let groups = self.inputs / self.group;
        let by_group = group * self.outputs + output;
        let (word, column) = (output / CODES, output % CODES);
        let word_outputs = self.outputs.div_ceil(CODES);
        let (scale, zero_at) = match self.packing {
            Packing::Gptq { .. } | Packing::Awq => (by_group, group * word_outputs + word),
            Packing::CompressedTensors { .. } => (output * groups + group, word * groups + group),
        };
        let nibble = match self.packing {
            Packing::Awq => AWQ_NIBBLES[column],
            Packing::Gptq { .. } | Packing::CompressedTensors { .. } => column,
        };
        let offset = match self.packing {
            Packing::Gptq { zero_offset } => zero_offset,
            Packing::Awq | Packing::CompressedTensors { .. } => 0,
        };
        let zero = self
            .zeros
            .map_or(8, |zeros| zeros.nibble(zero_at, nibble) + offset);
        let scale = self.scales.get(scale);
        GroupParams { scale, zero }
    }

    /// The codes of one block of each row in a tile. Low nibbles are the first sixteen inputs.
    fn codes(&self, first: usize, rows: usize, block: usize) -> [[u8; BLOCK / 2]; TILE] {
        const WORDS: usize = BLOCK / CODES;
        let mut out = [[0; BLOCK / 2]; TILE];
        let word_outputs = self.outputs.div_ceil(CODES);
        match self.packing {
            Packing::Awq => {
                let word = |input: usize| {
                    let input = block * BLOCK + input;
                    self.codes.get(input * word_outputs + first / CODES)
                };
                let words: [u32; BLOCK] = std::array::from_fn(word);
                let (low, high) = words.split_at(BLOCK / 2);
                for (out, nibble) in out.iter_mut().zip(AWQ_NIBBLES) {
                    let shift = 4 * nibble;
                    for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
                        *out = (low >> shift & 15 | (high >> shift & 15) << 4) as u8;
                    }
                }
            }
            Packing::Gptq { .. } | Packing::CompressedTensors { .. } => {
                for (row, out) in out[..rows].iter_mut().enumerate() {
                    let output = first + row;
                    let words: [u64; WORDS] = std::array::from_fn(|word| {
                        let word = block * WORDS + word;
                        spread(self.codes.get(match self.packing {
                            Packing::CompressedTensors { .. } => {
                                output * (self.inputs / CODES) + word
                            }
                            Packing::Gptq { .. } | Packing::Awq => word * self.outputs + output,
                        }))
                    });
                    let (low, high) = out.split_at_mut(CODES);
                    low.copy_from_slice(&(words[0] | words[2] << 4).to_le_bytes());
                    high.copy_from_slice(&(words[1] | words[3] << 4).to_le_bytes());
                }
            }
        }
        out
    }
}

/// Spreads eight nibbles to bytes.
fn spread(nibbles: u32) -> u64 {
    let x = u64::from(nibbles);
    let x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    let x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f
}

/// Checks that groups divide the inputs, and that outputs packed into words fill whole words.
fn check_width(
    codes: Part<'_>,
    group: usize,
    [outputs, inputs]: [usize; 2],
    packing: Packing,
) -> Result<(), LoadError> {
    if group == 0 || !group.is_multiple_of(BLOCK) || !inputs.is_multiple_of(group) {
        let reason = format!(
            "has {inputs} inputs in groups of {group}, supported: group sizes that are multiples of {BLOCK} and divide \
             the number of inputs; use the float16 or bfloat16 model"
        );
        return Err(codes.error(reason));
    }
    let needs_words = !matches!(packing, Packing::CompressedTensors { .. });
    if needs_words && !outputs.is_multiple_of(CODES) {
        let reason = format!(
            "has {outputs} outputs, supported: multiples of {CODES}; use the float16 or bfloat16 model"
        );
        return Err(codes.error(reason));
    }
    Ok(())
}

/// Checks that each group has consecutive inputs (no act-order).
fn check_order(module: &Module<'_>, inputs: usize, group: usize) -> Result<(), LoadError> {
    for name in ["g_idx", "weight_g_idx"] {
        let Some(order) = module.part(name) else {
            continue;
        };
        if order.shape() != [inputs] {
            return Err(order.wrong_shape(&[inputs]));
        }
        let groups = order.integers()?;
        let other = groups
            .iter()
            .enumerate()
            .find(|(input, found)| **found != (input / group) as i64);
        if let Some((input, found)) = other {
            let reason = format!(
                "puts input {input} into group {found}, supported: group {} (consecutive groups of {group} inputs); \
                 use a model quantised without reordering (desc_act or actorder)",
                input / group
            );
            return Err(order.error(reason));
        }
    }
    Ok(())
}

/// Checks the shape that compressed-tensors stores as a tensor.
fn check_stated_shape(module: &Module<'_>, shape: [usize; 2]) -> Result<(), LoadError> {
    let Some(stated) = module.part("weight_shape") else {
        return Ok(());
    };
    let sizes = stated.integers()?;
    if sizes != shape.map(|size| size as i64) {
        return Err(stated.error(format!("is {sizes:?}, expected {shape:?}")));
    }
    Ok(())
}
