//! Benchmark of sampling from a large vocabulary.

use super::Timing;
use super::lab::Lab;
use crate::cuda::driver::DriverError;
use crate::cuda::params::ElementType;
use crate::cuda::sampling::{
    BeginRowsParams, NONE, RowBegin, RowSampler, RowState, SampleParams, SampleWork, Sampled,
    SamplingKernels, SamplingShape, TIE_MARGIN,
};

/// The vocabulary of Qwen3.
const VOCAB: usize = 151_936;
const TINY_VOCAB: usize = 2500;
const ROWS: [usize; 4] = [1, 8, 32, 128];
/// Logits are uniform in [-12, 12].
const WIDTH: f32 = 12.0;

pub(super) fn measure(lab: &mut Lab, report: &mut dyn FnMut(Timing)) -> Result<(), DriverError> {
    let greedy = RowSampler {
        temperature: 1.0,
        inverse_temperature: 1.0,
        top_p: 1.0,
        repetition_penalty: 1.0,
        top_k: u32::MAX,
        is_greedy: 1,
        count_slot: NONE,
        ..RowSampler::default()
    };
    let top_p = RowSampler {
        top_p: 0.9,
        is_greedy: 0,
        ..greedy
    };
    let modes = [("greedy", greedy), ("top-p 0.9", top_p)];
    for rows in lab.sized(&ROWS[..], &[1, 3]) {
        for (mode, sampler) in modes {
            report(sample(lab, *rows, mode, sampler)?);
        }
    }
    Ok(())
}

fn sample(lab: &Lab, rows: usize, mode: &str, sampler: RowSampler) -> Result<Timing, DriverError> {
    let vocab = lab.sized(VOCAB, TINY_VOCAB);
    let kernels = SamplingKernels::load(&lab.modules)?;
    let shape = SamplingShape::new(rows, vocab, lab.multiprocessors());
    let samplers = lab.device.alloc::<RowSampler>(rows + 1)?;
    let states = lab.device.alloc::<RowState>(rows + 1)?;
    let out = lab.device.alloc::<Sampled>(rows)?;
    let workspace = lab.device.alloc::<u8>(shape.workspace_bytes())?;
    let logits = lab.copies(ElementType::F32, rows * vocab, WIDTH)?;
    let begins: Vec<RowBegin> = (1..=rows as u32)
        .map(|row| RowBegin {
            row,
            n_output: 0,
            sampler: RowSampler {
                seed: u64::from(row),
                ..sampler
            },
        })
        .collect();
    let begins = lab.upload(&begins)?;
    let params = BeginRowsParams {
        samplers: samplers.ptr(),
        states: states.ptr(),
        begins: begins.ptr(),
        n_begins: rows as u32,
        reserved: 0,
    };
    // SAFETY: arrays of the rows given, which live until the time is read.
    unsafe { kernels.begin_rows(&lab.stream, &params) }?;
    let works: Vec<SampleWork> = (0..rows as u32)
        .map(|row| SampleWork {
            row: row + 1,
            logits_row: row,
            mask: NONE,
            may_ban: 0,
        })
        .collect();
    let works = lab.upload(&works)?;
    let seconds = lab.time(|stream, nth| {
        let params = SampleParams {
            out: out.ptr(),
            logits: logits.at(nth),
            works: works.ptr(),
            samplers: samplers.ptr(),
            states: states.ptr(),
            peaks: workspace.ptr(),
            block_sums: workspace.at(shape.peaks_bytes),
            classes: workspace.at(shape.peaks_bytes + shape.block_sums_bytes),
            tie_margin: TIE_MARGIN,
            vocab: vocab as u32,
            stride: vocab as u32,
            n_works: rows as u32,
            chunk: shape.chunk,
            n_chunks: shape.n_chunks,
            ..SampleParams::default()
        };
        // SAFETY: as above.
        unsafe { kernels.sample(stream, &params) }
    })?;
    Ok(Timing {
        name: format!("sample {mode}, {rows} rows of {vocab}"),
        seconds,
        bytes: 4 * (rows * vocab) as u64,
        flop: 0,
    })
}
