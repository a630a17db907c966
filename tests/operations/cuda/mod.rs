//! Tests that compare every operation of the CUDA backend, on the emulated driver, with the CPU backend's. Weights are
//! random, and the memory of activations is filled with NaN before each step.

mod deepstack;
mod factors;
mod grids;
mod model;

use std::sync::Arc;

use half::bf16;

use self::model::{Model, OpResult, model, run};
use souffleur_base::ids::{PageId, RowId};
use souffleur_base::kv_layout::{KvLayout, PagedKv, Values};
use souffleur_kernels::HeadShape;
use souffleur_kernels::cpu::{CpuBackend, CpuBatch, CpuSizes, Isa, Numa};
use souffleur_kernels::cuda::backend::{CudaBackend, CudaBatch, CudaSizes, Tensor, TokenList};
use souffleur_kernels::cuda::driver::{Device, DeviceBuffer, DevicePtr, Priority};
use souffleur_kernels::cuda::gemm::GemmWish;
use souffleur_kernels::cuda::pack::Modules;
use souffleur_kernels::cuda::params::{ElementType, Segment, Tile};
use souffleur_kernels::dtype::Dtype;
use souffleur_kernels::shape::{AttentionShape, DecoderShape};
use souffleur_kernels::shard::Rank;

const VOCAB: usize = 70;
const PAGES: usize = 1000;
const ROWS: usize = 6;
const CONTEXT: usize = 160;
const NAN_BYTE: u8 = 0xff;

#[derive(Clone, Copy, Debug)]
struct Case {
    element: ElementType,
    hidden: usize,
    mlp: usize,
    heads: (usize, usize, usize),
    page_size: usize,
    window: Option<usize>,
    head_norms: bool,
    bias: bool,
}

impl Case {
    fn decoder(&self) -> DecoderShape {
        let (n_heads, n_kv_heads, head_dim) = self.heads;
        DecoderShape {
            hidden: self.hidden,
            intermediate: self.mlp,
            vocab: VOCAB,
            attention: AttentionShape {
                n_heads,
                n_kv_heads,
                head_dim,
            },
        }
    }

    fn kv(&self) -> KvLayout {
        let (_, heads, key_dim) = self.heads;
        let pages = PagedKv {
            heads,
            key_dim,
            values: Values::Own { dim: key_dim },
            labels: 0,
            dtype: self.dtype().into(),
        };
        KvLayout::uniform(1, pages)
    }

    fn layer_heads(&self) -> HeadShape {
        let (n_heads, n_kv_heads, head_dim) = self.heads;
        HeadShape {
            n_heads,
            n_kv_heads,
            key_dim: head_dim,
            values: Values::Own { dim: head_dim },
            scale: (head_dim as f32).powf(-0.5),
            score_cap: None,
            window: self.window,
        }
    }

    fn dtype(&self) -> Dtype {
        match self.element {
            ElementType::F32 => Dtype::F32,
            ElementType::Bf16 => Dtype::BF16,
        }
    }

    /// Largest difference, as a share of the largest value.
    fn tolerance(&self) -> f32 {
        match self.element {
            ElementType::F32 => 2e-5,
            ElementType::Bf16 => 0.03,
        }
    }
}

#[derive(Clone, Debug)]
struct Chunk {
    row: u32,
    first_position: usize,
    tokens: Vec<u32>,
}

fn page(row: u32, index: usize) -> u32 {
    // Pages are scattered, and no two rows share one.
    1 + (index as u32 * ROWS as u32 + row) * 7 % (PAGES as u32 - 1)
}

fn tokens(random: &mut fastrand::Rng, n: usize) -> Vec<u32> {
    (0..n).map(|_| random.u32(0..VOCAB as u32)).collect()
}

/// Three steps: prefills, decodes with a later chunk of a prompt, and decodes only.
fn steps() -> Vec<Vec<Chunk>> {
    let random = &mut fastrand::Rng::with_seed(11);
    let mut chunk = |row, first_position, n| Chunk {
        row,
        first_position,
        tokens: tokens(random, n),
    };
    vec![
        vec![
            chunk(1, 0, 1),
            chunk(2, 0, 37),
            chunk(4, 0, 20),
            chunk(3, 0, 130),
        ],
        vec![chunk(1, 1, 1), chunk(2, 37, 1), chunk(4, 20, 33)],
        vec![
            chunk(3, 130, 1),
            chunk(1, 2, 1),
            chunk(4, 53, 1),
            chunk(2, 38, 1),
        ],
    ]
}

struct Gpu {
    backend: CudaBackend,
    device: Device,
    sizes: CudaSizes,
}

impl Gpu {
    fn new(case: &Case) -> Self {
        souffleur_cusim::load();
        let device = Device::open(0).unwrap();
        let stream = Arc::new(device.stream(Priority::High).unwrap());
        // SAFETY: to the emulated driver this text is an image that has every kernel.
        let modules = unsafe { Modules::from_images(&device, |_| b"cusim\0".to_vec()) }.unwrap();
        let sizes = CudaSizes {
            element: case.element,
            n_pages: PAGES,
            page_size: case.page_size,
            n_rows: ROWS,
            context_tokens: CONTEXT,
            step_tokens: 200,
            logit_rows: 8,
            gemm: GemmWish::Own,
            weights: (1 << 20, 20),
            rank: Rank::ONLY,
        };
        let backend = CudaBackend::new(&device, stream, &modules, &case.decoder(), &sizes);
        Self {
            backend: backend.unwrap(),
            device,
            sizes,
        }
    }

    fn end_loading(&mut self, case: &Case) {
        self.backend.end_loading().unwrap();
        let (decoder, sizes) = (case.decoder(), &self.sizes);
        self.backend
            .take_memory(&decoder, &case.kv(), sizes)
            .unwrap();
        let stride = self.backend.table_stride;
        for row in 1..ROWS as u32 {
            let pages: Vec<u32> = (0..stride).map(|index| page(row, index)).collect();
            let at = row as usize * stride;
            let table = &self.backend.page_table;
            self.backend.stream.write(table, at, &pages).unwrap();
        }
    }

    fn upload<T: bytemuck::Pod>(&self, values: &[T]) -> DeviceBuffer<T> {
        let buffer = self.device.alloc(values.len()).unwrap();
        self.backend.stream.write(&buffer, 0, values).unwrap();
        buffer
    }

    /// Runs a step, whose decodes come before its prefills, and returns the results of its operations.
    fn run(&mut self, model: &Model<CudaBackend>, case: &Case, chunks: &[Chunk]) -> Vec<Vec<f32>> {
        let all = chunks.iter().flat_map(|chunk| chunk.tokens.clone());
        let tokens = self.upload(&all.collect::<Vec<_>>());
        let positions = positions(chunks);
        let slots = self.upload(&slots(chunks, &positions, case.page_size));
        let positions = self.upload(&positions);
        let segments = segments(chunks);
        let is_decode = |segment: &&Segment| segment.n_tokens == 1 && segment.first_position > 0;
        let n_decode = segments.iter().take_while(is_decode).count();
        let per_tile = self.backend.queries_per_tile();
        let tiles = (0..)
            .zip(&segments[n_decode..])
            .flat_map(|(index, segment)| {
                let firsts = (0..segment.n_tokens).step_by(per_tile);
                firsts.map(move |first_query| Tile {
                    segment: index,
                    first_query,
                })
            });
        let tiles = self.upload(&tiles.collect::<Vec<_>>());
        let segments = self.upload(&segments);
        let wanted = self.upload(&last_tokens(chunks));
        let batch = CudaBatch {
            n_tokens: tokens.len(),
            tokens: tokens.ptr(),
            positions: positions.ptr(),
            periods: DevicePtr::NULL,
            slots: slots.ptr(),
            decode_segments: segments.ptr(),
            n_decode,
            prefill_segments: segments.at(n_decode),
            tiles: tiles.ptr(),
            n_tiles: tiles.len(),
        };
        let list = TokenList {
            tokens: wanted.ptr(),
            len: wanted.len(),
        };
        let activations = &self.backend.activations;
        let whole = 0..activations.len();
        self.backend
            .stream
            .fill(activations, whole, NAN_BYTE)
            .unwrap();
        let mut results = Vec::new();
        run(
            &mut self.backend,
            model,
            case,
            &batch,
            &list,
            &mut |backend, _, result, is_f32| {
                let (OpResult::Tensor(tensor) | OpResult::Operand(tensor)) = result;
                results.push(read(backend, tensor, is_f32));
            },
        );
        self.backend.take_failure().unwrap();
        results
    }
}

fn positions(chunks: &[Chunk]) -> Vec<u32> {
    let positions = chunks.iter().flat_map(|chunk| {
        let first = chunk.first_position;
        (first..first + chunk.tokens.len()).map(|position| position as u32)
    });
    positions.collect()
}

fn slots(chunks: &[Chunk], positions: &[u32], page_size: usize) -> Vec<u32> {
    let rows = chunks
        .iter()
        .flat_map(|chunk| chunk.tokens.iter().map(|_| chunk.row));
    let slots = rows.zip(positions).map(|(row, position)| {
        let position = *position as usize;
        let page = page(row, position / page_size) as usize;
        (page * page_size + position % page_size) as u32
    });
    slots.collect()
}

fn segments(chunks: &[Chunk]) -> Vec<Segment> {
    let mut first_token = 0;
    let segments = chunks.iter().map(|chunk| {
        let segment = Segment {
            row: chunk.row,
            first_token,
            n_tokens: chunk.tokens.len() as u32,
            first_position: chunk.first_position as u32,
        };
        first_token += segment.n_tokens;
        segment
    });
    segments.collect()
}

/// The last token of each chunk, in reverse: results must be in the order of the list.
fn last_tokens(chunks: &[Chunk]) -> Vec<u32> {
    let mut end = 0;
    let last = |chunk: &Chunk| {
        end += chunk.tokens.len() as u32;
        end - 1
    };
    chunks.iter().map(last).rev().collect()
}

fn read(backend: &CudaBackend, tensor: &Tensor, is_f32: bool) -> Vec<f32> {
    let bytes = if is_f32 { 4 } else { backend.element.bytes() };
    let start = (tensor.start.address() - backend.activations.ptr().address()) as usize;
    let range = start..start + tensor.rows * tensor.width * bytes;
    let read = backend.stream.read(&backend.activations, range).unwrap();
    match bytes {
        4 => read
            .chunks_exact(4)
            .map(bytemuck::pod_read_unaligned)
            .collect(),
        _ => {
            let pairs = read.chunks_exact(2).map(bytemuck::pod_read_unaligned);
            pairs.map(|bits| bf16::from_bits(bits).to_f32()).collect()
        }
    }
}

fn cpu(case: &Case) -> CpuBackend {
    let mut backend = CpuBackend::new(&CpuSizes {
        dtype: case.dtype(),
        quantization: None,
        threads: 1,
        pin_threads: false,
        numa: Numa::Off,
        isa: Isa::chosen().unwrap(),
        kv: case.kv(),
        n_pages: PAGES,
        page_size: case.page_size,
        n_rows: ROWS,
        n_state_slots: 0,
        n_window_pages: 0,
        shared_prefix: false,
        sparsity: None,
    })
    .unwrap();
    for row in 1..ROWS as u32 {
        let pages = (0..CONTEXT / case.page_size).map(|index| PageId::new(page(row, index)));
        backend.table_mut().row_mut(RowId::new(row)).extend(pages);
    }
    backend
}

fn check(case: Case) {
    let (mut gpu, mut cpu) = (Gpu::new(&case), cpu(&case));
    let gpu_model = model(&mut gpu.backend, &case);
    gpu.end_loading(&case);
    let cpu_model = model(&mut cpu, &case);
    for (step, chunks) in steps().iter().enumerate() {
        let mut batch = CpuBatch::default();
        for chunk in chunks {
            let row = RowId::new(chunk.row);
            batch.push(row, chunk.first_position, &chunk.tokens, cpu.table());
        }
        let mut expected = Vec::new();
        cpu.wake();
        let list = last_tokens(chunks);
        run(
            &mut cpu,
            &cpu_model,
            &case,
            &batch,
            &list,
            &mut |_, name, result, _| {
                let values = match result {
                    OpResult::Tensor(tensor) => tensor.values().to_vec(),
                    OpResult::Operand(rows) => rows.values(),
                };
                expected.push((name, values));
            },
        );
        cpu.rest();
        let got = gpu.run(&gpu_model, &case, chunks);
        for ((name, expected), got) in expected.iter().zip(&got) {
            compare(&case, step, name, got, expected);
        }
    }
}

fn compare(case: &Case, step: usize, name: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{case:?}, step {step}, {name}");
    let largest = expected
        .iter()
        .fold(0.0f32, |max, value| max.max(value.abs()));
    let limit = case.tolerance() * largest;
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        // The comparison is false for NaN, so NaN fails.
        assert!(
            (got - expected).abs() <= limit,
            "{case:?}, step {step}, {name}, element {index}: {got}, {expected} on the CPU, limit {limit}"
        );
    }
}

const PLAIN: Case = Case {
    element: ElementType::F32,
    hidden: 40,
    mlp: 48,
    heads: (4, 2, 12),
    page_size: 1,
    window: None,
    head_norms: false,
    bias: true,
};

#[test]
fn operations_in_f32_agree_with_the_cpu() {
    check(PLAIN);
    check(Case {
        heads: (3, 1, 16),
        page_size: 3,
        window: Some(19),
        head_norms: true,
        bias: false,
        ..PLAIN
    });
}

#[test]
fn plain_operations_in_bf16_agree_with_the_cpu() {
    check(Case {
        element: ElementType::Bf16,
        page_size: 5,
        ..PLAIN
    });
}

#[test]
fn tensor_core_operations_agree_with_the_cpu() {
    let heads = [(4, 2, 64), (2, 1, 128), (5, 1, 96)];
    for (heads, page_size) in heads.into_iter().zip([1, 16, 32]) {
        check(Case {
            element: ElementType::Bf16,
            hidden: 64,
            mlp: 96,
            heads,
            page_size,
            window: (page_size == 16).then_some(40),
            head_norms: page_size > 1,
            bias: page_size == 1,
        });
    }
}
