//! 8-bit codes (FP8, INT8) with scales for blocks, rows, groups or the matrix.

use half::{bf16, f16};

use super::scheme::Scheme;
use super::tensors::{Module, Part};
use souffleur_base::error::LoadError;
use souffleur_kernels::dtype::Dtype;
use souffleur_kernels::tensor_view::RowOrder;

pub struct ScaledCodes<'a> {
    codes: &'a [u8],
    inputs: usize,
    values: Box<[f32; 256]>,
    scales: Scales,
}

struct Scales {
    values: Vec<f32>,
    /// Outputs and inputs that share a scale.
    block: [usize; 2],
    columns: usize,
}

impl<'a> ScaledCodes<'a> {
    pub fn find(module: &Module<'a>, scheme: Scheme, shape: [usize; 2]) -> Result<Self, LoadError> {
        let (dtype, value, block): (_, fn(u8) -> f32, _) = match scheme {
            Scheme::Fp8 { block } => ("F8_E4M3", e4m3, block),
            Scheme::Int8 | Scheme::Int4(..) => ("I8", |code| f32::from(code as i8), None),
        };
        let codes = module.exact("weight", &shape, dtype)?;
        let inverse = module.part("weight_scale_inv");
        let scale = match inverse.or_else(|| module.part("weight_scale")) {
            Some(scale) => scale,
            None => module.required("weight_scale", &expected(shape, block))?,
        };
        Ok(Self {
            codes: codes.bytes(),
            inputs: shape[1],
            values: Box::new(std::array::from_fn(|code| value(code as u8))),
            scales: Scales::of(scale, shape, block)?,
        })
    }

    /// Fills `out` with rows from `first` on, in `order`.
    pub fn convert(&self, (first, order): (usize, RowOrder), dtype: Dtype, out: &mut [u8]) {
        let mut row_values = vec![0f32; self.inputs];
        let rows = out.chunks_exact_mut(self.inputs * dtype.bytes());
        for (index, out) in rows.enumerate() {
            let row = order.stored_row(first + index);
            let scales = self.scales.row(row);
            let codes = &self.codes[row * self.inputs..][..self.inputs];
            let width = self.scales.block[1];
            let spans = row_values.chunks_mut(width).zip(codes.chunks(width));
            for ((values, codes), scale) in spans.zip(scales) {
                for (value, code) in values.iter_mut().zip(codes) {
                    *value = self.values[*code as usize] * scale;
                }
            }
            narrow(&row_values, dtype, out);
        }
    }
}

impl Scales {
    fn of(
        part: Part<'_>,
        [outputs, inputs]: [usize; 2],
        block: Option<[usize; 2]>,
    ) -> Result<Self, LoadError> {
        let (block, columns) = match (part.shape(), block) {
            (&[rows, columns], Some([high, wide]))
                if rows == outputs.div_ceil(high) && columns == inputs.div_ceil(wide) =>
            {
                ([high, wide], columns)
            }
            ([] | [1] | [1, 1], _) => ([outputs, inputs], 1),
            (&[rows], _) if rows == outputs => ([1, inputs], 1),
            (&[rows, columns], _)
                if rows == outputs && columns > 0 && inputs.is_multiple_of(columns) =>
            {
                ([1, inputs / columns], columns)
            }
            _ => return Err(part.wrong_shape(&expected([outputs, inputs], block))),
        };
        Ok(Self {
            values: part.floats()?,
            block,
            columns,
        })
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.values[row / self.block[0] * self.columns..][..self.columns]
    }
}

fn expected([outputs, inputs]: [usize; 2], block: Option<[usize; 2]>) -> [usize; 2] {
    match block {
        Some([high, wide]) => [outputs.div_ceil(high), inputs.div_ceil(wide)],
        None => [outputs, 1],
    }
}

fn narrow(values: &[f32], dtype: Dtype, out: &mut [u8]) {
    let pairs = out.as_chunks_mut::<2>().0.iter_mut().zip(values);
    match dtype {
        Dtype::BF16 => pairs.for_each(|(out, x)| *out = bf16::from_f32(*x).to_le_bytes()),
        Dtype::F16 => pairs.for_each(|(out, x)| *out = f16::from_f32(*x).to_le_bytes()),
        Dtype::F32 => {
            let words = out.as_chunks_mut::<4>().0.iter_mut().zip(values);
            words.for_each(|(out, x)| *out = x.to_le_bytes());
        }
    }
}

/// OCP E4M3: a sign, four exponent and three mantissa bits, without infinities.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 127) {
        (_, 127) => f32::NAN,
        (0, _) => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * f32::powi(2.0, exponent - 7),
    };
    match code & 128 {
        0 => magnitude,
        _ => -magnitude,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_floats_are_read() {
        let cases = [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x07, 0.013_671_875),
            (0x08, 0.015_625),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0xc0, -2.0),
            (0x7e, 448.0),
        ];
        for (code, value) in cases {
            assert_eq!(e4m3(code), value, "{code:#x}");
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    }
}
