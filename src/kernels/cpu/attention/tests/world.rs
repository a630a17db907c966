//! Rows of noise in a pool of keys and values, and what attention gives of them by the book.

use half::bf16;

use super::super::*;
use crate::ids::{PageId, RowId};
use crate::kernels::cpu::element::Element;
use crate::kernels::cpu::tensor::Scratch;
use crate::kernels::dtype::Dtype;
use crate::state::pool::kv_layout::{KvLayout, PagedKv, Values};

/// A number in [-1, 1] that depends on all of the arguments.
fn noise(kind: u64, content: u64, i: usize) -> f32 {
    let mut x = kind << 56 ^ content << 24 ^ i as u64;
    for _ in 0..3 {
        x = (x ^ x >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    (x >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Some tokens of a row; content is what tells their queries, keys and values apart.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub row: u32,
    pub first: usize,
    pub n_tokens: usize,
}

/// Rows whose keys, values and queries are noise.
pub(super) struct World {
    pub pool: ThreadPool,
    pub isa: Isa,
    pub heads: HeadShape,
    pub kv: KvPool,
    pub table: PageTable,
    pub attention: Attention,
    /// Content of each position of each row.
    pub contents: Vec<Vec<u64>>,
}

#[derive(Clone, Copy)]
pub(super) struct Setup {
    pub isa: Isa,
    pub dtype: Dtype,
    pub heads: HeadShape,
    pub page_size: usize,
    pub threads: usize,
    pub shares: bool,
}

pub(super) const HEADS: HeadShape = HeadShape {
    n_heads: 4,
    n_kv_heads: 2,
    key_dim: 24,
    values: Values::Own { dim: 24 },
    scale: 0.4,
    score_cap: None,
    window: None,
};

pub(super) fn setup() -> Setup {
    Setup {
        isa: Isa::detect(),
        dtype: Dtype::BF16,
        heads: HEADS,
        page_size: 1,
        threads: 1,
        shares: true,
    }
}

/// Slots of the pools.
pub(super) const SLOTS: usize = 16 << 10;

impl World {
    pub(super) fn new(setup: Setup) -> Self {
        let pages = PagedKv {
            heads: setup.heads.n_kv_heads,
            key_dim: setup.heads.key_dim,
            values: setup.heads.values,
            dtype: setup.dtype.into(),
        };
        Self {
            pool: ThreadPool::new(setup.threads).expect("threads start"),
            isa: setup.isa,
            heads: setup.heads,
            kv: KvPool::new(&KvLayout::uniform(1, pages), SLOTS),
            table: PageTable::new(40, setup.page_size),
            attention: Attention::new(setup.shares),
            contents: vec![Vec::new(); 40],
        }
    }

    /// Gives a row the first `shared` positions of row `from` and then tokens and pages of its own up to `len`.
    pub(super) fn grow(&mut self, row: u32, (from, shared): (u32, usize), len: usize) {
        let size = self.table.page_size();
        assert!(shared.is_multiple_of(size), "whole pages");
        let mut pages = self.table.row(RowId::new(from))[..shared / size].to_vec();
        let mut contents = self.contents[from as usize][..shared].to_vec();
        let used: Vec<PageId> = (0..40)
            .flat_map(|row| self.table.row(RowId::new(row)).to_vec())
            .collect();
        let first = used.iter().map(|page| page.index()).max().unwrap_or(0) + 1;
        // Neighbours in the sequence lie apart.
        let n_pages = len.div_ceil(size) - pages.len();
        pages.extend(
            (first..first + n_pages)
                .rev()
                .map(|page| PageId::new(page as u32)),
        );
        contents.extend((shared..len).map(|position| u64::from(row) << 16 | position as u64));
        self.table.row_mut(RowId::new(row)).clone_from(&pages);
        self.contents[row as usize] = contents;
        self.write(row);
    }

    fn write(&mut self, row: u32) {
        let contents = &self.contents[row as usize];
        for (position, &content) in contents.iter().enumerate() {
            let slot = self.table.slot(RowId::new(row), position);
            with_elements!(self.kv.layer_mut(0), kv => {
                for (i, at) in places(&self.heads, slot).enumerate() {
                    kv[at] = Element::narrow(noise(1, content, i));
                }
            });
        }
    }

    /// The bits of each token's result.
    pub(super) fn attend(&mut self, parts: &[Part]) -> Vec<Vec<u32>> {
        let n_tokens = parts.iter().map(|part| part.n_tokens).sum();
        let scratch = Scratch::default();
        let (mut q, out) = (
            scratch.tensor(n_tokens, self.heads.q_width()),
            scratch.tensor(n_tokens, self.heads.attended_width()),
        );
        let mut batch = CpuBatch::default();
        let mut index = 0;
        for part in parts {
            batch.push(
                RowId::new(part.row),
                part.first,
                &vec![0; part.n_tokens],
                &self.table,
            );
            for position in part.first..part.first + part.n_tokens {
                let content = self.contents[part.row as usize][position];
                for (i, value) in q.row_mut(index).iter_mut().enumerate() {
                    *value = noise(2, content, i) * 3.0;
                }
                index += 1;
            }
        }
        let threads = (&mut self.pool, self.isa);
        let history = (&self.kv, 0, &self.table);
        let out = self
            .attention
            .attend(threads, &q, (&self.heads, None), history, &batch, out);
        (0..n_tokens)
            .map(|token| out.row(token).iter().map(|x| x.to_bits()).collect())
            .collect()
    }

    /// Results by the book.
    pub(super) fn naive(&self, dtype: Dtype, row: u32, position: usize) -> Vec<f64> {
        let HeadShape {
            n_heads,
            n_kv_heads,
            key_dim,
            values,
            scale,
            score_cap,
            window,
        } = self.heads;
        let round = |x: f32| match dtype {
            Dtype::BF16 => f64::from(bf16::from_f32(x).to_f32()),
            Dtype::F16 => f64::from(half::f16::from_f32(x).to_f32()),
            Dtype::F32 => f64::from(x),
        };
        let contents = &self.contents[row as usize];
        let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
        let mut out = Vec::new();
        for head in 0..n_heads {
            let kv_head = head / (n_heads / n_kv_heads);
            let q: Vec<f64> = (0..key_dim)
                .map(|i| f64::from(noise(2, contents[position], head * key_dim + i) * 3.0))
                .collect();
            let of_values = match values {
                Values::Own { dim } => n_kv_heads * key_dim + kv_head * dim,
                Values::InKeys { .. } => kv_head * key_dim,
            };
            let at =
                |token: usize, first: usize, i: usize| round(noise(1, contents[token], first + i));
            let weights: Vec<f64> = (first..=position)
                .map(|key| {
                    let score: f64 = (0..key_dim)
                        .map(|i| q[i] * at(key, kv_head * key_dim, i))
                        .sum();
                    let score = score * f64::from(scale);
                    let bent = |cap: f32| (score / f64::from(cap)).tanh() * f64::from(cap);
                    score_cap.map_or(score, bent).exp()
                })
                .collect();
            let sum: f64 = weights.iter().sum();
            out.extend((0..values.dim()).map(|i| {
                let values = (first..=position)
                    .zip(&weights)
                    .map(|(key, weight)| weight * at(key, of_values, i));
                values.sum::<f64>() / sum
            }));
        }
        out
    }
}

pub(super) fn part(row: u32, first: usize, n_tokens: usize) -> Part {
    Part {
        row,
        first,
        n_tokens,
    }
}

/// Where the elements of a slot lie in the pool: the keys of all heads, then the values that are not among them.
pub(super) fn places(heads: &HeadShape, slot: usize) -> impl Iterator<Item = usize> + use<> {
    let HeadShape {
        n_kv_heads,
        key_dim,
        values,
        ..
    } = *heads;
    let value_dim = values.stored_dim();
    let planes = Planes::of(heads, SLOTS * n_kv_heads * (key_dim + value_dim));
    let slot = planes.slot(slot);
    let keys = (0..n_kv_heads).flat_map(move |head| {
        let start = planes.keys(head) + slot;
        start..start + key_dim
    });
    let values = (0..n_kv_heads).flat_map(move |head| {
        let start = planes.values(head) + slot;
        start..start + value_dim
    });
    keys.chain(values)
}
