//! Tests that the device's sampler chooses the same tokens as the host's, on random logits and parameters.

use std::sync::Arc;

use super::*;
use crate::cuda::stage::{N_SLOTS, UploadRing};
use souffleur_base::ids::{RowId, SeqId};
use souffleur_kernels::cuda::driver::Priority;
use souffleur_kernels::cuda::pack::Modules;
use souffleur_kernels::cuda::sampling::{SampleWork, Sampled, SamplingShape, TIE_MARGIN};
use souffleur_state::pool::pages::PageRun;
use souffleur_state::sampling::{DrawScratch, RowSampler as HostSampler};

const VOCAB: usize = 1500;
const ROWS: u32 = 12;
const EOS: u32 = 3;
const STEPS: usize = 12;

fn params(random: &mut fastrand::Rng) -> SamplingParams {
    let mut params = SamplingParams {
        sampling_seed: Some(random.u64(..)),
        temperature: [0.0, 0.4, 1.0, 2.5][random.usize(0..4)],
        ..SamplingParams::default()
    };
    let mut coin = || random.bool();
    let [top_k, top_p, min_p, counted, repeated, biased, long] = std::array::from_fn(|_| coin());
    if top_k {
        params.top_k = random.i32(1..60);
    }
    if top_p {
        params.top_p = 0.2 + 0.79 * random.f32();
    }
    if min_p {
        params.min_p = 0.3 * random.f32();
    }
    if counted {
        params.frequency_penalty = 2.0 * random.f32() - 1.0;
        params.presence_penalty = 2.0 * random.f32() - 1.0;
    }
    if repeated {
        params.repetition_penalty = 0.6 + random.f32();
    }
    if biased {
        let bias = |_| (random.u32(0..VOCAB as u32), 8.0 * random.f32() - 4.0);
        params.logit_bias = (0..9).map(bias).collect();
    }
    if long {
        params.min_new_tokens = 6;
        params.stop_token_ids = [7, 9, 7].into();
    }
    params
}

fn start(row: u32, random: &mut fastrand::Rng) -> RowStart {
    let (n_prompt, n_output) = (random.usize(1..40), random.usize(0..5));
    let tokens: Vec<u32> = (0..n_prompt + n_output)
        .map(|_| random.u32(0..VOCAB as u32))
        .collect();
    RowStart {
        row: RowId::new(row),
        seq: SeqId::new(u64::from(row)),
        tokens: tokens.into(),
        prompt_tokens: n_prompt as u32,
        grammar: None,
        vectors: None,
        images: None,
        pooling: None,
        sampling: params(random).into(),
        prefix: PageRun::empty(),
        state: None,
        draft_texts: Default::default(),
    }
}

struct Gpu {
    compute: Stream,
    kernels: SamplingKernels,
    samplers: RowSamplers,
    uploads: UploadRing,
}

impl Gpu {
    fn new() -> Self {
        souffleur_cusim::load();
        let device = Device::open(0).unwrap();
        // SAFETY: the emulated driver accepts this text as an image with every kernel.
        let modules = unsafe { Modules::from_images(&device, |_| b"cusim\0".to_vec()) }.unwrap();
        Self {
            compute: device.stream(Priority::High).unwrap(),
            kernels: SamplingKernels::load(&modules).unwrap(),
            samplers: RowSamplers::new(&device, ROWS as usize + 1, VOCAB, [EOS].into()).unwrap(),
            uploads: UploadRing::new(&device, N_SLOTS, 64).unwrap(),
        }
    }

    fn start(&mut self, starts: &[RowStart]) {
        self.samplers.reserve_counts(starts, &self.compute).unwrap();
        let mut buffer = ListBuffer::default();
        let lists = self.samplers.lay_out(starts, &mut buffer).unwrap();
        let uploaded = self.uploads.upload(buffer.words(), &self.compute).unwrap();
        let (uploads, compute) = (&self.uploads, &self.compute);
        let copy = |words, to: &DeviceBuffer<u32>, at| {
            uploads.copy_words(&uploaded, words, (to, at), compute)
        };
        let (start, kernels) = (uploaded.start, &self.kernels);
        self.samplers
            .start(&lists, start, kernels, compute, copy)
            .unwrap();
        uploads.release(uploaded, compute).unwrap();
    }

    fn sample(&self, rows: &[u32], logits: &[f32]) -> Vec<Sampled> {
        let device = self.compute.device();
        let works: Vec<SampleWork> = (0..)
            .zip(rows)
            .map(|(index, row)| SampleWork {
                row: *row,
                logits_row: index,
                mask: NONE,
                may_ban: 1,
            })
            .collect();
        let shape = SamplingShape::new(rows.len(), VOCAB, 4);
        let uploaded = device.alloc(works.len()).unwrap();
        self.compute.write(&uploaded, 0, &works).unwrap();
        let on_device = device.alloc(logits.len()).unwrap();
        self.compute.write(&on_device, 0, logits).unwrap();
        let out = device.alloc::<Sampled>(rows.len()).unwrap();
        let space = |bytes| device.alloc::<u8>(bytes).unwrap();
        let peaks = space(shape.peaks_bytes);
        let (block_sums, classes) = (space(shape.block_sums_bytes), space(shape.classes_bytes));
        let params = SampleParams {
            out: out.ptr(),
            logits: on_device.ptr(),
            works: uploaded.ptr(),
            peaks: peaks.ptr(),
            block_sums: block_sums.ptr(),
            classes: classes.ptr(),
            tie_margin: TIE_MARGIN,
            stride: VOCAB as u32,
            n_works: rows.len() as u32,
            chunk: shape.chunk,
            n_chunks: shape.n_chunks,
            ..self.samplers.sample_params()
        };
        // SAFETY: all buffers were just allocated in the sizes of `shape`, and live until the results are read.
        unsafe { self.kernels.sample(&self.compute, &params) }.unwrap();
        self.compute.read(&out, 0..rows.len()).unwrap()
    }
}

fn host(start: &RowStart) -> HostSampler {
    let (prompt, output) = start.tokens.split_at(start.prompt_tokens as usize);
    HostSampler::new(start.sampling.clone(), VOCAB, &[EOS], prompt, output)
}

fn logits(random: &mut fastrand::Rng, n_rows: usize) -> Vec<f32> {
    let mut logits: Vec<f32> = (0..n_rows * VOCAB)
        .map(|_| 6.0 * (random.f32() + random.f32() + random.f32()) - 9.0)
        .collect();
    // Sometimes one logit is NaN, so that host and device may choose different tokens; the first row has ties.
    if random.u32(0..4) == 0 {
        let place = random.usize(0..logits.len());
        logits[place] = f32::NAN;
    }
    for logit in &mut logits[..VOCAB] {
        *logit = logit.round();
    }
    logits
}

#[test]
fn device_and_host_sample_the_same_tokens() {
    let random = &mut fastrand::Rng::with_seed(5);
    let mut gpu = Gpu::new();
    let starts: Vec<RowStart> = (1..=ROWS).map(|row| start(row, random)).collect();
    gpu.start(&starts);
    let mut hosts: Vec<HostSampler> = starts.iter().map(host).collect();
    let mut starts = starts;
    let (mut scratch, mut n_nan) = (DrawScratch::default(), 0);
    for step in 0..STEPS {
        if step == STEPS / 2 {
            // Some rows restart while the others run.
            let again: Vec<RowStart> = (1..=ROWS / 2).map(|row| start(row * 2, random)).collect();
            gpu.start(&again);
            for start in again {
                let index = start.row.index() - 1;
                hosts[index] = host(&start);
                starts[index] = start;
            }
        }
        let mut rows: Vec<u32> = (1..=ROWS).collect();
        random.shuffle(&mut rows);
        rows.truncate(random.usize(1..=ROWS as usize));
        rows.push(0);
        let logits = logits(random, rows.len());
        let sampled = gpu.sample(&rows, &logits);
        for ((row, sampled), logits) in rows.iter().zip(&sampled).zip(logits.chunks(VOCAB)) {
            if *row == 0 {
                assert_eq!(sampled.n_output, 0);
                continue;
            }
            let host = &mut hosts[*row as usize - 1];
            let expected = host.choose(&mut logits.to_vec(), None, &mut scratch);
            let what = &starts[*row as usize - 1].sampling;
            assert_eq!(
                sampled.is_nan(),
                expected.nan,
                "step {step}, row {row}, {what:?}"
            );
            n_nan += usize::from(expected.nan);
            if !expected.nan {
                assert_eq!(
                    sampled.token, expected.token,
                    "step {step}, row {row}, {what:?}"
                );
            }
            // Both samplers count the device's token.
            host.record(sampled.token);
        }
    }
    assert!(n_nan > 0, "some rows have NaN logits");
}

#[test]
fn count_slots_grow_with_the_number_of_rows() {
    let random = &mut fastrand::Rng::with_seed(6);
    let mut gpu = Gpu::new();
    let penalized = |row| {
        let mut start = start(row, &mut fastrand::Rng::with_seed(u64::from(row)));
        Arc::make_mut(&mut start.sampling).repetition_penalty = 1.5;
        start
    };
    let starts: Vec<RowStart> = (1..=ROWS).map(penalized).collect();
    for start in &starts {
        gpu.start(std::slice::from_ref(start));
    }
    assert!(gpu.samplers.n_count_slots >= ROWS as usize);
    // A row that starts again frees its count slot first.
    let n_count_slots = gpu.samplers.n_count_slots;
    for _ in 0..3 {
        gpu.start(&starts);
    }
    assert_eq!(gpu.samplers.n_count_slots, n_count_slots);
    let rows: Vec<u32> = (1..=ROWS).collect();
    let logits = logits(random, rows.len());
    let sampled = gpu.sample(&rows, &logits);
    let mut scratch = DrawScratch::default();
    for ((start, sampled), logits) in starts.iter().zip(&sampled).zip(logits.chunks(VOCAB)) {
        let expected = host(start).choose(&mut logits.to_vec(), None, &mut scratch);
        assert_eq!(sampled.is_nan(), expected.nan);
        assert!(expected.nan || sampled.token == expected.token);
    }
}
