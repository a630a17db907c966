//! Tests of launch wrappers on the emulated kernels: names, arguments and sizes match `kernels/*.cu`.
//!
//! The kernels' arithmetic is tested in C++ (`kernels/cusim/tests`); here small shapes show that the calls are right.

use souffleur::kernels::cuda::driver::{Device, DeviceBuffer, DevicePtr, Priority, Stream};
use souffleur::kernels::cuda::gemm::{GemmWish, Products};
use souffleur::kernels::cuda::launch::{
    AttendShape, Attention, Embed, OwnGemm, RmsNorm, RopeStore, SiluMul,
};
use souffleur::kernels::cuda::pack::Modules;
use souffleur::kernels::cuda::params::{
    AttendParams, ElementType, GemmParams, GemmWrite, RopeStoreParams, Segment, Tile,
};

use crate::{device, modules};

pub struct World {
    pub device: Device,
    pub modules: Modules,
    stream: Stream,
}

impl World {
    pub fn new(ordinal: usize) -> Self {
        let (device, _) = device(ordinal);
        Self {
            modules: modules(&device),
            stream: device.stream(Priority::High).unwrap(),
            device,
        }
    }

    fn upload<T: bytemuck::Pod>(&self, values: &[T]) -> DeviceBuffer<T> {
        let buffer = self.device.alloc(values.len()).unwrap();
        self.stream.write(&buffer, 0, values).unwrap();
        buffer
    }

    fn element(&self, buffer: &DeviceBuffer<u8>, element: ElementType, index: usize) -> f32 {
        let at = index * element.bytes();
        let got = self.stream.read(buffer, at..at + element.bytes()).unwrap();
        match element {
            ElementType::F32 => bytemuck::pod_read_unaligned(&got),
            ElementType::Bf16 => bytemuck::pod_read_unaligned::<half::bf16>(&got).to_f32(),
        }
    }

    /// Memory whose bytes are all 0xff, so that floats that a kernel does not write are NaN.
    fn poisoned<T: bytemuck::Pod>(&self, len: usize) -> DeviceBuffer<T> {
        let buffer = self.device.alloc(len).unwrap();
        self.stream.fill(&buffer, 0..len, 0xff).unwrap();
        buffer
    }

    #[track_caller]
    fn check(&self, got: &DeviceBuffer<f32>, expected: &[f32]) {
        let got = self.stream.read(got, 0..expected.len()).unwrap();
        for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
            let tolerance = 1e-5 * expected.abs().max(1.0);
            assert!(
                (got - expected).abs() <= tolerance,
                "{i}: {got}, expected {expected}"
            );
        }
    }
}

const F32: ElementType = ElementType::F32;

#[test]
fn tokens_are_embedded_and_positions_rotated() {
    let world = World::new(31);
    let embed = Embed::load(&world.modules, F32).unwrap();
    let table = world.upload(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0_f32]);
    let tokens = world.upload(&[2_u32, 0]);
    let out = world.poisoned::<f32>(4);
    let (frequencies, positions) = (world.upload(&[1.0, 0.5_f32]), world.upload(&[0_u32, 3]));
    let rotations = world.poisoned::<f32>(8);
    // SAFETY: two tokens of two elements, and two positions of two pairs.
    unsafe {
        let table = table.ptr().cast();
        embed
            .embed(&world.stream, out.ptr(), table, tokens.ptr(), [2, 2])
            .unwrap();
        let inputs = (frequencies.ptr(), positions.ptr());
        embed
            .rotations(
                &world.stream,
                rotations.ptr(),
                inputs.0,
                inputs.1,
                [2, 2],
                2.0,
            )
            .unwrap();
    }
    world.check(&out, &[4.0, 5.0, 0.0, 1.0]);
    let angles = [3.0_f32, 1.5];
    let (cosines, sines) = (angles.map(|a| 2.0 * a.cos()), angles.map(|a| 2.0 * a.sin()));
    let expected = [
        2.0, 2.0, 0.0, 0.0, cosines[0], cosines[1], sines[0], sines[1],
    ];
    world.check(&rotations, &expected);
}

#[test]
fn rows_are_normalised_and_gated() {
    let world = World::new(32);
    let norm = RmsNorm::load(&world.modules, F32).unwrap();
    let silu = SiluMul::load(&world.modules, F32).unwrap();
    let x = world.upload(&[3.0, 4.0, 1.0, 1.0_f32]);
    let weight = world.upload(&[1.0, 2.0_f32]);
    let rows = world.upload(&[1_u32, 0]);
    let (normed, picked, gated) = (
        world.poisoned::<f32>(4),
        world.poisoned::<f32>(4),
        world.poisoned::<f32>(2),
    );
    // SAFETY: two rows of two elements, which are a gate and an up projection for `silu`.
    unsafe {
        let (null, stream) = (DevicePtr::NULL, &world.stream);
        let out = normed.ptr().cast();
        norm.launch(stream, out, x.ptr(), null, weight.ptr(), [2, 2], 0.0)
            .unwrap();
        let out = picked.ptr().cast();
        norm.launch(stream, out, x.ptr(), rows.ptr(), weight.ptr(), [2, 2], 0.0)
            .unwrap();
        silu.launch(stream, gated.ptr().cast(), x.ptr().cast(), [2, 1])
            .unwrap();
    }
    let root = 12.5_f32.sqrt();
    let (first, second) = ([3.0 / root, 8.0 / root], [1.0, 2.0]);
    world.check(&normed, &[first, second].concat());
    world.check(&picked, &[second, first].concat());
    let silu = |x: f32| x / (1.0 + (-x).exp());
    world.check(&gated, &[silu(3.0) * 4.0, silu(1.0)]);
}

#[test]
fn products_of_all_kinds_are_right() {
    let world = World::new(33);
    for (m, n, k) in [
        (1, 3, 5),
        (3, 70, 8),
        (20, 130, 64),
        (70, 5, 24),
        (130, 260, 32),
    ] {
        for element in [F32, ElementType::Bf16] {
            let products = Products::new(&world.device, &world.modules, element, GemmWish::Own);
            check_products(&world, &mut products.unwrap(), element, (m, n, k));
        }
    }
}

fn bytes_of(element: ElementType, values: &[f32]) -> Vec<u8> {
    match element {
        ElementType::F32 => bytemuck::cast_slice(values).to_vec(),
        ElementType::Bf16 => {
            let halves = values.iter().map(|value| half::bf16::from_f32(*value));
            bytemuck::cast_slice(&halves.collect::<Vec<_>>()).to_vec()
        }
    }
}

/// Checks products that are stored in f32, added in f32, and stored as `element`, with a bias and without.
pub fn check_products(
    world: &World,
    products: &mut Products,
    element: ElementType,
    (m, n, k): (u32, u32, u32),
) {
    // Small whole numbers: exact in every type and order.
    let value = |i: u32| (i * 7 % 5) as f32 - 2.0;
    let x: Vec<f32> = (0..m * k).map(value).collect();
    let w: Vec<f32> = (0..n * k).map(|i| value(i + 3)).collect();
    let bias: Vec<f32> = (0..n).map(value).collect();
    let upload = |values: &[f32]| world.upload(&bytes_of(element, values));
    let (x_list, w_list, bias_list) = (upload(&x), upload(&w), world.upload(&bias));
    let out = world.upload(&vec![1.0_f32; (m * n) as usize]);
    let mut params = GemmParams {
        out: out.ptr().cast(),
        x: x_list.ptr().cast(),
        w: w_list.ptr().cast(),
        bias: bias_list.ptr(),
        partials: DevicePtr::NULL,
        m,
        n,
        k,
        write: GemmWrite::StoreF32,
        n_splits: 1,
    };
    let product = |i: u32, j: u32| -> f32 {
        (0..k)
            .map(|l| x[(i * k + l) as usize] * w[(j * k + l) as usize])
            .sum()
    };
    let cells = (0..m).flat_map(|i| (0..n).map(move |j| (i, j)));
    let plain: Vec<f32> = cells.map(|(i, j)| product(i, j)).collect();
    let biased = plain
        .iter()
        .enumerate()
        .map(|(i, p)| p + bias[i % n as usize]);
    let biased: Vec<f32> = biased.collect();
    // SAFETY: arrays of these shapes.
    unsafe { products.multiply(&world.stream, &params) }.unwrap();
    world.check(&out, &biased);
    params.bias = DevicePtr::NULL;
    params.write = GemmWrite::AddF32;
    // SAFETY: likewise.
    unsafe { products.multiply(&world.stream, &params) }.unwrap();
    let sums: Vec<f32> = biased.iter().zip(&plain).map(|(b, p)| b + p).collect();
    world.check(&out, &sums);
    let stored = world.poisoned::<u8>((m * n) as usize * element.bytes());
    params.out = stored.ptr();
    params.write = GemmWrite::Store;
    for (bias, expected) in [(DevicePtr::NULL, &plain), (bias_list.ptr(), &biased)] {
        params.bias = bias;
        // SAFETY: likewise.
        unsafe { products.multiply(&world.stream, &params) }.unwrap();
        let got = world.stream.read(&stored, 0..stored.len()).unwrap();
        assert!(
            got == bytes_of(element, expected),
            "{element:?} {m} {n} {k}"
        );
    }
}

#[test]
fn heads_are_rotated_into_the_pool() {
    let world = World::new(34);
    let rope = RopeStore::load(&world.modules, F32).unwrap();
    // One query head and one key head of two elements, rotated by 90 degrees.
    let qkv = world.upload(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0_f32]);
    let rotations = world.upload(&[0.0, 1.0_f32]);
    let slots = world.upload(&[2_u32]);
    let (q, k, v) = (
        world.poisoned::<f32>(2),
        world.poisoned::<f32>(6),
        world.poisoned::<f32>(6),
    );
    let params = RopeStoreParams {
        q: q.ptr().cast(),
        k_pool: k.ptr().cast(),
        v_pool: v.ptr().cast(),
        qkv: qkv.ptr().cast(),
        q_norm: DevicePtr::NULL,
        k_norm: DevicePtr::NULL,
        rotations: rotations.ptr(),
        slots: slots.ptr(),
        n_heads: 1,
        n_kv_heads: 1,
        head_dim: 2,
        eps: 0.0,
    };
    // SAFETY: arrays of these shapes, three slots.
    unsafe { rope.launch(&world.stream, &params, 1) }.unwrap();
    world.check(&q, &[-2.0, 1.0]);
    let pool = |pool: &DeviceBuffer<f32>| world.stream.read(pool, 4..6).unwrap();
    assert_eq!((pool(&k), pool(&v)), (vec![-4.0, 3.0], vec![5.0, 6.0]));
}

#[test]
fn decodes_and_prefills_see_the_same_pages() {
    let world = World::new(35);
    check_attention(&world, F32, 8, 1);
    check_attention(&world, F32, 8, 3);
    check_attention(&world, ElementType::Bf16, 64, 1);
    check_attention(&world, ElementType::Bf16, 64, 3);
    check_attention(&world, ElementType::Bf16, 96, 2);
    check_attention(&world, ElementType::Bf16, 12, 2);
}

const N_TOKENS: u32 = 300;
const PAGE: u32 = 16;

/// A pool in which the slot of each position is filled with the position modulo 8.
fn paged_values(table: &[u32], width: usize) -> Vec<f32> {
    let n_slots = (table.len() + 1) * PAGE as usize;
    let mut values = vec![f32::NAN; n_slots * width];
    for position in 0..N_TOKENS {
        let slot = table[(position / PAGE) as usize] * PAGE + position % PAGE;
        values[slot as usize * width..][..width].fill((position % 8) as f32);
    }
    values
}

fn mean_of_context(position: u32) -> f32 {
    let seen = (0..=position).map(|p| (p % 8) as f32);
    seen.sum::<f32>() / (position + 1) as f32
}

fn segment(first_position: u32, n_tokens: u32) -> Segment {
    Segment {
        row: 0,
        first_token: 0,
        n_tokens,
        first_position,
    }
}

/// One row of 300 tokens with equal keys: each query gets the mean of the values of its context.
fn check_attention(world: &World, element: ElementType, head_dim: u32, n_splits: u32) {
    let shape = AttendShape {
        element,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim,
    };
    let attention = Attention::load(&world.modules, shape, 108).unwrap();
    let n_pages = N_TOKENS.div_ceil(PAGE);
    // Pages in reverse order, without page 0, which is padding.
    let table: Vec<u32> = (0..n_pages).map(|page| n_pages - page).collect();
    let values = paged_values(&table, (shape.n_kv_heads * head_dim) as usize);
    let keys = vec![0.0; values.len()];
    let bytes = |values: &[f32]| world.upload(&bytes_of(element, values));
    let q_len = (N_TOKENS * shape.n_heads * head_dim) as usize;
    let (q, k, v) = (bytes(&vec![1.0; q_len]), bytes(&keys), bytes(&values));
    let out = world.poisoned::<u8>(q_len * element.bytes());
    let table = world.upload(&table);
    let decode = world.upload(&[segment(N_TOKENS - 1, 1)]);
    let prefill = world.upload(&[segment(0, N_TOKENS)]);
    let tiles = (0..N_TOKENS).step_by(attention.queries_per_tile() as usize);
    let tiles = tiles.map(|first_query| Tile {
        segment: 0,
        first_query,
    });
    let tiles = world.upload(&tiles.collect::<Vec<_>>());
    let partials = world.poisoned::<f32>(attention.partials_len(1, n_splits));
    let mut params = AttendParams {
        out: out.ptr().cast(),
        q: q.ptr().cast(),
        k_pool: k.ptr().cast(),
        v_pool: v.ptr().cast(),
        page_table: table.ptr(),
        segments: decode.ptr(),
        tiles: tiles.ptr(),
        partials: partials.ptr(),
        table_stride: n_pages,
        page_size: PAGE,
        n_heads: shape.n_heads,
        n_kv_heads: shape.n_kv_heads,
        head_dim,
        window: 0,
        n_splits,
        scale_log2: 1.0,
    };
    let row = (shape.n_heads * head_dim) as usize;
    let check = |token: usize, position: u32| {
        let got = world.element(&out, element, token * row);
        let expected = mean_of_context(position);
        assert!(
            (got - expected).abs() <= 0.02,
            "{element:?} {head_dim} {n_splits} {position}: {got}, {expected}"
        );
    };
    // SAFETY: arrays of these shapes.
    unsafe { attention.decode(&world.stream, &params, 1) }.unwrap();
    check(0, N_TOKENS - 1);
    params.segments = prefill.ptr();
    // SAFETY: likewise.
    unsafe { attention.prefill(&world.stream, &params, tiles.len() as u32) }.unwrap();
    for position in [0, 1, 15, 16, 100, N_TOKENS - 1] {
        check(position as usize, position);
    }
}

/// From sm_90 on, kernels may begin early and wait for earlier launches (programmatic dependent launch).
#[test]
fn launches_begin_early_from_sm_90_on() {
    for (ordinal, capability, begins_early) in [(37, 80, false), (38, 90, true)] {
        let (_, emulated) = device(ordinal);
        emulated.set_capability(capability);
        let world = World::new(ordinal);
        let mut products =
            Products::new(&world.device, &world.modules, F32, GemmWish::Own).unwrap();
        check_products(&world, &mut products, F32, (3, 70, 8));
        let counts = emulated.counts();
        assert!(counts.n_launches > 0);
        let expected = if begins_early { counts.n_launches } else { 0 };
        assert_eq!(counts.n_early_launches, expected, "sm_{capability}");
    }
}

#[test]
fn every_kernel_of_every_type_is_found() {
    let world = World::new(36);
    for element in [F32, ElementType::Bf16] {
        Embed::load(&world.modules, element).unwrap();
        RmsNorm::load(&world.modules, element).unwrap();
        RopeStore::load(&world.modules, element).unwrap();
        SiluMul::load(&world.modules, element).unwrap();
        OwnGemm::load(&world.modules, element, 132).unwrap();
        for head_dim in [8, 32, 64, 96, 128, 160, 256] {
            let shape = AttendShape {
                element,
                n_heads: 8,
                n_kv_heads: 2,
                head_dim,
            };
            Attention::load(&world.modules, shape, 132).unwrap();
        }
    }
}
