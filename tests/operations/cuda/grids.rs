//! Compares the rotations of images by rows and columns (M-RoPE) with the CPU's.

use souffleur_base::ids::RowId;
use souffleur_base::prompt_images::{ImageDigest, ImageGrid, PromptImage, PromptImages};
use souffleur_kernels::Backend;
use souffleur_kernels::cpu::CpuBatch;
use souffleur_kernels::cuda::backend::{CudaBackend, CudaBatch, GridToken};
use souffleur_kernels::cuda::driver::DevicePtr;
use souffleur_kernels::rope::Rope;

use super::{Gpu, PLAIN, compare, cpu, read};

type DeviceRope = <CudaBackend as Backend>::Rope;

/// Three tokens, an image of two rows of four vectors, two tokens, another of one row, and a token.
fn images() -> PromptImages {
    let image = |first: u32, rows: u32, columns: u32| PromptImage {
        positions: first..first + rows * columns,
        pad: 9,
        digest: ImageDigest([first as u8; 32]),
        grid: ImageGrid { rows, columns },
        vectors: None,
        input: None,
    };
    let mut tokens = [9; 17];
    for at in [0, 1, 2, 11, 12, 16] {
        tokens[at] = 5;
    }
    PromptImages::new(&tokens, &[image(3, 2, 4), image(13, 1, 3)]).expect("valid images")
}

/// The rotary positions of a step: a decode, the prompt with images but for its first token, and a text.
fn positions(images: &PromptImages) -> Vec<[u32; 3]> {
    let of_prompt = (1..17).map(|index| images.rotary_position(index));
    let text = (40..43).map(|index| [index; 3]);
    std::iter::once([30; 3])
        .chain(of_prompt)
        .chain(text)
        .collect()
}

/// The GPU's rotations of tokens with these positions.
fn rotations(gpu: &mut Gpu, rope: &DeviceRope, positions: &[[u32; 3]]) -> Vec<f32> {
    let first = positions.iter().map(|position| position[0]);
    let uploaded = gpu.upload(&first.collect::<Vec<u32>>());
    let grid_token = |(token, position): (u32, &[u32; 3])| {
        let position = *position;
        (position != [position[0]; 3]).then_some(GridToken { token, position })
    };
    let mut tokens: Vec<GridToken> = (0..).zip(positions).filter_map(grid_token).collect();
    gpu.backend.place_grid_tokens(&mut tokens);
    let batch = CudaBatch {
        n_tokens: positions.len(),
        tokens: DevicePtr::NULL,
        positions: uploaded.ptr(),
        periods: DevicePtr::NULL,
        slots: DevicePtr::NULL,
        decode_segments: DevicePtr::NULL,
        n_decode: 1,
        prefill_segments: DevicePtr::NULL,
        tiles: DevicePtr::NULL,
        n_tiles: 0,
    };
    let rotated = gpu.backend.rotations(rope, &batch);
    gpu.backend.take_failure().unwrap();
    read(&gpu.backend, &rotated, true)
}

#[test]
fn images_rotate_by_rows_and_columns_and_text_keeps_its_bits() {
    let rope = Rope {
        inv_freq: vec![0.9, 0.4, 0.11, 0.03, 0.7, 0.2],
        axes: Some(vec![0, 1, 2, 1, 2, 0]),
        attention_scale: 1.25,
        ..Rope::none()
    };
    let (mut gpu, mut cpu) = (Gpu::new(&PLAIN), cpu(&PLAIN));
    let (on_gpu, on_cpu) = (gpu.backend.rope(&rope), cpu.rope(&rope));
    gpu.end_loading(&PLAIN);
    let images = images();
    let mut batch = CpuBatch::default();
    batch.push(RowId::new(1), 30, &[5], cpu.table());
    batch.push(RowId::new(2), 1, &[5; 16], cpu.table());
    batch.place_images(&images);
    batch.push(RowId::new(4), 40, &[5; 3], cpu.table());
    let expected = cpu.rotations(&on_cpu, &batch);
    let positions = positions(&images);
    let got = rotations(&mut gpu, &on_gpu, &positions);
    compare(&PLAIN, 0, "rotations", &got, expected.values());
    let as_text: Vec<[u32; 3]> = positions.iter().map(|position| [position[0]; 3]).collect();
    let all_text = rotations(&mut gpu, &on_gpu, &as_text);
    let width = 2 * rope.inv_freq.len();
    let rows = got.chunks_exact(width).zip(all_text.chunks_exact(width));
    for ((got, text), (position, plain)) in rows.zip(positions.iter().zip(&as_text)) {
        let bits = |row: &[f32]| row.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(got) == bits(text), position == plain, "{position:?}");
    }
}
