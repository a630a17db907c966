//! RoPE and norms of query and key heads, fused with storing keys and values in the KV pool.

use half::bf16;

use crate::HeadShape;
use crate::cpu::batch::CpuBatch;
use crate::cpu::element::{Storage, with_elements};
use crate::cpu::kept::Kept;
use crate::cpu::norms::{norm_in_place, norm_scale};
use crate::cpu::planes::Planes;
use crate::cpu::rows::{ELEMENT_COST, for_rows};
use crate::cpu::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use crate::cpu::tensor::{Shared, Tensor};
use crate::cpu::threads::ThreadPool;
use crate::rope::Rope;
use souffleur_base::kv_layout::Values;

/// Approximate cost of a sine or cosine, in multiply-adds.
const ANGLE_COST: usize = 1024;

/// Computes cos and sin of `position * inv_freq`, times the attention scale: half a row each. Tokens of long sequences
/// use `long_inv_freq`, if the model has it. With M-RoPE the position of a pair is the one of its axis.
pub fn rotations(pool: &mut ThreadPool, rope: &Rope, batch: &CpuBatch, mut out: Tensor) -> Tensor {
    let half = rope.inv_freq.len();
    let long = rope.long_inv_freq.as_ref().unwrap_or(&rope.inv_freq);
    let shared = Shared::new(out.values_mut());
    for_rows(pool, batch.n_tokens(), 2 * half * ANGLE_COST, |row| {
        // SAFETY: each row is written by one item.
        let (cos, sin) = unsafe { shared.part(row * 2 * half, 2 * half) }.split_at_mut(half);
        let frequencies = if batch.is_long(row) {
            long
        } else {
            &rope.inv_freq
        };
        let by_axis = rope.axes.as_deref().zip(batch.rotary_position(row));
        for (i, frequency) in frequencies.iter().enumerate() {
            let position = match by_axis {
                None => batch.positions[row],
                Some((axes, position)) => position[axes[i]],
            };
            let angle = position as f32 * frequency;
            cos[i] = angle.cos() * rope.attention_scale;
            sin[i] = angle.sin() * rope.attention_scale;
        }
    });
    out
}

pub struct Rotation<'a> {
    pub heads: &'a HeadShape,
    /// Norm weights of query heads and of key heads, each as wide as one head or as all heads, and eps.
    pub norms: Option<(&'a [f32], &'a [f32], f32)>,
    /// Eps of the RMSNorm of values, which has no weight.
    pub value_eps: Option<f32>,
    /// Cosines and sines, `[n_tokens, rotary_dim]`, where `rotary_dim` is at most `key_dim`.
    pub rotations: &'a Tensor,
}

/// Normalises and rotates queries and keys in place, copies the queries to `q`, and stores keys and values in slots.
///
/// # Shapes
/// `qkv: [n_tokens, (n_heads + n_kv_heads) * key_dim + n_kv_heads * value_dim]`, `q: [n_tokens, n_heads * key_dim]`,
/// `kv` in the layout of [`Planes`]; no two tokens have the same slot.
///
/// # Panics
/// If a row of `qkv` is of another width, or values are parts of keys.
pub fn rotate_and_store(
    pool: &mut ThreadPool,
    isa: Isa,
    qkv: &mut Tensor,
    rotation: &Rotation<'_>,
    mut q: Tensor,
    (kv, slots): (&mut Storage, &[u32]),
) -> Tensor {
    let heads = rotation.heads;
    let (rows, width, q_width) = (qkv.rows(), qkv.width(), q.width());
    let Values::Own { dim } = heads.values else {
        panic!("values that are parts of keys must have no projection");
    };
    let kv_width = heads.n_kv_heads * (heads.key_dim + dim);
    assert_eq!(
        width,
        q_width + kv_width,
        "rows must be as wide as queries, keys and values"
    );
    let qkv = Shared::new(qkv.values_mut());
    let q_out = Shared::new(q.values_mut());
    with_elements!(kv, kv, scales => {
        let planes = Planes::over(heads, kv);
        let store = (Shared::new(kv), Shared::new(scales));
        for_rows(pool, rows, width * ELEMENT_COST, |row| {
            // SAFETY: each row is read and written by one item.
            let (input, q) = unsafe {
                (
                    qkv.part(row * width, width),
                    q_out.part(row * q_width, q_width),
                )
            };
            let (slot, cos_sin) = (slots[row] as usize, rotation.rotations.row(row));
            dispatch(isa, RotateRow { input, q, store, planes, slot, rotation, cos_sin });
        });
    });
    q
}

struct RotateRow<'a, E> {
    input: &'a mut [f32],
    q: &'a mut [f32],
    store: (Shared<'a, E>, Shared<'a, bf16>),
    planes: Planes,
    slot: usize,
    rotation: &'a Rotation<'a>,
    cos_sin: &'a [f32],
}

impl<E: Kept> Kernel for RotateRow<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Self {
            planes,
            rotation,
            store: (to, scales),
            ..
        } = self;
        let slot = planes.slot(self.slot);
        let (key_dim, value_dim) = (rotation.heads.key_dim, rotation.heads.values.dim());
        let norms = rotation.norms;
        let (queries, kv) = self.input.split_at_mut(self.q.len());
        let (keys, values) = kv.split_at_mut(rotation.heads.n_kv_heads * key_dim);
        // SAFETY: only hints; `dispatch` detected the instruction set.
        unsafe {
            for head in 0..rotation.heads.n_kv_heads {
                S::prefetch_all_to_write(to.at(planes.keys(head) + slot), key_dim);
            }
            for head in 0..rotation.heads.n_kv_heads {
                S::prefetch_all_to_write(to.at(planes.values(head) + slot), value_dim);
            }
        }
        let q_norm = norm_together::<S>(queries, norms.map(|n| (n.0, n.2)), key_dim);
        let k_norm = norm_together::<S>(keys, norms.map(|n| (n.1, n.2)), key_dim);
        let heads = queries.chunks_exact_mut(key_dim);
        for (head, q) in heads.zip(self.q.chunks_exact_mut(key_dim)) {
            rotate_head::<S>(head, q_norm, self.cos_sin);
            q.copy_from_slice(head);
        }
        // Each slot is written by one item, as no two tokens of a step have the same slot.
        for (i, key) in keys.chunks_exact_mut(key_dim).enumerate() {
            rotate_head::<S>(key, k_norm, self.cos_sin);
            let scales_at = planes.scales_of_key(i, self.slot);
            // SAFETY: the slot is this item's; `dispatch` detected the instruction set.
            unsafe {
                let out = to.part(planes.keys(i) + slot, key_dim);
                E::keep::<S>(key, out, scales.part(scales_at.start, scales_at.len()));
            }
        }
        for (i, value) in values.chunks_exact_mut(value_dim).enumerate() {
            if let Some(eps) = rotation.value_eps {
                let scale = norm_scale::<S>(value, eps);
                value.iter_mut().for_each(|value| *value *= scale);
            }
            let scales_at = planes.scales_of_value(i, self.slot);
            // SAFETY: as above.
            unsafe {
                let out = to.part(planes.values(i) + slot, value_dim);
                E::keep::<S>(value, out, scales.part(scales_at.start, scales_at.len()));
            }
        }
    }
}

pub fn rotate_queries(
    pool: &mut ThreadPool,
    isa: Isa,
    q: &mut Tensor,
    (heads, norm): (&HeadShape, Option<(&[f32], f32)>),
    rotations: &Tensor,
) {
    let (rows, width) = (q.rows(), q.width());
    assert_eq!(
        width,
        heads.q_width(),
        "rows must be as wide as all query heads"
    );
    let shared = Shared::new(q.values_mut());
    for_rows(pool, rows, width * ELEMENT_COST, |row| {
        // SAFETY: each row is written by one item.
        let queries = unsafe { shared.part(row * width, width) };
        let (cos_sin, dim) = (rotations.row(row), heads.key_dim);
        dispatch(
            isa,
            RotateQueries {
                queries,
                dim,
                norm,
                cos_sin,
            },
        );
    });
}

struct RotateQueries<'a> {
    queries: &'a mut [f32],
    dim: usize,
    norm: Option<(&'a [f32], f32)>,
    cos_sin: &'a [f32],
}

impl Kernel for RotateQueries<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let norm = norm_together::<S>(self.queries, self.norm, self.dim);
        for head in self.queries.chunks_exact_mut(self.dim) {
            rotate_head::<S>(head, norm, self.cos_sin);
        }
    }
}

/// Normalises all heads of a row as one vector if the weight is that wide; else returns the norm to apply to each head.
#[inline(always)]
fn norm_together<'a, S: Lanes>(
    heads: &mut [f32],
    norm: Option<(&'a [f32], f32)>,
    dim: usize,
) -> Option<(&'a [f32], f32)> {
    let (weight, eps) = norm?;
    if weight.len() == dim {
        return norm;
    }
    assert_eq!(weight.len(), heads.len(), "each element must have a weight");
    norm_in_place::<S>(heads, weight, eps);
    None
}

/// Normalises a head if `norm` is given, and rotates its first `cos_sin.len()` elements.
#[inline(always)]
pub fn rotate_head<S: Lanes>(head: &mut [f32], norm: Option<(&[f32], f32)>, cos_sin: &[f32]) {
    if let Some((weight, eps)) = norm {
        norm_in_place::<S>(head, weight, eps);
    }
    let half = cos_sin.len() / 2;
    let (low, high) = head[..cos_sin.len()].split_at_mut(half);
    let (cos, sin) = cos_sin.split_at(half);
    let whole = half / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: four times sixteen values below `half`; `dispatch` detected the instruction set.
        unsafe {
            let (a, b) = (S::load(low[at..].as_ptr()), S::load(high[at..].as_ptr()));
            let (cos, sin) = (S::load(cos[at..].as_ptr()), S::load(sin[at..].as_ptr()));
            let rotated = S::sub(S::mul(a, cos), S::mul(b, sin));
            S::store(low[at..].as_mut_ptr(), rotated);
            let rotated = S::add(S::mul(b, cos), S::mul(a, sin));
            S::store(high[at..].as_mut_ptr(), rotated);
        }
    }
    for i in whole..half {
        let (a, b) = (low[i], high[i]);
        low[i] = a * cos[i] - b * sin[i];
        high[i] = b * cos[i] + a * sin[i];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::element::Borrowed;
    use crate::cpu::kv::PageTable;
    use crate::cpu::tensor::Scratch;
    use souffleur_base::ids::{PageId, RowId};
    use souffleur_base::kv_layout::KvDtype;
    use souffleur_base::prompt_images::{ImageDigest, ImageGrid, PromptImage, PromptImages};

    /// A token, an image of two rows of two vectors, and two tokens.
    fn with_an_image() -> PromptImages {
        let image = PromptImage {
            positions: 1..5,
            pad: 9,
            digest: ImageDigest([0; 32]),
            grid: ImageGrid {
                rows: 2,
                columns: 2,
            },
            vectors: None,
            input: None,
        };
        PromptImages::new(&[5, 9, 9, 9, 9, 5, 5], &[image]).expect("a valid image")
    }

    #[test]
    fn pairs_rotate_by_the_numbers_of_their_axes() {
        let rope = Rope {
            inv_freq: vec![1.0, 0.5, 0.25, 0.125],
            long_inv_freq: None,
            axes: Some(vec![0, 1, 2, 0]),
            attention_scale: 2.0,
        };
        let mut table = PageTable::new(4, 16);
        (1..4).for_each(|row| table.row_mut(RowId::new(row)).push(PageId::new(row)));
        let mut batch = CpuBatch::default();
        batch.push(RowId::new(1), 3, &[5, 5], &table);
        // The prompt after its first two tokens, which are cached.
        batch.push(RowId::new(2), 2, &[0, 0, 0, 5, 5], &table);
        batch.place_images(&with_an_image());
        batch.push(RowId::new(3), 7, &[5], &table);
        let mut picked = CpuBatch::default();
        picked.pick(&batch, &[1, 3, 7]);
        let text = |position: u32| [position; 4];
        let expected = [
            text(3),
            text(4),
            // Vectors 1 to 3 of the image, whose rows and columns begin at 1: by time, row, column, time.
            [1, 1, 2, 1],
            [1, 2, 1, 1],
            [1, 2, 2, 1],
            text(3),
            text(4),
            text(7),
        ];
        let (scratch, mut pool) = (
            Scratch::default(),
            ThreadPool::new(1).expect("threads start"),
        );
        let mut check = |batch: &CpuBatch, expected: &[[u32; 4]]| {
            let out = scratch.tensor(expected.len(), 8);
            let out = rotations(&mut pool, &rope, batch, out);
            for (row, positions) in expected.iter().enumerate() {
                let angles = positions.iter().zip(&rope.inv_freq);
                let angles: Vec<f32> = angles.map(|(at, freq)| *at as f32 * freq).collect();
                let cos = angles.iter().map(|angle| angle.cos() * 2.0);
                let sin = angles.iter().map(|angle| angle.sin() * 2.0);
                let expected: Vec<f32> = cos.chain(sin).collect();
                assert_eq!(out.row(row), expected, "row {row}");
            }
        };
        check(&batch, &expected);
        check(&picked, &[text(4), expected[3], text(7)]);
    }

    #[test]
    fn a_norm_as_wide_as_all_heads_spans_them() {
        let heads = HeadShape {
            n_heads: 2,
            n_kv_heads: 1,
            key_dim: 2,
            values: Values::Own { dim: 2 },
            scale: 1.0,
            score_cap: None,
            window: None,
        };
        let scratch = Scratch::default();
        let mut pool = ThreadPool::new(1).expect("threads start");
        let mut rotations = scratch.tensor(1, 2);
        rotations.row_mut(0).copy_from_slice(&[1.0, 0.0]);
        let mut normed = |weight: &[f32]| {
            let mut q = scratch.tensor(1, 4);
            q.row_mut(0).copy_from_slice(&[1.0, 1.0, 1.0, 5.0]);
            let norm = Some((weight, 0.0));
            rotate_queries(&mut pool, Isa::detect(), &mut q, (&heads, norm), &rotations);
            q.row(0).to_vec()
        };
        // The mean square of all four elements is 7, that of the second head 13.
        let (all, second) = (7_f32.sqrt().recip(), 13_f32.sqrt().recip());
        let close = |got: Vec<f32>, expected: [f32; 4]| {
            let near = got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(near, "{got:?}, expected {expected:?}");
        };
        close(
            normed(&[1.0, 2.0, 3.0, 4.0]),
            [all, 2.0 * all, 3.0 * all, 20.0 * all],
        );
        close(normed(&[1.0, 2.0]), [1.0, 2.0, second, 10.0 * second]);
    }

    #[test]
    fn keys_and_values_of_different_widths_are_stored_in_their_planes() {
        const SLOTS: usize = 5;
        let heads = HeadShape {
            n_heads: 2,
            n_kv_heads: 2,
            key_dim: 4,
            values: Values::Own { dim: 3 },
            scale: 1.0,
            score_cap: None,
            window: None,
        };
        let (q_width, width) = (8, 8 + 8 + 6);
        let scratch = Scratch::default();
        let (mut qkv, q) = (scratch.tensor(2, width), scratch.tensor(2, q_width));
        // A quarter of a turn: (a, b) becomes (-b, a).
        let mut rotations = scratch.tensor(2, 4);
        for token in 0..2 {
            let row = qkv.row_mut(token).iter_mut().enumerate();
            row.for_each(|(i, value)| *value = (100 * token + i) as f32);
            rotations
                .row_mut(token)
                .copy_from_slice(&[0.0, 0.0, 1.0, 1.0]);
        }
        let mut pool = ThreadPool::new(1).expect("threads start");
        let mut storage = Storage::zeros(KvDtype::F32, SLOTS * 14, 0);
        let rotation = Rotation {
            heads: &heads,
            norms: None,
            value_eps: None,
            rotations: &rotations,
        };
        let store = (&mut storage, &[3, 1][..]);
        let q = rotate_and_store(&mut pool, Isa::detect(), &mut qkv, &rotation, q, store);
        assert_eq!(
            q.row(1),
            [-102.0, -103.0, 100.0, 101.0, -106.0, -107.0, 104.0, 105.0]
        );
        let Storage::F32(elements) = &storage else {
            panic!("the storage must be f32");
        };
        let kv: &[f32] = elements.slice();
        let planes = Planes::of(&heads, kv.len());
        for (first, slot) in [(0.0_f32, 3), (100.0, 1)] {
            let part = |start: usize, len: usize| &kv[start + planes.slot(slot)..][..len];
            let at = |i: usize| first + i as f32;
            assert_eq!(part(planes.keys(1), 4), [-at(14), -at(15), at(12), at(13)]);
            assert_eq!(part(planes.values(0), 3), [at(16), at(17), at(18)]);
            assert_eq!(part(planes.values(1), 3), [at(19), at(20), at(21)]);
        }
    }
}
