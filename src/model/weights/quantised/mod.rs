//! Quantised safetensors matrices (FP8, INT8, GPTQ, AWQ, compressed-tensors): lookup, checks, and conversion at load.
//!
//! | scheme | tensors of a module | value |
//! |---|---|---|
//! | fp8, float-quantized | `weight` E4M3; `weight_scale_inv` or `weight_scale` for blocks, rows or the matrix | code x scale |
//! | int-quantized | `weight` I8, `weight_scale` for rows, groups of inputs or the matrix | code x scale |
//! | gptq | `qweight` I32 \[in/8, out\], `qzeros` I32 \[groups, out/8\], `scales` \[groups, out\], `g_idx` \[in\] | s (q - z - 1), gptq_v2: s (q - z) |
//! | awq | `qweight` I32 \[in, out/8\], `qzeros` I32 \[groups, out/8\], `scales` \[groups, out\] | s (q - z) |
//! | pack-quantized | `weight_packed` I32 \[out, in/8\], `weight_scale` \[out, groups\], `weight_zero_point` I32 \[out/8, groups\] | s (q - z), without zero points s (q - 8) |
//!
//! The first two are converted to floats, the others to blocks of [`BlockType::Affine4`], whose scales are f16, or to
//! f32 if a backend does not support these blocks and the scales are not f16. A module with a plain `weight` stays
//! plain, even if the configuration lists it as quantised.

mod affine;
pub(super) mod gpt_oss;
mod gpt_oss_experts;
pub(super) mod part_names;
pub(super) mod part_of;
mod scaled;
mod scales;
pub(crate) mod scheme;
mod stacked;
mod tensors;

use std::num::NonZero;
use std::thread;

use self::affine::AffineCodes;
use self::gpt_oss::StridedBytes;
use self::scaled::ScaledCodes;
pub use self::scheme::Scheme;
use self::tensors::Module;
use super::checkpoint::Weights;
use crate::json_file::load_error;
use souffleur_base::error::LoadError;
use souffleur_kernels::blocks::BlockType;
use souffleur_kernels::dtype::Dtype;
use souffleur_kernels::tensor_view::{RowOrder, Stored, TensorView};

const MIN_ROWS_PER_CORE: usize = 64;

pub(super) const CODE_PARTS: [&str; 2] = ["qweight", "weight_packed"];

pub enum MatrixSource<'a> {
    Plain(TensorView<'a>),
    Quantised(QuantisedMatrix<'a>),
}

/// A matrix that is converted at load: a quantised one, or an expert of gpt-oss.
pub struct QuantisedMatrix<'a> {
    codes: Codes<'a>,
    order: RowOrder,
    shape: &'a [usize; 2],
    file_bytes: usize,
}

enum Codes<'a> {
    Scaled(ScaledCodes<'a>),
    Affine(AffineCodes<'a>),
    GptOss(StridedBytes<'a>),
}

#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub dtype: Dtype,
    /// Whether products read [`BlockType::Affine4`] natively.
    pub keeps_blocks: bool,
}

pub struct Converted<'a> {
    stored: Stored,
    shape: &'a [usize; 2],
    rows: Vec<u8>,
}

impl Weights {
    /// The blocks of the converted matrix; `None` if missing or converted to floats.
    pub(super) fn quantised_blocks(&self, name: &str) -> Option<BlockType> {
        match Module::find(self, self.stored_matrix(name))? {
            (_, Scheme::Int4(..)) => Some(BlockType::Affine4),
            (_, Scheme::Fp8 { .. } | Scheme::Int8) => None,
        }
    }

    pub fn has_codes(&self) -> bool {
        let is_coded = |name: &String| {
            let part = name.rsplit_once('.').map(|(_, part)| part);
            part.is_some_and(|part| CODE_PARTS.contains(&part))
        };
        self.entries.keys().any(is_coded)
    }

    /// The error for 4-bit codes that the configuration does not describe.
    pub(super) fn undescribed_codes(&self, name: &str) -> Option<LoadError> {
        if self.entries.contains_key(name) {
            return None;
        }
        let module = name.strip_suffix(".weight")?;
        let mut names = CODE_PARTS.iter().map(|part| format!("{module}.{part}"));
        let codes = names.find(|name| self.entries.contains_key(name))?;
        let problem = match self.scheme {
            Some(scheme) => format!("but the model's quantization_config describes {scheme}"),
            None => "but there is neither a quantization_config in config.json nor a quantize_config.json".to_owned(),
        };
        let reason = format!(
            "tensor {} holds 4-bit codes, {problem}: use the configuration that belongs to these weights",
            self.file_name(&codes)
        );
        let file = &self.files[self.entries[&codes].file];
        Some(load_error(file.path(), reason))
    }

    pub(super) fn is_quantised(&self, name: &str) -> bool {
        Module::find(self, name).is_some()
    }

    /// The name of the quantised matrix with the codes of `name`: `name`, or a fused matrix.
    pub(super) fn stored_matrix<'n>(&'n self, name: &'n str) -> &'n str {
        self.parts.get(name).map_or(name, |part| &part.whole)
    }

    /// Finds a matrix, quantised or not, and checks all its tensors.
    ///
    /// # Errors
    /// [`LoadError::MissingTensor`], [`LoadError::WrongShape`] or [`LoadError::Format`], with the tensor's name.
    pub fn matrix<'a>(
        &'a self,
        name: &str,
        shape: &'a [usize; 2],
    ) -> Result<MatrixSource<'a>, LoadError> {
        if let Some(matrix) = self.gpt_oss_expert(name) {
            return Ok(MatrixSource::Quantised(QuantisedMatrix {
                codes: Codes::GptOss(matrix),
                order: RowOrder::AsNumbered,
                shape,
                file_bytes: self.bytes_of(name).unwrap_or(0),
            }));
        }
        let (whole_shape, order) = match self.parts.get(name) {
            Some(part) => (part.shape, part.order),
            None => (*shape, RowOrder::AsNumbered),
        };
        match Module::find(self, self.stored_matrix(name)) {
            None => match self.undescribed_codes(name) {
                Some(error) => Err(error),
                None => Ok(MatrixSource::Plain(self.tensor(name, shape)?)),
            },
            Some((module, scheme)) => {
                let codes = match scheme {
                    Scheme::Fp8 { .. } | Scheme::Int8 => {
                        Codes::Scaled(ScaledCodes::find(&module, scheme, whole_shape)?)
                    }
                    Scheme::Int4(packing, group) => {
                        Codes::Affine(AffineCodes::find(&module, packing, group, whole_shape)?)
                    }
                };
                Ok(MatrixSource::Quantised(QuantisedMatrix {
                    codes,
                    order,
                    shape,
                    file_bytes: self.bytes_of(name).unwrap_or(0),
                }))
            }
        }
    }
}

impl<'a> MatrixSource<'a> {
    pub fn file_bytes(&self) -> usize {
        match self {
            Self::Plain(view) => view.bytes.len(),
            Self::Quantised(matrix) => matrix.file_bytes,
        }
    }

    /// Converts a quantised matrix, on all cores; `None` for a plain one.
    pub fn converted(&self, target: Target) -> Option<Converted<'a>> {
        match self {
            Self::Plain(_) => None,
            Self::Quantised(matrix) => Some(matrix.converted(target)),
        }
    }
}

impl<'a> QuantisedMatrix<'a> {
    fn converted(&self, target: Target) -> Converted<'a> {
        let dtype = target.dtype;
        let stored = match &self.codes {
            Codes::Scaled(_) => Stored::Plain(dtype),
            Codes::Affine(affine) if !target.keeps_blocks && !affine.fits_blocks() => {
                Stored::Plain(Dtype::F32)
            }
            Codes::Affine(_) => Stored::Blocks(BlockType::Affine4),
            Codes::GptOss(matrix) => matrix.stored(),
        };
        let &[outputs, inputs] = self.shape;
        let row_bytes = stored.row_bytes(inputs);
        let mut rows = vec![0; outputs * row_bytes];
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        // All cores but the last convert the same number of whole tiles.
        let per_core = outputs.div_ceil(cores).max(MIN_ROWS_PER_CORE);
        let per_core = per_core.next_multiple_of(affine::TILE);
        thread::scope(|scope| {
            let mut parts = rows.chunks_mut(per_core * row_bytes).enumerate();
            let first_part = parts.next();
            let convert = |index: usize, out: &mut [u8]| {
                let first = index * per_core;
                let rows = (first, self.order);
                match (&self.codes, stored) {
                    (Codes::Scaled(scaled), _) => scaled.convert(rows, dtype, out),
                    (Codes::Affine(affine), Stored::Plain(_)) => affine.widen(rows, out),
                    (Codes::Affine(affine), Stored::Blocks(_)) => affine.convert(rows, out),
                    (Codes::GptOss(matrix), _) => matrix.convert(first, out),
                }
            };
            for (index, out) in parts {
                scope.spawn(move || convert(index, out));
            }
            if let Some((index, out)) = first_part {
                convert(index, out);
            }
        });
        Converted {
            stored,
            shape: self.shape,
            rows,
        }
    }
}

impl Converted<'_> {
    pub fn view(&self) -> TensorView<'_> {
        TensorView {
            stored: self.stored,
            shape: self.shape,
            bytes: &self.rows,
            order: RowOrder::AsNumbered,
        }
    }
}
