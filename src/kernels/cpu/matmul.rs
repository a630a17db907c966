//! Products of activations with weight matrices.
//!
//! Every output is a dot product over the inputs k: lane `k % 16` sums its products in ascending k, then the lanes
//! are summed in a fixed tree. Tiles only decide which outputs are computed side by side, never this order.

use super::element::{Element, Storage, with_elements};
use super::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use super::tensor::Shared;
use super::threads::ThreadPool;

/// Activations that one item keeps in the second-level cache while it goes over its columns.
const ROW_CHUNK_BYTES: usize = 256 << 10;
/// Most outputs (columns) in an item: enough to use a row chunk well, few enough to balance threads.
const MAX_ITEM_COLUMNS: usize = 64;
/// Items are cut on multiples of this.
const COLUMN_STEP: usize = 8;

/// A weight matrix, `[outputs, inputs]`, row-major.
pub struct Matrix {
    /// The weights.
    pub data: Storage,
    /// Number of outputs.
    pub outputs: usize,
    /// Number of inputs.
    pub inputs: usize,
}

/// What happens to a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// It replaces the output.
    Store,
    /// It is added to the output.
    Add,
}

/// A product to compute: `out = x weight^T + bias`, or added to `out`.
///
/// # Shapes
/// `x: [rows, inputs]`, `out: [rows, outputs]`, `bias: [outputs]`.
pub struct Product<'a> {
    /// Activations.
    pub x: &'a [f32],
    /// Weights.
    pub weight: &'a Matrix,
    /// Added to each row.
    pub bias: Option<&'a [f32]>,
    /// Where it goes.
    pub out: &'a mut [f32],
    /// How it goes there.
    pub write: Write,
}

/// Computes a product on all threads.
///
/// # Panics
/// If the shapes do not fit each other.
pub fn matmul(pool: &mut ThreadPool, isa: Isa, product: Product<'_>) {
    let Product {
        x,
        weight,
        bias,
        out,
        write,
    } = product;
    let (inputs, outputs) = (weight.inputs, weight.outputs);
    let rows = x.len() / inputs;
    assert_eq!(x.len(), rows * inputs, "activations of {inputs} inputs");
    assert_eq!(
        out.len(),
        rows * outputs,
        "{rows} rows of {outputs} outputs"
    );
    assert!(
        bias.is_none_or(|b| b.len() == outputs),
        "bias of {outputs} outputs"
    );
    if rows == 0 {
        return;
    }
    let even = outputs
        .div_ceil(4 * pool.n_threads())
        .next_multiple_of(COLUMN_STEP);
    let item_columns = even.min(MAX_ITEM_COLUMNS);
    let out = Shared::new(out);
    with_elements!(&weight.data, data => {
        assert_eq!(data.len(), outputs * inputs, "weights of {outputs} outputs, {inputs} inputs");
        let cost = rows * inputs * outputs;
        pool.for_each(outputs.div_ceil(item_columns), cost, &|item| {
            let first = item * item_columns;
            let columns = item_columns.min(outputs - first);
            dispatch(isa, Columns { x, rows, inputs, weight: data, bias, out, outputs, first, columns, write });
        });
    });
}

/// All rows of some columns of a product.
struct Columns<'a, E> {
    x: &'a [f32],
    rows: usize,
    inputs: usize,
    weight: &'a [E],
    bias: Option<&'a [f32]>,
    out: Shared<'a, f32>,
    outputs: usize,
    first: usize,
    columns: usize,
    write: Write,
}

impl<E: Element> Kernel for Columns<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        // Few rows wait for memory, which one stream reads at twice the speed of several. Many rows wait for
        // arithmetic: accumulators, a row of activations and a few weights fill the registers.
        match (S::REGISTERS, self.rows) {
            (1, ..=4) => self.blocks::<S, 4, 1>(),
            (1, _) => self.blocks::<S, 6, 4>(),
            (2, ..=2) => self.blocks::<S, 2, 1>(),
            (2, _) => self.blocks::<S, 3, 2>(),
            (_, 1) => self.blocks::<S, 1, 1>(),
            _ => self.blocks::<S, 1, 2>(),
        }
    }
}

impl<E: Element> Columns<'_, E> {
    #[inline(always)]
    fn blocks<S: Lanes, const M: usize, const N: usize>(&self) {
        let chunk_rows = (ROW_CHUNK_BYTES / (self.inputs * 4) / M).max(1) * M;
        let end = self.first + self.columns;
        for first_row in (0..self.rows).step_by(chunk_rows) {
            let rows = first_row..self.rows.min(first_row + chunk_rows);
            let mut column = self.first;
            while column + N <= end {
                let mut row = rows.start;
                while row + M <= rows.end {
                    self.tile::<S, M, N>(row, column);
                    row += M;
                }
                match rows.end - row {
                    0 => {}
                    1 if M > 1 => self.tile::<S, 1, N>(row, column),
                    2 if M > 2 => self.tile::<S, 2, N>(row, column),
                    3 if M > 3 => self.tile::<S, 3, N>(row, column),
                    4 if M > 4 => self.tile::<S, 4, N>(row, column),
                    5 if M > 5 => self.tile::<S, 5, N>(row, column),
                    _ => unreachable!("fewer than M rows are left"),
                }
                column += N;
            }
            for column in column..end {
                for row in rows.clone() {
                    self.tile::<S, 1, 1>(row, column);
                }
            }
        }
    }

    #[inline(always)]
    fn tile<S: Lanes, const M: usize, const N: usize>(&self, row: usize, column: usize) {
        let k = self.inputs;
        let x = &self.x[row * k..(row + M) * k];
        let weight = &self.weight[column * k..(column + N) * k];
        // SAFETY: the slices hold M and N rows of k values; `dispatch` detected the instruction set.
        let sums = unsafe { dot_tile::<S, E, M, N>(x.as_ptr(), weight.as_ptr(), k) };
        for (m, sums) in sums.iter().enumerate() {
            for (n, sum) in sums.iter().enumerate() {
                let value = sum + self.bias.map_or(0.0, |bias| bias[column + n]);
                let out = self.out.at((row + m) * self.outputs + column + n);
                // SAFETY: no other item writes these columns.
                unsafe {
                    match self.write {
                        Write::Store => *out = value,
                        Write::Add => *out += value,
                    }
                }
            }
        }
    }
}

/// Dot products of M rows of `x` with N rows of `w`, all of `k` values and contiguous.
///
/// # Safety
/// `x` is valid for `M * k` values, `w` for `N * k`; the instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn dot_tile<S: Lanes, E: Element, const M: usize, const N: usize>(
    x: *const f32,
    w: *const E,
    k: usize,
) -> [[f32; N]; M] {
    // SAFETY: all offsets stay below M * k and N * k.
    unsafe {
        // `wrapping_add`: plain offsets are checked in debug builds, at twice the price of the products.
        let mut rows = [x; M];
        for m in 1..M {
            rows[m] = rows[m - 1].wrapping_add(k);
        }
        let mut columns = [w; N];
        for n in 1..N {
            columns[n] = columns[n - 1].wrapping_add(k);
        }
        let mut acc = [[S::splat(0.0); N]; M];
        let whole = k / LANES * LANES;
        for i in (0..whole).step_by(LANES) {
            let mut weights = [S::splat(0.0); N];
            for n in 0..N {
                weights[n] = E::load::<S>(columns[n].wrapping_add(i));
            }
            for m in 0..M {
                let row = S::load(rows[m].wrapping_add(i));
                for n in 0..N {
                    acc[m][n] = S::mul_add(row, weights[n], acc[m][n]);
                }
            }
        }
        if whole < k {
            for m in 0..M {
                let row = f32::load_part::<S>(rows[m].wrapping_add(whole), k - whole);
                for n in 0..N {
                    let weight = E::load_part::<S>(columns[n].wrapping_add(whole), k - whole);
                    acc[m][n] = S::mul_add(row, weight, acc[m][n]);
                }
            }
        }
        let mut sums = [[0f32; N]; M];
        for m in 0..M {
            for n in 0..N {
                sums[m][n] = S::sum(acc[m][n]);
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::weights::Dtype;

    fn values(seed: u32, len: usize) -> Vec<f32> {
        let hash = |i: usize| (i as u32 ^ seed).wrapping_mul(0x9e37_79b9) >> 20;
        (0..len).map(|i| hash(i) as f32 / 2048.0 - 1.0).collect()
    }

    fn weight(dtype: Dtype, outputs: usize, inputs: usize) -> Matrix {
        let values = values(5, outputs * inputs);
        let data = match dtype {
            Dtype::F32 => Storage::F32(values),
            Dtype::F16 => Storage::F16(values.into_iter().map(Element::narrow).collect()),
            Dtype::BF16 => Storage::BF16(values.into_iter().map(Element::narrow).collect()),
        };
        Matrix {
            data,
            outputs,
            inputs,
        }
    }

    fn product(isa: Isa, threads: usize, x: &[f32], weight: &Matrix) -> Vec<f32> {
        let mut pool = ThreadPool::new(threads).expect("threads start");
        let mut out = vec![1.0; x.len() / weight.inputs * weight.outputs];
        let bias = values(9, weight.outputs);
        let product = Product {
            x,
            weight,
            bias: Some(&bias),
            out: &mut out,
            write: Write::Add,
        };
        matmul(&mut pool, isa, product);
        out
    }

    fn naive(x: &[f32], weight: &Matrix) -> Vec<f64> {
        let bias = values(9, weight.outputs);
        let mut out = Vec::new();
        for row in x.chunks_exact(weight.inputs) {
            for (output, bias) in bias.iter().enumerate() {
                let dot: f64 = with_elements!(&weight.data, data => {
                    let weights = &data[output * weight.inputs..(output + 1) * weight.inputs];
                    row.iter().zip(weights).map(|(x, w)| f64::from(*x) * f64::from(w.widen())).sum()
                });
                out.push(1.0 + f64::from(*bias) + dot);
            }
        }
        out
    }

    #[test]
    fn rows_alone_and_together_give_the_same_bits_and_the_right_values() {
        for isa in Isa::available() {
            for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
                for (rows, outputs, inputs) in [
                    (1, 1, 1),
                    (13, 37, 50),
                    (6, 8, 64),
                    (11, 130, 15),
                    (70, 9, 1500),
                ] {
                    let weight = weight(dtype, outputs, inputs);
                    let x = values(3, rows * inputs);
                    let together = product(isa, 3, &x, &weight);
                    let alone: Vec<f32> = x
                        .chunks_exact(inputs)
                        .flat_map(|row| product(isa, 1, row, &weight))
                        .collect();
                    assert_eq!(
                        together, alone,
                        "{isa:?} {dtype:?} {rows}x{outputs}x{inputs}"
                    );
                    for (got, expected) in together.iter().zip(naive(&x, &weight)) {
                        let error = (f64::from(*got) - expected).abs();
                        assert!(
                            error < 1e-6 * inputs as f64 + 1e-6,
                            "{isa:?} {dtype:?}: {got} for {expected}"
                        );
                    }
                }
            }
        }
    }
}
