//! Row-wise kernels of vision towers: clamping, RoPE, and joining or pooling rows.

use crate::cpu::rows::{ELEMENT_COST, for_rows};
use crate::cpu::tensor::{Shared, Tensor};
use crate::cpu::threads::ThreadPool;
use crate::vision::{Columns, JoinOrder, PatchGrid};

/// Copies columns as wide as `out`.
pub fn copied(pool: &mut ThreadPool, x: Columns<'_, Tensor>, mut out: Tensor) -> Tensor {
    let (rows, width) = (out.rows(), out.width());
    let shared = Shared::new(out.values_mut());
    for_rows(pool, rows, width * ELEMENT_COST, |row| {
        // SAFETY: each row is written by one item.
        let out = unsafe { shared.part(row * width, width) };
        out.copy_from_slice(&x.rows.row(row)[x.first..x.first + width]);
    });
    out
}

pub fn clamped(
    pool: &mut ThreadPool,
    x: &Tensor,
    [least, most]: [f32; 2],
    mut out: Tensor,
) -> Tensor {
    let width = x.width();
    let shared = Shared::new(out.values_mut());
    for_rows(pool, x.rows(), width * ELEMENT_COST, |row| {
        // SAFETY: each row is written by one item.
        let out = unsafe { shared.part(row * width, width) };
        for (out, x) in out.iter_mut().zip(x.row(row)) {
            // A file's bounds may be in the wrong order, with which `clamp` panics.
            *out = x.max(least).min(most);
        }
    });
    out
}

/// `(x - bias) * factor`, column by column.
///
/// # Panics
/// If bias or factor are not as wide as the rows.
pub fn standardize(pool: &mut ThreadPool, x: &mut Tensor, (bias, factor): (&[f32], &[f32])) {
    let (rows, width) = (x.rows(), x.width());
    assert_eq!(
        [bias.len(), factor.len()],
        [width, width],
        "bias and factor must be as wide as the rows"
    );
    let shared = Shared::new(x.values_mut());
    for_rows(pool, rows, width * ELEMENT_COST, |row| {
        // SAFETY: each row is written by one item.
        let values = unsafe { shared.part(row * width, width) };
        for (value, (bias, factor)) in values.iter_mut().zip(bias.iter().zip(factor)) {
            *value = (*value - bias) * factor;
        }
    });
}

/// Rotates the pairs of the first `n_heads` heads of each row; see `VisionOps::rotate_heads`.
///
/// # Panics
/// If a head is not whole blocks of pairs, or the rows are narrower than the heads.
pub fn rotate_heads(
    pool: &mut ThreadPool,
    x: &mut Tensor,
    n_heads: usize,
    rotations: &Tensor,
    block: usize,
) {
    let (rows, stride, head_dim) = (x.rows(), x.width(), rotations.width());
    assert!(
        block.is_multiple_of(2) && head_dim.is_multiple_of(block),
        "a head of {head_dim} is not whole blocks of {block}"
    );
    let width = n_heads * head_dim;
    assert!(width <= stride, "{width} columns exceed the width {stride}");
    let shared = Shared::new(x.values_mut());
    for_rows(pool, rows, width * ELEMENT_COST, |row| {
        // SAFETY: each row is written by one item.
        let heads = unsafe { shared.part(row * stride, width) };
        let (cosines, sines) = rotations.row(row).split_at(head_dim / 2);
        for head in heads.chunks_exact_mut(head_dim) {
            let angles = cosines
                .chunks_exact(block / 2)
                .zip(sines.chunks_exact(block / 2));
            for (elements, (cosines, sines)) in head.chunks_exact_mut(block).zip(angles) {
                rotate_block(elements, cosines, sines);
            }
        }
    });
}

fn rotate_block(elements: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let (first, second) = elements.split_at_mut(cosines.len());
    let pairs = first.iter_mut().zip(second);
    for ((a, b), (cosine, sine)) in pairs.zip(cosines.iter().zip(sines)) {
        let (x, y) = (*a, *b);
        *a = x * cosine - y * sine;
        *b = y * cosine + x * sine;
    }
}

/// Copies rows of consecutive blocks; see `VisionOps::gather_rows`.
///
/// # Panics
/// If there is no block, an index is out of range, or `out` is not as wide as the blocks.
pub fn gather(pool: &mut ThreadPool, blocks: &[&Tensor], rows: &[u32], mut out: Tensor) -> Tensor {
    let (height, width) = (blocks[0].rows(), out.width());
    let shared = Shared::new(out.values_mut());
    for_rows(pool, rows.len(), width * ELEMENT_COST, |index| {
        // SAFETY: each row is written by one item.
        let out = unsafe { shared.part(index * width, width) };
        let row = rows[index] as usize;
        out.copy_from_slice(blocks[row / height].row(row % height));
    });
    out
}

/// Joins rows in groups; see `VisionOps::join_rows`.
///
/// # Panics
/// If an index is out of range, or the indices are not whole groups.
pub fn join(
    pool: &mut ThreadPool,
    x: &Tensor,
    rows: &[u32],
    (group, order): (usize, JoinOrder),
    mut out: Tensor,
) -> Tensor {
    let (width, out_width) = (x.width(), out.width());
    assert!(
        rows.len().is_multiple_of(group),
        "{} rows are not groups of {group}",
        rows.len()
    );
    let shared = Shared::new(out.values_mut());
    let n_groups = rows.len() / group;
    for_rows(pool, n_groups, out_width * ELEMENT_COST, |index| {
        // SAFETY: each row is written by one item.
        let out = unsafe { shared.part(index * out_width, out_width) };
        let rows = &rows[index * group..(index + 1) * group];
        match order {
            JoinOrder::Rows => {
                for (out, row) in out.chunks_exact_mut(width).zip(rows) {
                    out.copy_from_slice(x.row(*row as usize));
                }
            }
            JoinOrder::Columns => {
                for (within, row) in rows.iter().enumerate() {
                    let to = out[within..].iter_mut().step_by(group);
                    to.zip(x.row(*row as usize)).for_each(|(out, x)| *out = *x);
                }
            }
        }
    });
    out
}

/// The mean of each square of rows, in ascending rows and columns; see `VisionOps::pool`.
///
/// # Panics
/// If `x` has not the grid's rows.
pub fn pool(
    pool: &mut ThreadPool,
    x: &Tensor,
    grid: PatchGrid,
    side: usize,
    mut out: Tensor,
) -> Tensor {
    assert_eq!(x.rows(), grid.n_patches(), "a row must be a patch");
    let (width, columns) = (x.width(), grid.w / side);
    let n_squares = grid.h / side * columns;
    let share = 1.0 / (side * side) as f32;
    let shared = Shared::new(out.values_mut());
    for_rows(
        pool,
        n_squares,
        side * side * width * ELEMENT_COST,
        |square| {
            // SAFETY: each row is written by one item.
            let out = unsafe { shared.part(square * width, width) };
            out.fill(0.0);
            let (top, left) = (square / columns * side, square % columns * side);
            for patch in (0..side * side).map(|i| (top + i / side) * grid.w + left + i % side) {
                out.iter_mut()
                    .zip(x.row(patch))
                    .for_each(|(sum, x)| *sum += x);
            }
            out.iter_mut().for_each(|sum| *sum *= share);
        },
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tensor::Scratch;

    fn numbered(rows: usize, width: usize) -> Tensor {
        let mut x = Scratch::default().tensor(rows, width);
        for (i, value) in x.values_mut().iter_mut().enumerate() {
            *value = i as f32;
        }
        x
    }

    fn threads() -> ThreadPool {
        ThreadPool::new(2).expect("threads start")
    }

    #[test]
    fn rows_are_joined_row_by_row_or_column_by_column() {
        let x = numbered(4, 3);
        let join = |order| {
            let out = Scratch::default().tensor(2, 6);
            let out = join(&mut threads(), &x, &[2, 0, 1, 3], (2, order), out);
            out.values().to_vec()
        };
        assert_eq!(
            join(JoinOrder::Rows),
            [6, 7, 8, 0, 1, 2, 3, 4, 5, 9, 10, 11].map(|x| x as f32)
        );
        assert_eq!(
            join(JoinOrder::Columns),
            [6, 0, 7, 1, 8, 2, 3, 9, 4, 10, 5, 11].map(|x| x as f32)
        );
    }

    #[test]
    fn columns_are_copied() {
        let (x, out) = (numbered(2, 4), Scratch::default().tensor(2, 2));
        let columns = Columns { rows: &x, first: 1 };
        let out = copied(&mut threads(), columns, out);
        assert_eq!(out.values(), [1.0, 2.0, 5.0, 6.0]);
    }

    #[test]
    fn rows_are_gathered_from_blocks() {
        // Rows 0 to 3, and 4.
        let (first, mut last) = (numbered(4, 2), numbered(1, 2));
        last.values_mut().copy_from_slice(&[8.0, 9.0]);
        let out = Scratch::default().tensor(3, 2);
        let out = gather(&mut threads(), &[&first, &last], &[4, 0, 3], out);
        assert_eq!(out.values(), [8.0, 9.0, 0.0, 1.0, 6.0, 7.0]);
    }

    #[test]
    fn squares_of_a_grid_are_averaged() {
        // Two rows of four patches: squares of the first two and of the last two columns.
        let (x, grid) = (numbered(8, 2), PatchGrid { h: 2, w: 4 });
        let out = Scratch::default().tensor(2, 2);
        let out = pool(&mut threads(), &x, grid, 2, out);
        assert_eq!(out.values(), [5.0, 6.0, 9.0, 10.0]);
    }

    #[test]
    fn pairs_are_rotated_in_each_block() {
        let mut x = numbered(1, 9);
        // A quarter turn for the first pair of each block, none for the second.
        let mut rotations = Scratch::default().tensor(1, 8);
        let angles = [0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0];
        rotations.values_mut().copy_from_slice(&angles);
        rotate_heads(&mut threads(), &mut x, 1, &rotations, 4);
        assert_eq!(x.values(), [-2.0, 1.0, 0.0, 3.0, -6.0, 5.0, 4.0, 7.0, 8.0]);
        let mut x = numbered(1, 8);
        rotate_heads(&mut threads(), &mut x, 1, &rotations, 8);
        assert_eq!(x.values(), [-4.0, 1.0, -6.0, 3.0, 0.0, 5.0, 2.0, 7.0]);
    }

    #[test]
    fn bounds_and_standards_apply_to_each_value() {
        let mut x = numbered(2, 3);
        let out = Scratch::default().tensor(2, 3);
        let out = clamped(&mut threads(), &x, [1.0, 3.5], out);
        assert_eq!(out.values(), [1.0, 1.0, 2.0, 3.0, 3.5, 3.5]);
        let (bias, factor) = ([1.0, 2.0, 3.0], [1.0, 2.0, -1.0]);
        standardize(&mut threads(), &mut x, (&bias, &factor));
        assert_eq!(x.values(), [-1.0, -2.0, 1.0, 2.0, 4.0, -2.0]);
    }
}
