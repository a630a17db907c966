//! Tests of the paged attention kernels: decodes with one query per row, and prefills with many.

use std::f32::consts::LOG2_E;

use souffleur_kernels::cuda::driver::{DeviceBuffer, DevicePtr};
use souffleur_kernels::cuda::launch::{AttendShape, Attention};
use souffleur_kernels::cuda::params::{AttendParams, ElementType, Segment, Tile};

use super::{Elements, Gpu, Output, assert_close};

/// Heads, pages and window of a check.
#[derive(Clone, Copy, Debug)]
struct Case {
    element: ElementType,
    n_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    page_size: u32,
    window: u32,
}

const F32: ElementType = ElementType::F32;
const BF16: ElementType = ElementType::Bf16;

/// Element type, heads, KV heads, elements of a head, tokens of a page, window in tokens (0 for none).
const CASES: [(ElementType, u32, u32, u32, u32, u32); 12] = [
    (F32, 4, 2, 64, 16, 0),
    (F32, 6, 1, 12, 1, 0),
    (F32, 4, 2, 64, 16, 50),
    (BF16, 8, 2, 64, 1, 0),
    (BF16, 8, 2, 64, 16, 70),
    (BF16, 6, 2, 96, 16, 0),
    (BF16, 8, 2, 128, 16, 0),
    (BF16, 8, 2, 128, 1, 33),
    (BF16, 32, 2, 128, 64, 0),
    (BF16, 4, 1, 256, 32, 0),
    (BF16, 4, 2, 20, 16, 0),
    (BF16, 16, 16, 128, 16, 0),
];

fn cases() -> impl Iterator<Item = Case> {
    CASES.into_iter().map(|case| {
        let (element, n_heads, n_kv_heads, head_dim, page_size, window) = case;
        Case {
            element,
            n_heads,
            n_kv_heads,
            head_dim,
            page_size,
            window,
        }
    })
}

/// Keys and values of some rows, on pages in random order.
struct Pool {
    case: Case,
    keys: Elements,
    values: Elements,
    table: Vec<u32>,
    table_list: DeviceBuffer<u32>,
    stride: usize,
}

impl Pool {
    /// Row `i + 1` has `contexts[i]` tokens; row 0 is padding.
    fn new(gpu: &mut Gpu, case: Case, contexts: &[u32]) -> Self {
        let pages = |tokens: &u32| tokens.div_ceil(case.page_size) as usize;
        let stride = contexts.iter().map(pages).max().unwrap_or(1).max(1);
        let n_pages: usize = contexts.iter().map(pages).sum();
        let mut order: Vec<u32> = (1..=n_pages as u32).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, gpu.below(i as u32 + 1) as usize);
        }
        let mut table = vec![0; (contexts.len() + 1) * stride];
        for (index, tokens) in contexts.iter().enumerate() {
            let first = (index + 1) * stride;
            for place in &mut table[first..first + pages(tokens)] {
                *place = order.pop().unwrap();
            }
        }
        let slots = (n_pages + 1) * case.page_size as usize;
        let width = (case.n_kv_heads * case.head_dim) as usize;
        Self {
            keys: gpu.elements(case.element, slots * width, 1.0),
            values: gpu.elements(case.element, slots * width, 1.0),
            table_list: gpu.upload(&table),
            table,
            stride,
            case,
        }
    }

    fn vector<'a>(&self, pool: &'a Elements, row: u32, position: u32, head: u32) -> &'a [f64] {
        let case = &self.case;
        let page = self.table[row as usize * self.stride + (position / case.page_size) as usize];
        let slot = page * case.page_size + position % case.page_size;
        let dim = case.head_dim as usize;
        let first = (slot * case.n_kv_heads + head) as usize * dim;
        &pool.values[first..first + dim]
    }

    /// The attention output of query head `head` at a position of a row.
    fn attended(&self, query: &[f64], row: u32, position: u32, head: u32) -> Vec<f64> {
        let case = &self.case;
        let kv_head = head / (case.n_heads / case.n_kv_heads);
        let first = match case.window {
            0 => 0,
            window => (position + 1).saturating_sub(window),
        };
        let scale = f64::from(case.head_dim).sqrt().recip();
        let scores: Vec<f64> = (first..=position)
            .map(|at| {
                let key = self.vector(&self.keys, row, at, kv_head);
                query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() * scale
            })
            .collect();
        let peak = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - peak).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mut out = vec![0.0; case.head_dim as usize];
        for (at, weight) in (first..=position).zip(&weights) {
            let value = self.vector(&self.values, row, at, kv_head);
            for (out, value) in out.iter_mut().zip(value) {
                *out += weight / sum * value;
            }
        }
        out
    }

    fn params(&self, q: &Elements, out: &Output, segments: &DeviceBuffer<Segment>) -> AttendParams {
        let case = &self.case;
        AttendParams {
            out: out.ptr(),
            q: q.ptr(),
            k_pool: self.keys.ptr(),
            v_pool: self.values.ptr(),
            page_table: self.table_list.ptr(),
            segments: segments.ptr(),
            tiles: DevicePtr::NULL,
            partials: DevicePtr::NULL,
            table_stride: self.stride as u32,
            page_size: case.page_size,
            n_heads: case.n_heads,
            n_kv_heads: case.n_kv_heads,
            head_dim: case.head_dim,
            window: case.window,
            n_splits: 1,
            scale_log2: (case.head_dim as f32).sqrt().recip() * LOG2_E,
        }
    }

    /// The index and expected output of each token of the segments, without padding.
    fn expected(&self, q: &Elements, segments: &[Segment]) -> Vec<(usize, Vec<f64>)> {
        let (heads, dim) = (self.case.n_heads as usize, self.case.head_dim as usize);
        let tokens = segments
            .iter()
            .flat_map(|segment| (0..segment.n_tokens).map(move |token| (*segment, token)));
        tokens
            .map(|(segment, token)| {
                let index = (segment.first_token + token) as usize;
                let position = segment.first_position + token;
                let row = (0..heads).flat_map(|head| {
                    let first = (index * heads + head) * dim;
                    let query = &q.values[first..first + dim];
                    self.attended(query, segment.row, position, head as u32)
                });
                (index, row.collect())
            })
            .collect()
    }
}

fn load(gpu: &Gpu, case: Case) -> Attention {
    let shape = AttendShape {
        element: case.element,
        n_heads: case.n_heads,
        n_kv_heads: case.n_kv_heads,
        head_dim: case.head_dim,
    };
    Attention::load(&gpu.modules, shape, gpu.multiprocessors()).unwrap()
}

fn check(
    gpu: &Gpu,
    what: &str,
    out: &Output,
    n_tokens: usize,
    expected: &[(usize, Vec<f64>)],
    case: Case,
) {
    let got = gpu.read(out, what);
    let width = got.len() / n_tokens;
    // Results are at most 1 in magnitude; the tensor cores take probabilities rounded to bfloat16.
    let absolute = match case.element {
        ElementType::F32 => 5e-6,
        ElementType::Bf16 => 6e-3,
    };
    for (index, got) in got.chunks(width).enumerate() {
        let what = format!("{what}, token {index}");
        match expected.iter().find(|(token, _)| *token == index) {
            Some((_, expected)) => assert_close(&what, got, expected, absolute, 0.0),
            None => assert!(got.iter().all(|value| value.is_nan()), "{what}: not NaN"),
        }
    }
}

#[test]
fn decodes_attend_to_their_context() {
    for case in cases() {
        let mut gpu = Gpu::new();
        let attention = load(&gpu, case);
        let contexts = [1, 37, 128, 300, 700];
        let pool = Pool::new(&mut gpu, case, &contexts);
        // One segment is padding.
        let n_tokens = contexts.len() + 1;
        let segment = |index: usize| match index {
            2 => Segment::default(),
            _ => {
                let row = if index < 2 { index } else { index - 1 };
                Segment {
                    row: row as u32 + 1,
                    first_token: index as u32,
                    n_tokens: 1,
                    first_position: contexts[row] - 1,
                }
            }
        };
        let segments: Vec<Segment> = (0..n_tokens).map(segment).collect();
        let list = gpu.upload(&segments);
        let width = (case.n_heads * case.head_dim) as usize;
        let q = gpu.elements(case.element, n_tokens * width, 2.0);
        let expected = pool.expected(&q, &segments);
        for n_splits in [1, 3, 8] {
            let out = gpu.output(case.element, n_tokens * width);
            let len = attention.partials_len(n_tokens as u32, n_splits);
            let partials = gpu.output(ElementType::F32, len);
            let params = AttendParams {
                partials: if n_splits > 1 {
                    partials.ptr()
                } else {
                    DevicePtr::NULL
                },
                n_splits,
                ..pool.params(&q, &out, &list)
            };
            // SAFETY: see the module `twins`.
            unsafe { attention.decode(&gpu.stream, &params, n_tokens as u32) }.unwrap();
            let what = format!("decode in {n_splits} parts, {case:?}");
            check(&gpu, &what, &out, n_tokens, &expected, case);
            gpu.read(&partials, &what);
        }
    }
}

#[test]
fn prefills_attend_to_prefixes_and_previous_tokens() {
    for case in cases() {
        let mut gpu = Gpu::new();
        let attention = load(&gpu, case);
        // Numbers of prefix tokens and new tokens of each row; the first row has one token.
        let rows = [(0, 1), (0, 70), (45, 130), (200, 9)];
        let contexts = rows.map(|(prefix, new)| prefix + new);
        let pool = Pool::new(&mut gpu, case, &contexts);
        let mut segments = Vec::new();
        let mut n_tokens = 0;
        for (index, (first_position, new)) in rows.into_iter().enumerate() {
            segments.push(Segment {
                row: index as u32 + 1,
                first_token: n_tokens,
                n_tokens: new,
                first_position,
            });
            n_tokens += new;
        }
        let per_tile = attention.queries_per_tile();
        let tiles: Vec<Tile> = (0..rows.len() as u32)
            .flat_map(|segment| {
                let new = rows[segment as usize].1;
                (0..new.div_ceil(per_tile)).map(move |tile| Tile {
                    segment,
                    first_query: tile * per_tile,
                })
            })
            .collect();
        let n_tokens = n_tokens as usize;
        let width = (case.n_heads * case.head_dim) as usize;
        let q = gpu.elements(case.element, n_tokens * width, 2.0);
        let out = gpu.output(case.element, n_tokens * width);
        let (segment_list, tile_list) = (gpu.upload(&segments), gpu.upload(&tiles));
        let params = AttendParams {
            tiles: tile_list.ptr(),
            ..pool.params(&q, &out, &segment_list)
        };
        // SAFETY: see the module `twins`.
        unsafe { attention.prefill(&gpu.stream, &params, tiles.len() as u32) }.unwrap();
        let expected = pool.expected(&q, &segments);
        check(
            &gpu,
            &format!("prefill, {case:?}"),
            &out,
            n_tokens,
            &expected,
            case,
        );
    }
}
