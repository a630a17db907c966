//! Tests that block copies between the pool and other memory are exact.

use souffleur_kernels::cuda::driver::DevicePtr;
use souffleur_kernels::cuda::launch::{BlockCopy, KvBlockParams, KvBlocks, MOST_BLOCK_PAGES};

use super::{Gpu, POISON};

/// Keys and values of three layers.
const PLANES: usize = 6;
const PAGES: usize = 70;

/// Sizes of pages and blocks, and the range of a block's tokens to copy.
#[derive(Clone, Copy, Debug)]
struct Shape {
    token_bytes: usize,
    page_size: usize,
    block_tokens: usize,
    first: usize,
    n_tokens: usize,
}

#[test]
fn copies_to_a_block_and_back_to_pages_keep_the_bytes() {
    for token_bytes in [4, 64, 1036, 2048] {
        for (page_size, block_tokens, first, n_tokens) in [
            (1, 64, 0, 64),
            (1, 64, 13, 30),
            (16, 64, 16, 32),
            (64, 64, 0, 64),
            (128, 128, 0, 128),
        ] {
            for by_table in [false, true] {
                let shape = Shape {
                    token_bytes,
                    page_size,
                    block_tokens,
                    first,
                    n_tokens,
                };
                check(shape, by_table);
            }
        }
    }
}

fn check(shape: Shape, by_table: bool) {
    let mut gpu = Gpu::new();
    let what = format!("copy_block of {shape:?}, by a table: {by_table}");
    let copies = KvBlocks::load(&gpu.modules).unwrap();
    let Shape {
        token_bytes,
        page_size,
        block_tokens,
        first,
        n_tokens,
    } = shape;
    let stride = (PAGES * page_size * token_bytes).next_multiple_of(256);
    let pool: Vec<u8> = (0..PLANES * stride).map(|_| gpu.below(256) as u8).collect();
    // Distinct pages, not in ascending order.
    let pages: Vec<u32> = (0..n_tokens / page_size)
        .map(|index| (index * 29 % PAGES) as u32)
        .collect();
    let block_bytes = PLANES * block_tokens * token_bytes;
    let block = gpu.upload(&vec![POISON; block_bytes]);
    let (from, to) = (gpu.upload(&pool), gpu.upload(&vec![POISON; pool.len()]));
    let table = gpu.upload(&pages);
    let mut params = KvBlockParams {
        pool: from.ptr(),
        block: block.ptr(),
        table: if by_table {
            table.ptr()
        } else {
            DevicePtr::NULL
        },
        plane_stride: stride as u64,
        token_bytes: token_bytes as u32,
        page_size: page_size as u32,
        block_tokens: block_tokens as u32,
        first_token: first as u32,
        n_tokens: n_tokens as u32,
        direction: BlockCopy::ToBlock,
        pages: [0; MOST_BLOCK_PAGES],
    };
    if !by_table {
        params.pages[..pages.len()].copy_from_slice(&pages);
    }
    // SAFETY: see the module `twins`.
    unsafe { copies.launch(&gpu.stream, &params, PLANES as u32) }.unwrap();
    params.pool = to.ptr();
    params.direction = BlockCopy::ToPool;
    // SAFETY: likewise.
    unsafe { copies.launch(&gpu.stream, &params, PLANES as u32) }.unwrap();

    let mut expected_block = vec![POISON; block_bytes];
    let mut expected_pool = vec![POISON; pool.len()];
    for plane in 0..PLANES {
        for token in 0..n_tokens {
            let slot = pages[token / page_size] as usize * page_size + token % page_size;
            let in_pool = plane * stride + slot * token_bytes;
            let in_block = (plane * block_tokens + first + token) * token_bytes;
            let bytes = &pool[in_pool..in_pool + token_bytes];
            expected_block[in_block..in_block + token_bytes].copy_from_slice(bytes);
            expected_pool[in_pool..in_pool + token_bytes].copy_from_slice(bytes);
        }
    }
    let got = gpu.stream.read(&block, 0..block_bytes).unwrap();
    assert!(got == expected_block, "{what}: the block");
    let got = gpu.stream.read(&to, 0..pool.len()).unwrap();
    assert!(got == expected_pool, "{what}: the pool");
}
