//! Test fixture: rows of pseudo-random K/V in a pool, and reference attention.

use std::ops::Range;
use std::sync::Arc;

use half::bf16;

use souffleur_base::ids::{PageId, RowId};
use souffleur_base::kv_layout::{KvDtype, KvLayout, PagedKv, SCALE_GROUP, Values};
use souffleur_base::prompt_images::BidirectionalLayers;
use souffleur_kernels::HeadShape;
use souffleur_kernels::cpu::attention::Attention;
use souffleur_kernels::cpu::element::with_elements;
use souffleur_kernels::cpu::element::{Borrowed, Element, Storage};
use souffleur_kernels::cpu::kept::Kept;
use souffleur_kernels::cpu::kv::{KvPool, PageTable};
use souffleur_kernels::cpu::planes::Planes;
use souffleur_kernels::cpu::portable::Portable;
use souffleur_kernels::cpu::seats::{Numa, Seats};
use souffleur_kernels::cpu::tensor::Scratch;
use souffleur_kernels::cpu::threads::ThreadPool;
use souffleur_kernels::cpu::{CpuBatch, Isa};
use souffleur_kernels::sparsity::{DoubleSparsity, LabelChannels};

/// A pseudo-random number in [-1, 1] that depends on all arguments.
fn noise(kind: u64, seed: u64, i: usize) -> f32 {
    let mut x = kind << 56 ^ seed << 24 ^ i as u64;
    for _ in 0..3 {
        x = (x ^ x >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    (x >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Consecutive tokens of a row; their queries, keys and values come from [`World::seeds`].
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub row: u32,
    pub first: usize,
    pub n_tokens: usize,
}

pub(super) struct World {
    pub pool: ThreadPool,
    pub isa: Isa,
    pub heads: HeadShape,
    pub kv: KvPool,
    pub table: PageTable,
    pub attention: Attention,
    pub seeds: Vec<Vec<u64>>,
    /// Positions that see each other, in every row.
    pub runs: Vec<Range<u32>>,
    pub layers: BidirectionalLayers,
}

#[derive(Clone, Copy)]
pub(super) struct Setup {
    pub isa: Isa,
    pub dtype: KvDtype,
    pub heads: HeadShape,
    pub page_size: usize,
    pub threads: usize,
    pub nodes: usize,
    pub shares: bool,
    pub sparse: Option<Sparse>,
}

/// The threshold of sparse queries, the tokens to which each attends, and the channels of labels.
#[derive(Clone, Copy)]
pub(super) struct Sparse {
    pub threshold: usize,
    pub tokens: usize,
    pub channels: usize,
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
        dtype: KvDtype::BF16,
        heads: HEADS,
        page_size: 1,
        threads: 1,
        nodes: 1,
        shares: true,
        sparse: None,
    }
}

/// The channels of labels, not in order and different for each head.
fn sparsity(heads: &HeadShape, sparse: Sparse) -> Arc<DoubleSparsity> {
    let of_head = |head: usize| {
        let channels = (0..sparse.channels).map(|i| (i * 5 + head) % heads.key_dim);
        channels.map(|channel| channel as u16).collect()
    };
    let channels = LabelChannels::new((0..heads.n_kv_heads).map(of_head).collect());
    Arc::new(DoubleSparsity {
        threshold: sparse.threshold,
        tokens: sparse.tokens,
        layers: vec![Some(channels)],
    })
}

pub(super) const SLOTS: usize = 16 << 10;

impl World {
    pub(super) fn new(setup: Setup) -> Self {
        let pages = PagedKv {
            heads: setup.heads.n_kv_heads,
            key_dim: setup.heads.key_dim,
            values: setup.heads.values,
            labels: setup.sparse.map_or(0, |sparse| sparse.channels),
            dtype: setup.dtype,
        };
        let sparsity = setup.sparse.map(|sparse| sparsity(&setup.heads, sparse));
        let seats = Seats::choose(setup.threads, false, Numa::Simulated(setup.nodes));
        let mut pool = ThreadPool::with_seats(seats).expect("threads start");
        let mut kv = KvPool::new(&KvLayout::uniform(1, pages), (SLOTS, 0), sparsity.as_ref());
        kv.place_on_nodes(&mut pool);
        Self {
            pool,
            isa: setup.isa,
            heads: setup.heads,
            kv,
            table: PageTable::new(40, setup.page_size),
            attention: Attention::new(setup.shares),
            seeds: vec![Vec::new(); 40],
            runs: Vec::new(),
            layers: BidirectionalLayers::All,
        }
    }

    /// Gives a row the first `shared` positions of row `from`, and then new tokens and pages up to `len`.
    pub(super) fn grow(&mut self, row: u32, (from, shared): (u32, usize), len: usize) {
        let size = self.table.page_size();
        assert!(shared.is_multiple_of(size), "not whole pages");
        let mut pages = self.table.row(RowId::new(from))[..shared / size].to_vec();
        let mut seeds = self.seeds[from as usize][..shared].to_vec();
        let used: Vec<PageId> = (0..40)
            .flat_map(|row| self.table.row(RowId::new(row)).to_vec())
            .collect();
        let first = used.iter().map(|page| page.index()).max().unwrap_or(0) + 1;
        // In descending order, so that consecutive tokens are not consecutive in memory.
        let n_pages = len.div_ceil(size) - pages.len();
        pages.extend(
            (first..first + n_pages)
                .rev()
                .map(|page| PageId::new(page as u32)),
        );
        seeds.extend((shared..len).map(|position| u64::from(row) << 16 | position as u64));
        self.table.row_mut(RowId::new(row)).clone_from(&pages);
        self.seeds[row as usize] = seeds;
        self.write(row);
    }

    fn write(&mut self, row: u32) {
        let seeds = &self.seeds[row as usize];
        for (position, &seed) in seeds.iter().enumerate() {
            let slot = self.table.slot(RowId::new(row), position);
            let value = |i| noise(1, seed, i);
            with_elements!(self.kv.layer_mut(0), kv, scales => keep(&self.heads, slot, (kv, scales), value));
            self.kv.store_labels(0, &self.heads, &[slot as u32]);
        }
    }

    pub(super) fn place(&mut self, row: u32, seeds: Vec<u64>) {
        self.grow(row, (0, 0), seeds.len());
        self.seeds[row as usize] = seeds;
        self.write(row);
    }

    /// Writes the key of a head at a position, but not the value.
    pub(super) fn set_key(&mut self, row: u32, position: usize, head: usize, key: &[f32]) {
        let slot = self.table.slot(RowId::new(row), position);
        let places: Vec<usize> = places(&self.heads, slot).collect();
        let first = head * self.heads.key_dim;
        let values = places[first..].iter().copied().zip(key.iter().copied());
        match self.kv.layer_mut(0) {
            Storage::F32(kv) => set(kv.slice(), values),
            Storage::F16(kv) => set(kv.slice(), values),
            Storage::BF16(kv) => set(kv.slice(), values),
            Storage::I8(..) => panic!("set_key supports floats only"),
        }
        self.kv.store_labels(0, &self.heads, &[slot as u32]);
    }

    pub(super) fn query(&self, row: u32, position: usize, head: usize) -> Vec<f32> {
        let seed = self.seeds[row as usize][position];
        let dim = self.heads.key_dim;
        let elements = head * dim..(head + 1) * dim;
        elements.map(|i| noise(2, seed, i) * 3.0).collect()
    }

    /// The key of a head at a position, before it is rounded.
    pub(super) fn key(&self, row: u32, position: usize, head: usize) -> Vec<f32> {
        let seed = self.seeds[row as usize][position];
        let dim = self.heads.key_dim;
        let elements = head * dim..(head + 1) * dim;
        elements.map(|i| noise(1, seed, i)).collect()
    }

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
            batch.see_runs(&self.runs, self.layers);
            for position in part.first..part.first + part.n_tokens {
                let seed = self.seeds[part.row as usize][position];
                for (i, value) in q.row_mut(index).iter_mut().enumerate() {
                    *value = noise(2, seed, i) * 3.0;
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

    pub(super) fn naive(&self, dtype: KvDtype, row: u32, position: usize) -> Vec<f64> {
        let HeadShape {
            n_heads,
            n_kv_heads,
            key_dim,
            values,
            scale,
            score_cap,
            window,
        } = self.heads;
        let seeds = &self.seeds[row as usize];
        let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
        let mut runs = self.runs.iter();
        let run = runs.find(|run| run.contains(&(position as u32)));
        let end = run.map_or(position + 1, |run| run.end as usize);
        let mut out = Vec::new();
        for head in 0..n_heads {
            let kv_head = head / (n_heads / n_kv_heads);
            let q: Vec<f64> = (0..key_dim)
                .map(|i| f64::from(noise(2, seeds[position], head * key_dim + i) * 3.0))
                .collect();
            let of_values = match values {
                Values::Own { dim } => n_kv_heads * key_dim + kv_head * dim,
                Values::InKeys { .. } => kv_head * key_dim,
            };
            let stored_head = |token: usize, first: usize, dim: usize| -> Vec<f64> {
                let head: Vec<f32> = (first..first + dim)
                    .map(|i| noise(1, seeds[token], i))
                    .collect();
                rounded(dtype, &head)
            };
            let weights: Vec<f64> = (first..end)
                .map(|key| {
                    let key = stored_head(key, kv_head * key_dim, key_dim);
                    let score: f64 = q.iter().zip(key).map(|(q, key)| q * key).sum();
                    let score = score * f64::from(scale);
                    let capped = |cap: f32| (score / f64::from(cap)).tanh() * f64::from(cap);
                    score_cap.map_or(score, capped).exp()
                })
                .collect();
            let sum: f64 = weights.iter().sum();
            // Values in keys share the keys' scales.
            let stored = match values {
                Values::Own { dim } => dim,
                Values::InKeys { .. } => key_dim,
            };
            let mut mean = vec![0.0; values.dim()];
            for (key, weight) in (first..end).zip(&weights) {
                let value = stored_head(key, of_values, stored);
                for (mean, value) in mean.iter_mut().zip(value) {
                    *mean += weight * value / sum;
                }
            }
            out.extend(mean);
        }
        out
    }
}

/// A head's values after a round trip through storage.
fn rounded(dtype: KvDtype, head: &[f32]) -> Vec<f64> {
    let widened = |round: fn(f32) -> f32| head.iter().map(|x| f64::from(round(*x))).collect();
    match dtype {
        KvDtype::F32 => widened(|x| x),
        KvDtype::F16 => widened(|x| half::f16::from_f32(x).to_f32()),
        KvDtype::BF16 => widened(|x| bf16::from_f32(x).to_f32()),
        KvDtype::Int8 => {
            let mut codes = vec![0i8; head.len()];
            let mut scales = vec![bf16::ZERO; head.len().div_ceil(SCALE_GROUP)];
            // SAFETY: the portable lanes require nothing.
            unsafe { i8::keep::<Portable>(head, &mut codes, &mut scales) };
            let scales = |i: usize| f64::from(scales[i / SCALE_GROUP].to_f32());
            let codes = codes.iter().enumerate();
            codes
                .map(|(i, code)| f64::from(*code) * scales(i))
                .collect()
        }
    }
}

/// Stores a token's keys and values in its slot: `value` gives the elements of all keys, then of values.
pub(super) fn keep<E: Kept>(
    heads: &HeadShape,
    slot: usize,
    (kv, scales): (&mut [E], &mut [bf16]),
    value: impl Fn(usize) -> f32,
) {
    let planes = Planes::over(heads, kv);
    let (key_dim, value_dim) = (heads.key_dim, heads.values.stored_dim());
    let mut put = |first: usize, dim: usize, at: usize, of_scales: std::ops::Range<usize>| {
        let head: Vec<f32> = (first..first + dim).map(&value).collect();
        let out = &mut kv[at + planes.slot(slot)..][..dim];
        // SAFETY: the portable lanes require nothing.
        unsafe { E::keep::<Portable>(&head, out, &mut scales[of_scales]) };
    };
    for head in 0..heads.n_kv_heads {
        let of_scales = planes.scales_of_key(head, slot);
        put(head * key_dim, key_dim, planes.keys(head), of_scales);
        let first = heads.n_kv_heads * key_dim + head * value_dim;
        let of_scales = planes.scales_of_value(head, slot);
        put(first, value_dim, planes.values(head), of_scales);
    }
}

pub(super) fn part(row: u32, first: usize, n_tokens: usize) -> Part {
    Part {
        row,
        first,
        n_tokens,
    }
}

fn set<E: Element>(kv: &mut [E], values: impl Iterator<Item = (usize, f32)>) {
    values.for_each(|(at, value)| kv[at] = E::narrow(value));
}

/// Offsets of a slot's elements in the pool: the keys of all heads, then the values that are not part of the keys.
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
