//! Tests that sampled tokens and log probabilities agree with those of the host's sampler.

use std::sync::Arc;

use souffleur_kernels::cuda::driver::{DeviceBuffer, DevicePtr};
use souffleur_kernels::cuda::sampling::{
    BeginRowsParams, LogprobParams, LogprobWork, NONE, RowBegin, RowSampler as DeviceSampler,
    RowState, SampleParams, SampleWork, Sampled, SamplingKernels, SamplingShape, TIE_MARGIN,
    TokenLogprob,
};
use souffleur_state::sampling::{DrawScratch, RowSampler, SamplingParams, token_logprobs};

use super::Gpu;
use crate::gpu;

const ROWS: usize = 12;
const TOP: u32 = 5;

fn vocab_size() -> usize {
    match gpu::real() {
        Some(_) => 151_936,
        None => 5003,
    }
}

fn params(row: usize) -> SamplingParams {
    let default = SamplingParams {
        sampling_seed: Some(17 * row as u64 + 1),
        ..SamplingParams::default()
    };
    match row % 6 {
        0 => SamplingParams {
            temperature: 0.0,
            ..default
        },
        1 => default,
        2 => SamplingParams {
            top_p: 0.8,
            temperature: 0.7,
            ..default
        },
        3 => SamplingParams {
            top_k: 40,
            ..default
        },
        4 => SamplingParams {
            min_p: 0.05,
            temperature: 1.3,
            ..default
        },
        _ => SamplingParams {
            top_k: 200,
            top_p: 0.9,
            min_p: 0.01,
            ..default
        },
    }
}

fn begin(row: usize, n_output: u32) -> RowBegin {
    let params = params(row);
    let temperature = f64::from(params.temperature);
    RowBegin {
        row: row as u32 + 1,
        n_output,
        sampler: DeviceSampler {
            temperature,
            inverse_temperature: temperature.recip(),
            seed: params.sampling_seed.unwrap_or(0),
            top_p: params.top_p,
            min_p: params.min_p,
            repetition_penalty: 1.0,
            top_k: u32::try_from(params.top_k).unwrap_or(u32::MAX),
            is_greedy: u32::from(params.is_greedy()),
            count_slot: NONE,
            ..DeviceSampler::default()
        },
    }
}

/// Samplers and states of all rows, and a workspace.
struct Rows {
    kernels: SamplingKernels,
    samplers: DeviceBuffer<DeviceSampler>,
    states: DeviceBuffer<RowState>,
    shape: SamplingShape,
    workspace: DeviceBuffer<u8>,
}

impl Rows {
    fn new(gpu: &Gpu, vocab: usize) -> Self {
        let shape = SamplingShape::new(ROWS, vocab, gpu.multiprocessors());
        let bytes = shape.workspace_bytes();
        let workspace = gpu.device.alloc(bytes).unwrap();
        gpu.stream.fill(&workspace, 0..bytes, 0xff).unwrap();
        Self {
            kernels: SamplingKernels::load(&gpu.modules).unwrap(),
            samplers: gpu.device.alloc(ROWS + 1).unwrap(),
            states: gpu.device.alloc(ROWS + 1).unwrap(),
            shape,
            workspace,
        }
    }

    fn begin(&self, gpu: &Gpu, n_output: u32) {
        let begins: Vec<RowBegin> = (0..ROWS).map(|row| begin(row, n_output)).collect();
        let list = gpu.upload(&begins);
        let params = BeginRowsParams {
            samplers: self.samplers.ptr(),
            states: self.states.ptr(),
            begins: list.ptr(),
            n_begins: ROWS as u32,
            reserved: 0,
        };
        // SAFETY: see the module `twins`.
        unsafe { self.kernels.begin_rows(&gpu.stream, &params) }.unwrap();
    }

    fn sample(&self, gpu: &Gpu, logits: &DeviceBuffer<f32>, vocab: usize) -> DeviceBuffer<Sampled> {
        let works: Vec<SampleWork> = (0..ROWS as u32)
            .map(|row| SampleWork {
                row: row + 1,
                logits_row: row,
                mask: NONE,
                may_ban: 0,
            })
            .collect();
        let works = gpu.upload(&works);
        let out = gpu.device.alloc(ROWS).unwrap();
        let shape = &self.shape;
        let params = SampleParams {
            out: out.ptr(),
            logits: logits.ptr(),
            works: works.ptr(),
            samplers: self.samplers.ptr(),
            states: self.states.ptr(),
            peaks: self.workspace.ptr(),
            block_sums: self.workspace.at(shape.peaks_bytes),
            classes: self
                .workspace
                .at(shape.peaks_bytes + shape.block_sums_bytes),
            tie_margin: TIE_MARGIN,
            vocab: vocab as u32,
            stride: vocab as u32,
            n_works: ROWS as u32,
            chunk: shape.chunk,
            n_chunks: shape.n_chunks,
            ..SampleParams::default()
        };
        // SAFETY: see the module `twins`.
        unsafe { self.kernels.sample(&gpu.stream, &params) }.unwrap();
        out
    }
}

#[test]
fn tokens_equal_the_hosts() {
    let mut gpu = Gpu::new();
    let vocab = vocab_size();
    let rows = Rows::new(&gpu, vocab);
    for step in 0..6 {
        let logits = gpu.numbers(ROWS * vocab, 8.0);
        let list = gpu.upload(&logits);
        rows.begin(&gpu, step);
        let out = rows.sample(&gpu, &list, vocab);
        let got = gpu.stream.read(&out, 0..ROWS).unwrap();
        let mut scratch = DrawScratch::default();
        for (row, got) in got.iter().enumerate() {
            // These parameters depend only on the length of the output, not on its tokens.
            let output = vec![0; step as usize];
            let sampler = RowSampler::new(Arc::new(params(row)), vocab, &[], &[], &output);
            let mut logits = logits[row * vocab..(row + 1) * vocab].to_vec();
            let expected = sampler.choose(&mut logits, None, &mut scratch);
            let what = format!("row {row}, step {step}");
            assert_eq!(
                (got.token, got.is_nan()),
                (expected.token, expected.nan),
                "{what}"
            );
            assert_eq!(got.n_output, step + 1, "{what}");
        }
    }
}

#[test]
fn log_probabilities_equal_the_hosts() {
    let mut gpu = Gpu::new();
    let vocab = vocab_size();
    let rows = Rows::new(&gpu, vocab);
    let logits = gpu.numbers(ROWS * vocab, 8.0);
    let list = gpu.upload(&logits);
    rows.begin(&gpu, 0);
    let sampled = rows.sample(&gpu, &list, vocab);
    let places = 1 + TOP;
    let works: Vec<LogprobWork> = (0..ROWS as u32)
        .map(|row| LogprobWork {
            logits_row: row,
            token: 0,
            sampled: row,
            top: TOP,
            first_out: row * places,
            ..LogprobWork::default()
        })
        .collect();
    let works = gpu.upload(&works);
    let out: DeviceBuffer<TokenLogprob> = gpu.device.alloc(ROWS * places as usize).unwrap();
    let shape = &rows.shape;
    let params = LogprobParams {
        out: out.ptr(),
        sampled: sampled.ptr(),
        logits: list.ptr(),
        works: works.ptr(),
        ids: DevicePtr::NULL,
        masses: rows.workspace.ptr(),
        highest: rows.workspace.at(shape.masses_bytes),
        vocab: vocab as u32,
        stride: vocab as u32,
        n_works: ROWS as u32,
        n_chunks: shape.n_logprob_chunks,
        max_top: TOP,
        reserved: 0,
    };
    // SAFETY: see the module `twins`.
    unsafe { rows.kernels.logprobs(&gpu.stream, &params) }.unwrap();
    let got = gpu.stream.read(&out, 0..out.len()).unwrap();
    let sampled = gpu.stream.read(&sampled, 0..ROWS).unwrap();
    for (row, got) in got.chunks(places as usize).enumerate() {
        let logits = &logits[row * vocab..(row + 1) * vocab];
        let expected = token_logprobs(logits, sampled[row].token, TOP, &[]);
        let near = |a: f32, b: f32| (a - b).abs() < 1e-5;
        let logprob = expected.logprob.unwrap();
        assert!(
            got[0].token == expected.token && near(got[0].logprob, logprob),
            "row {row}"
        );
        for (got, expected) in got[1..].iter().zip(&expected.top) {
            assert!(
                got.token == expected.0 && near(got.logprob, expected.1),
                "row {row}"
            );
        }
    }
}
