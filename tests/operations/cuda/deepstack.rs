//! Compares vectors of images at the embeddings' places, and those that are added to the outputs of layers, with the
//! CPU's.

use std::sync::Arc;

use souffleur_base::ids::RowId;
use souffleur_base::prompt_vectors::{PromptVectors, VectorRun};
use souffleur_kernels::Backend;
use souffleur_kernels::cpu::CpuBatch;
use souffleur_kernels::cuda::backend::CudaBatch;
use souffleur_kernels::cuda::driver::DevicePtr;
use souffleur_kernels::cuda::params::ElementType;
use souffleur_kernels::dtype::{Dtype, MatrixRole};
use souffleur_kernels::tensor_view::TensorView;

use super::{Case, Gpu, PLAIN, VOCAB, compare, cpu, read};

const TOKENS: usize = 90;
const SETS: usize = 2;

/// Two images, the first with more vectors than a product adds.
fn runs(hidden: usize, random: &mut fastrand::Rng) -> Vec<VectorRun> {
    let width = (1 + SETS) * hidden;
    let mut run = |first_token, vectors: std::ops::Range<usize>| {
        let values = (0..80 * width).map(|_| random.f32() - 0.5).collect();
        let prompt = PromptVectors::new(width, values).unwrap();
        VectorRun {
            first_token,
            prompt: Arc::new(prompt),
            vectors,
        }
    };
    vec![run(3, 5..75), run(80, 0..4)]
}

fn check(case: Case) {
    let (mut gpu, mut cpu) = (Gpu::new(&case), cpu(&case));
    let mut random = fastrand::Rng::with_seed(7);
    // These values are exact in both element types.
    let values: Vec<f32> = (0..VOCAB * case.hidden)
        .map(|_| random.i32(-64..64) as f32 / 64.0)
        .collect();
    let shape = [VOCAB, case.hidden];
    let view = TensorView::plain(Dtype::F32, &shape, bytemuck::cast_slice(&values));
    let roles = [MatrixRole::Logits];
    let (on_gpu, on_cpu) = (
        gpu.backend.matrix(&[view], &roles),
        cpu.matrix(&[view], &roles),
    );
    gpu.end_loading(&case);
    let mut runs = runs(case.hidden, &mut random);
    let tokens: Vec<u32> = (0..TOKENS as u32).map(|at| at % VOCAB as u32).collect();
    let mut batch = CpuBatch::default();
    batch.push(RowId::new(1), 0, &tokens, cpu.table());
    runs.iter().for_each(|run| batch.place_vectors(run.clone()));
    let uploaded = gpu.upload(&tokens);
    let on_device = CudaBatch {
        n_tokens: TOKENS,
        tokens: uploaded.ptr(),
        positions: DevicePtr::NULL,
        periods: DevicePtr::NULL,
        slots: DevicePtr::NULL,
        decode_segments: DevicePtr::NULL,
        n_decode: 0,
        prefill_segments: DevicePtr::NULL,
        tiles: DevicePtr::NULL,
        n_tiles: 0,
    };
    gpu.backend.place_vectors(&mut runs);
    let mut expected = cpu.embed(&on_cpu, None, &batch);
    let mut got = gpu.backend.embed(&on_gpu, None, &on_device);
    for set in 0..=SETS {
        let values = read(&gpu.backend, &got, true);
        let name = format!("{set} sets added");
        compare(&case, 0, &name, &values, expected.values());
        cpu.add_image_vectors(&mut expected, set, &batch);
        gpu.backend.add_image_vectors(&mut got, set, &on_device);
        gpu.backend.take_failure().unwrap();
    }
    // There is no third set.
    let values = read(&gpu.backend, &got, true);
    compare(&case, 0, "all sets added", &values, expected.values());
}

#[test]
fn further_vectors_of_images_are_added_to_the_rows_of_their_tokens() {
    check(PLAIN);
    check(Case {
        element: ElementType::Bf16,
        ..PLAIN
    });
}
