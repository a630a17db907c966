//! Tests of the row-wise kernels: random weights, embeddings, rotations, norms and gates.

use souffleur_kernels::cuda::driver::DevicePtr;
use souffleur_kernels::cuda::launch::{Embed, FillRandom, RmsNorm, RopeStore, SiluMul};
use souffleur_kernels::cuda::params::{ElementType, RopeStoreParams};
use souffleur_kernels::dtype::Dtype;
use souffleur_kernels::random::RandomTensor;

use super::{ELEMENTS, Gpu, assert_close, relative};

const EPS: f32 = 1e-5;

#[test]
fn random_weights_equal_the_hosts() {
    let gpu = Gpu::new();
    for (element, dtype) in [
        (ElementType::F32, Dtype::F32),
        (ElementType::Bf16, Dtype::BF16),
    ] {
        let fill = FillRandom::load(&gpu.modules, element, gpu.multiprocessors()).unwrap();
        for len in [1, 8, 4099, 300_007] {
            let tensor = RandomTensor::new("model.embed_tokens.weight", &[len], dtype);
            let out = gpu.output(element, len);
            // SAFETY: `out` has `len` elements.
            let launched = unsafe {
                let (len, unit) = (len as u64, RandomTensor::unit());
                fill.launch(&gpu.stream, out.ptr(), len, tensor.seed, unit)
            };
            launched.unwrap();
            let bytes = tensor.bytes();
            let values = tensor.view(&bytes).to_f32();
            let expected: Vec<f64> = values.into_iter().map(f64::from).collect();
            let what = format!("fill_random of {len} {element:?}");
            assert_close(&what, &gpu.read(&out, &what), &expected, 0.0, 0.0);
        }
    }
}

#[test]
fn embeddings_are_rows_of_the_table() {
    let mut gpu = Gpu::new();
    for element in ELEMENTS {
        let embed = Embed::load(&gpu.modules, element).unwrap();
        for (n_tokens, vocab, hidden) in [(1, 3, 8), (7, 100, 33), (40, 500, 256)] {
            let table = gpu.elements(element, vocab * hidden, 1.0);
            let tokens: Vec<u32> = (0..n_tokens).map(|_| gpu.below(vocab as u32)).collect();
            let out = gpu.output(ElementType::F32, n_tokens * hidden);
            let list = gpu.upload(&tokens);
            let shape = [n_tokens as u32, hidden as u32];
            let launched =
                // SAFETY: see the module `twins`.
                unsafe { embed.embed(&gpu.stream, out.ptr(), table.ptr(), list.ptr(), shape) };
            launched.unwrap();
            let row = |token: &u32| {
                let first = *token as usize * hidden;
                table.values[first..first + hidden].to_vec()
            };
            let expected: Vec<f64> = tokens.iter().flat_map(row).collect();
            let what = format!("embed {element:?} of {hidden}");
            assert_close(&what, &gpu.read(&out, &what), &expected, 0.0, 0.0);
        }
    }
}

#[test]
fn rotations_are_cosines_and_sines() {
    let mut gpu = Gpu::new();
    let embed = Embed::load(&gpu.modules, ElementType::F32).unwrap();
    let (half, scale) = (64usize, 1.25f32);
    let mut positions = vec![0, 1, 4095, 131_071, 1_000_000];
    positions.extend((0..40).map(|_| gpu.below(200_000)));
    let inv_freq: Vec<f32> = (0..half)
        .map(|i| 500_000f32.powf(-(i as f32) / half as f32))
        .collect();
    let out = gpu.output(ElementType::F32, positions.len() * 2 * half);
    let (frequencies, list) = (gpu.upload(&inv_freq), gpu.upload(&positions));
    let shape = [positions.len() as u32, half as u32];
    // SAFETY: see the module `twins`.
    let launched = unsafe {
        let (out, frequencies) = (out.ptr(), frequencies.ptr());
        embed.rotations(&gpu.stream, out, frequencies, list.ptr(), shape, scale)
    };
    launched.unwrap();
    let row = |position: &u32| {
        let angle = |i: usize| f64::from(*position as f32 * inv_freq[i]);
        let cosines = (0..half).map(move |i| angle(i).cos() * f64::from(scale));
        let sines = (0..half).map(move |i| angle(i).sin() * f64::from(scale));
        cosines.chain(sines).collect::<Vec<_>>()
    };
    let expected: Vec<f64> = positions.iter().flat_map(row).collect();
    assert_close(
        "rotations",
        &gpu.read(&out, "rotations"),
        &expected,
        3e-7,
        0.0,
    );
}

fn normed(row: &[f64], weight: &[f32]) -> Vec<f64> {
    let squares: f64 = row.iter().map(|x| x * x).sum();
    let scale = (squares / row.len() as f64 + f64::from(EPS)).sqrt().recip();
    let pairs = row.iter().zip(weight);
    pairs.map(|(x, w)| x * scale * f64::from(*w)).collect()
}

#[test]
fn norms_are_computed_for_the_requested_rows() {
    let mut gpu = Gpu::new();
    for element in ELEMENTS {
        let norm = RmsNorm::load(&gpu.modules, element).unwrap();
        for (n_rows, width) in [(1, 8), (5, 100), (9, 1024), (3, 4096), (2, 9000)] {
            let x = gpu.elements(ElementType::F32, n_rows * width, 3.0);
            let weight = gpu.numbers(width, 1.0);
            let weight_list = gpu.upload(&weight);
            for picked in [false, true] {
                let rows: Vec<u32> = if picked {
                    (0..n_rows + 2).map(|_| gpu.below(n_rows as u32)).collect()
                } else {
                    (0..n_rows as u32).collect()
                };
                let list = gpu.upload(&rows);
                let list = if picked { list.ptr() } else { DevicePtr::NULL };
                let out = gpu.output(element, rows.len() * width);
                let shape = [rows.len() as u32, width as u32];
                // SAFETY: see the module `twins`.
                let launched = unsafe {
                    let (x, weight) = (x.ptr().cast(), weight_list.ptr());
                    norm.launch(&gpu.stream, out.ptr(), x, list, weight, shape, EPS)
                };
                launched.unwrap();
                let row = |row: &u32| {
                    let first = *row as usize * width;
                    normed(&x.values[first..first + width], &weight)
                };
                let expected: Vec<f64> = rows.iter().flat_map(row).collect();
                let what = format!("rms_norm {element:?} of {width}, picked {picked}");
                let got = gpu.read(&out, &what);
                assert_close(&what, &got, &expected, 1e-7, relative(element));
            }
        }
    }
}

#[test]
fn silu_gates_multiply_the_up_projections() {
    let mut gpu = Gpu::new();
    for element in ELEMENTS {
        let silu_mul = SiluMul::load(&gpu.modules, element).unwrap();
        for (n_tokens, width) in [(1, 8), (5, 33), (17, 2500), (40, 3072)] {
            let both = gpu.elements(element, n_tokens * 2 * width, 8.0);
            let out = gpu.output(element, n_tokens * width);
            let shape = [n_tokens as u32, width as u32];
            // SAFETY: see the module `twins`.
            unsafe { silu_mul.launch(&gpu.stream, out.ptr(), both.ptr(), shape) }.unwrap();
            let row = |row: &[f64]| {
                let (gates, ups) = row.split_at(width);
                let pairs = gates.iter().zip(ups);
                pairs
                    .map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up)
                    .collect::<Vec<_>>()
            };
            let expected: Vec<f64> = both.values.chunks(2 * width).flat_map(row).collect();
            let what = format!("silu_mul {element:?} of {width}");
            let got = gpu.read(&out, &what);
            assert_close(&what, &got, &expected, 1e-6, relative(element));
        }
    }
}

/// Numbers of query heads and KV heads, and elements of a head.
#[derive(Clone, Copy, Debug)]
struct Heads {
    q: usize,
    kv: usize,
    dim: usize,
}

#[test]
fn keys_and_values_go_to_their_slots() {
    for element in ELEMENTS {
        for with_norms in [false, true] {
            for (q, kv, dim) in [(4, 2, 64), (3, 1, 12), (32, 8, 128)] {
                check_rope_store(element, Heads { q, kv, dim }, with_norms);
            }
        }
    }
}

fn cosines_and_sines(angles: &[f32]) -> impl Iterator<Item = f32> {
    let cosines = angles.iter().map(|angle| angle.cos());
    cosines.chain(angles.iter().map(|angle| angle.sin()))
}

/// A head after the rotation by these cosines and sines.
fn rotate(row: &[f64], rotation: &[f32]) -> Vec<f64> {
    let at = |i: usize| f64::from(rotation[i]);
    let half = row.len() / 2;
    let low = (0..half).map(|i| row[i] * at(i) - row[half + i] * at(half + i));
    let high = (0..half).map(|i| row[half + i] * at(i) + row[i] * at(half + i));
    low.chain(high).collect()
}

/// The heads of tokens, computed in f64.
struct RotatedHeads<'a> {
    heads: Heads,
    qkv: &'a [f64],
    /// The cosines and sines of each token.
    rotations: &'a [f32],
    /// The norm weights of queries and of keys.
    norms: Option<&'a [Vec<f32>; 2]>,
}

impl RotatedHeads<'_> {
    fn head(&self, token: usize, index: usize) -> &[f64] {
        let Heads { q, kv, dim } = self.heads;
        let first = token * (q + 2 * kv) * dim + index * dim;
        &self.qkv[first..first + dim]
    }

    fn queries(&self, n_tokens: usize) -> Vec<f64> {
        let indices = |token| (0..self.heads.q).map(move |index| (token, index));
        let heads = (0..n_tokens).flat_map(indices);
        let heads = heads.flat_map(|(token, index)| self.normed_and_rotated(token, index, 0));
        heads.collect()
    }

    fn key(&self, token: usize, index: usize) -> Vec<f64> {
        self.normed_and_rotated(token, self.heads.q + index, 1)
    }

    fn normed_and_rotated(&self, token: usize, index: usize, norm: usize) -> Vec<f64> {
        let (row, dim) = (self.head(token, index), self.heads.dim);
        let row = match self.norms {
            Some(norms) => normed(row, &norms[norm]),
            None => row.to_vec(),
        };
        rotate(&row, &self.rotations[token * dim..(token + 1) * dim])
    }
}

fn check_rope_store(element: ElementType, heads: Heads, with_norms: bool) {
    let mut gpu = Gpu::new();
    let what = format!("rope_store {element:?}, {heads:?}, norms {with_norms}");
    let rope_store = RopeStore::load(&gpu.modules, element).unwrap();
    let Heads { q, kv, dim } = heads;
    // Slot 0 is padding: its key and value are dropped.
    let slots = [5u32, 0, 2, 9, 11];
    let (n_tokens, n_slots, width) = (slots.len(), 12, (q + 2 * kv) * dim);
    let qkv = gpu.elements(element, n_tokens * width, 2.0);
    let angles = gpu.numbers(n_tokens * dim / 2, 3.0);
    let token_angles = angles.chunks_exact(dim / 2);
    let rotations: Vec<f32> = token_angles.flat_map(cosines_and_sines).collect();
    let norms = [gpu.numbers(dim, 1.5), gpu.numbers(dim, 1.5)];
    let norm_lists = [gpu.upload(&norms[0]), gpu.upload(&norms[1])];
    let norm = |which: usize| {
        if with_norms {
            norm_lists[which].ptr()
        } else {
            DevicePtr::NULL
        }
    };
    let (rotation_list, slot_list) = (gpu.upload(&rotations), gpu.upload(&slots));
    let out = gpu.output(element, n_tokens * q * dim);
    let pools = [0, 1].map(|_| gpu.output(element, n_slots * kv * dim));
    let params = RopeStoreParams {
        q: out.ptr(),
        k_pool: pools[0].ptr(),
        v_pool: pools[1].ptr(),
        qkv: qkv.ptr(),
        q_norm: norm(0),
        k_norm: norm(1),
        rotations: rotation_list.ptr(),
        slots: slot_list.ptr(),
        n_heads: q as u32,
        n_kv_heads: kv as u32,
        head_dim: dim as u32,
        eps: EPS,
    };
    // SAFETY: see the module `twins`.
    unsafe { rope_store.launch(&gpu.stream, &params, n_tokens as u32) }.unwrap();

    let rotated = RotatedHeads {
        heads,
        qkv: &qkv.values,
        rotations: &rotations,
        norms: with_norms.then_some(&norms),
    };
    let expected = rotated.queries(n_tokens);
    let tolerance = relative(element);
    // Rotations subtract products that may be nearly equal.
    let absolute = 12.0 * tolerance.min(1e-6);
    let got = gpu.read(&out, &what);
    assert_close(&what, &got, &expected, absolute, tolerance);
    let (keys, values) = (gpu.read(&pools[0], &what), gpu.read(&pools[1], &what));
    for slot in 0..n_slots {
        let place = slot * kv * dim..(slot + 1) * kv * dim;
        let (keys, values) = (&keys[place.clone()], &values[place]);
        let Some(token) = slots.iter().position(|of| *of == slot as u32 && slot > 0) else {
            let is_untouched = keys.iter().chain(values).all(|x| x.is_nan());
            assert!(is_untouched, "{what}, slot {slot}");
            continue;
        };
        let key = |index| rotated.key(token, index);
        let expected: Vec<f64> = (0..kv).flat_map(key).collect();
        assert_close(&what, keys, &expected, absolute, tolerance);
        let value = |index| rotated.head(token, q + kv + index).to_vec();
        let expected: Vec<f64> = (0..kv).flat_map(value).collect();
        assert_close(&what, values, &expected, 0.0, 0.0);
    }
}
