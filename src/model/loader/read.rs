//! Reads the part of a stored tensor that a rank has.

use std::borrow::Cow;
use std::ops::Range;

use crate::ranks::Part;
use souffleur_kernels::shard::Shard;
use souffleur_kernels::tensor_view::{RowOrder, Stored, TensorView};

/// A tensor or a part of one, in the element type of its file.
pub(super) struct Read<'a> {
    stored: Stored,
    shape: Cow<'a, [usize]>,
    bytes: Cow<'a, [u8]>,
    order: RowOrder,
}

impl<'a> Read<'a> {
    /// A part of `whole`; all of it if `part` is `None`. Copies at most the part.
    pub fn part(whole: TensorView<'a>, part: Option<&Part>) -> Self {
        let Some(part) = part else {
            return Self {
                stored: whole.stored,
                shape: Cow::Borrowed(whole.shape),
                bytes: Cow::Borrowed(whole.bytes),
                order: whole.order,
            };
        };
        Self {
            stored: whole.stored,
            shape: Cow::Owned(part.shape()),
            bytes: bytes_of(whole, part),
            order: RowOrder::AsNumbered,
        }
    }

    pub fn view(&self) -> TensorView<'_> {
        TensorView {
            stored: self.stored,
            shape: &self.shape,
            bytes: &self.bytes,
            order: self.order,
        }
    }
}

/// The part's rows, in the model's order.
fn bytes_of<'a>(whole: TensorView<'a>, part: &Part) -> Cow<'a, [u8]> {
    let row_bytes = whole.stored.row_bytes(whole.width());
    if part.is_zero {
        return Cow::Owned(vec![0; whole.shape[0] * row_bytes]);
    }
    match (part.shard, part.rows.as_slice(), whole.order) {
        (Shard::Whole | Shard::Outputs, [rows], RowOrder::AsNumbered) => {
            Cow::Borrowed(&whole.bytes[rows.start * row_bytes..rows.end * row_bytes])
        }
        _ => Cow::Owned(copied(whole, part)),
    }
}

fn copied(whole: TensorView<'_>, part: &Part) -> Vec<u8> {
    let bytes_before = |column: usize| whole.stored.row_bytes(column);
    let columns = part.columns.iter();
    let columns = columns.map(|range| bytes_before(range.start)..bytes_before(range.end));
    let columns: Vec<Range<usize>> = columns.collect();
    let n_rows: usize = part.rows.iter().map(Range::len).sum();
    let row_bytes: usize = columns.iter().map(Range::len).sum();
    let mut bytes = Vec::with_capacity(n_rows * row_bytes);
    for row in part.rows.iter().cloned().flatten() {
        let row = whole.row(row);
        for range in &columns {
            bytes.extend_from_slice(&row[range.clone()]);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::{Checkpoint, LoadFormat, view_of};
    use super::*;
    use crate::weights::{Target, TensorSpec, Weights};
    use souffleur_kernels::blocks::BlockType;
    use souffleur_kernels::dtype::{Dtype, Quantization};
    use souffleur_kernels::shard::Rank;

    fn values(weights: &Weights, spec: &TensorSpec, part: Option<&Part>) -> Vec<f32> {
        let Ok(shape) = <&[usize; 2]>::try_from(spec.shape.as_slice()) else {
            let view = weights.tensor(&spec.name, &spec.shape);
            let view = view.expect("fixtures are complete");
            return Read::part(view, part).view().to_f32();
        };
        let source = weights.matrix(&spec.name, shape);
        let source = source.expect("fixtures are complete");
        let converted = source.converted(Target {
            dtype: Dtype::F32,
            keeps_blocks: true,
        });
        let view = view_of(&source, converted.as_ref());
        Read::part(view, part).view().to_f32()
    }

    /// The elements of the part, in order.
    fn selected(whole: &[f32], part: &Part) -> Vec<f32> {
        let width: usize = part.whole[1..].iter().product();
        let rows = part.rows.iter().cloned().flatten();
        let columns = || part.columns.iter().cloned().flatten();
        let elements =
            rows.flat_map(|row| columns().map(move |column| whole[row * width + column]));
        if part.is_zero {
            elements.map(|_| 0.0).collect()
        } else {
            elements.collect()
        }
    }

    #[test]
    fn parts_of_the_fixtures_are_the_rows_and_columns_of_their_tensors() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
        let mut n_parts = 0;
        for dir in fs::read_dir(models).expect("fixtures are committed") {
            let dir = dir.expect("readable").path();
            let open = || Checkpoint::open(&dir, None, LoadFormat::Auto).expect("supported");
            let whole = open();
            let weights = whole.weights.as_ref().expect("weights are read");
            for rank in [(1, 2), (2, 4)].map(|(index, count)| Rank::new(index, count)) {
                let rank = rank.expect("there is such a rank");
                // Refused heads are those of `ranks/tests.rs`.
                let Ok(own) = open().of_rank(rank, None) else {
                    continue;
                };
                for spec in whole.config.tensors() {
                    let Some(part) = own.parts.get(&spec.name) else {
                        continue;
                    };
                    let expected = selected(&values(weights, &spec, None), part);
                    let read = values(weights, &spec, Some(part));
                    assert!(read == expected, "{} of {}", spec.name, dir.display());
                    n_parts += 1;
                }
            }
        }
        assert!(n_parts > 1000, "{n_parts}");
    }

    #[test]
    fn whole_blocks_of_columns_are_read() {
        let row = |scale: f32| {
            let block = |first: u8| {
                let scale = half::f16::from_f32(scale).to_le_bytes();
                scale.into_iter().chain(first..first + 32)
            };
            [0, 32, 64].map(block).into_iter().flatten()
        };
        let bytes: Vec<u8> = row(1.0).chain(row(0.5)).collect();
        let whole = TensorView {
            stored: Stored::Blocks(BlockType::Q8_0),
            shape: &[2, 96],
            bytes: &bytes,
            order: RowOrder::AsNumbered,
        };
        let columns = 32..96;
        let part = Part {
            shard: Shard::Inputs,
            whole: vec![2, 96],
            rows: std::iter::once(0..2).collect(),
            columns: vec![columns.clone()],
            is_zero: false,
        };
        let read = Read::part(whole, Some(&part));
        assert_eq!(read.view().shape, [2, 64]);
        let expected = [1.0, 0.5].into_iter();
        let expected = expected.flat_map(|scale| columns.clone().map(move |x| scale * x as f32));
        assert_eq!(read.view().to_f32(), expected.collect::<Vec<f32>>());
    }

    #[test]
    fn rows_in_the_order_of_a_file_are_read_in_the_order_of_the_model() {
        // Two heads of four rows; the file has rows 0, 2, 1, 3 of each.
        let file = [0, 2, 1, 3, 4, 6, 5, 7].map(|row| row as f32);
        let whole = TensorView {
            order: RowOrder::Pairs {
                head_dim: 4,
                rotary_dim: 4,
            },
            ..TensorView::plain(Dtype::F32, &[8], bytemuck::cast_slice(&file))
        };
        let rows = 4..8;
        let part = Part {
            shard: Shard::Outputs,
            whole: vec![8],
            rows: vec![rows],
            columns: std::iter::once(0..1).collect(),
            is_zero: false,
        };
        let read = Read::part(whole, Some(&part));
        assert_eq!(read.view().to_f32(), [4.0, 5.0, 6.0, 7.0]);
        let zero = Part {
            is_zero: true,
            rows: std::iter::once(0..8).collect(),
            ..part
        };
        assert_eq!(Read::part(whole, Some(&zero)).view().to_f32(), [0.0; 8]);
    }

    #[test]
    fn blocks_and_groups_of_scales_that_would_be_cut_are_refused() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
        let refused = |name: &str, count: usize, quantization: Option<Quantization>| {
            let rank = Rank::new(0, count).expect("the first rank");
            let model = Checkpoint::open(&models.join(name), None, LoadFormat::Auto);
            let part = model.expect("supported").of_rank(rank, quantization);
            part.err().map(|error| error.to_string())
        };
        // Experts 64 wide, in blocks of 32.
        assert_eq!(refused("gpt-oss-mxfp4", 2, None), None);
        let error = refused("gpt-oss-mxfp4", 4, None).expect("half a block");
        assert!(
            error.contains("down_proj.weight has 64 inputs in blocks of 32"),
            "{error}"
        );
        let error = refused("llama", 2, Some(Quantization::Int8)).expect("112 inputs");
        assert!(error.starts_with("tp_size is 2"), "{error}");
        assert!(error.contains("in blocks of 128"), "{error}");
    }
}
