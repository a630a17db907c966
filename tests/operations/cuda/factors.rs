//! Compares queries that are scaled by their positions with the CPU's.

use souffleur_base::ids::RowId;
use souffleur_kernels::Backend;
use souffleur_kernels::cpu::CpuBatch;
use souffleur_kernels::cuda::backend::{CudaBatch, check_periods};
use souffleur_kernels::cuda::driver::DevicePtr;
use souffleur_kernels::dtype::{Dtype, MatrixRole};
use souffleur_kernels::rope::PositionScale;
use souffleur_kernels::tensor_view::TensorView;

use super::{Gpu, PLAIN, VOCAB, compare, cpu, read};

const SCALE: PositionScale = PositionScale {
    slope: 0.4,
    period: 32,
};
/// Both sides of ends of periods, and the last position of the context.
const POSITIONS: [u32; 6] = [0, 31, 32, 63, 64, 159];
/// Four heads.
const WIDTH: usize = 48;

#[test]
fn queries_are_scaled_by_the_factors_of_their_periods() {
    let (mut gpu, mut cpu) = (Gpu::new(&PLAIN), cpu(&PLAIN));
    let mut random = fastrand::Rng::with_seed(5);
    let values: Vec<f32> = (0..VOCAB * WIDTH).map(|_| random.f32() - 0.5).collect();
    let shape = [VOCAB, WIDTH];
    let view = TensorView::plain(Dtype::F32, &shape, bytemuck::cast_slice(&values));
    let roles = [MatrixRole::Logits];
    let (on_gpu, on_cpu) = (
        gpu.backend.matrix(&[view], &roles),
        cpu.matrix(&[view], &roles),
    );
    gpu.end_loading(&PLAIN);
    gpu.backend.prepare_factors(SCALE).unwrap();
    let mut batch = CpuBatch::default();
    for (token, position) in (0..).zip(POSITIONS) {
        batch.push(RowId::new(1), position as usize, &[token], cpu.table());
    }
    let mut expected = cpu.embed(&on_cpu, None, &batch);
    cpu.scale_by_position(&mut expected, SCALE, &batch);
    let tokens = gpu.upload(&[0_u32, 1, 2, 3, 4, 5]);
    let periods = gpu.upload(&POSITIONS.map(|position| position / SCALE.period));
    let on_device = CudaBatch {
        n_tokens: POSITIONS.len(),
        tokens: tokens.ptr(),
        positions: DevicePtr::NULL,
        periods: periods.ptr(),
        slots: DevicePtr::NULL,
        decode_segments: DevicePtr::NULL,
        n_decode: POSITIONS.len(),
        prefill_segments: DevicePtr::NULL,
        tiles: DevicePtr::NULL,
        n_tiles: 0,
    };
    let mut got = gpu.backend.embed(&on_gpu, None, &on_device);
    gpu.backend.scale_by_position(&mut got, SCALE, &on_device);
    gpu.backend.take_failure().unwrap();
    let got = read(&gpu.backend, &got, true);
    compare(&PLAIN, 0, "scale_by_position", &got, expected.values());
}

#[test]
fn contexts_with_too_many_periods_are_refused() {
    assert!(check_periods(SCALE, 262_144).is_ok());
    let refused = check_periods(SCALE, 1 << 20).unwrap_err().to_string();
    assert!(refused.contains("32768 factors"), "{refused}");
}
