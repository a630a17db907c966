//! Launches of attention_decode.cu and attention_prefill.cu: paged attention.

use super::super::driver::{DriverError, Grid, Kernel, Stream};
use super::super::pack::Modules;
use super::super::params::{AttendParams, ElementType};

const DECODE: &str = "attention_decode.cu";
const PREFILL: &str = "attention_prefill.cu";
const THREADS: u32 = 128;
const COMBINE_THREADS: u32 = 128;
/// Heads of a group per thread block of the tensor-core decode.
const DECODE_HEADS: u32 = 16;
const PLAIN_TILE_QUERIES: u32 = 16;
const MAX_SPLITS: u32 = 64;
/// Minimum keys of a split: fewer are not worth a thread block.
const KEYS_PER_SPLIT: u32 = 128;
const MAX_HEAD_DIM: u32 = 256;
/// Tensor-core kernels copy rows of heads in pieces of this many elements, 16 bytes.
const DIM_STEP: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttendShape {
    pub element: ElementType,
    pub n_heads: u32,
    pub n_kv_heads: u32,
    pub head_dim: u32,
}

impl AttendShape {
    fn group(&self) -> u32 {
        self.n_heads / self.n_kv_heads
    }

    /// Launch parameters of the tensor-core kernels, if these heads use them. Heads are zero-padded to a kernel's size,
    /// which does not pay for heads below half of the smallest size.
    fn tensor(&self) -> Option<TensorLaunch> {
        let launch = |padded_dim, threads, decode_bytes, prefill_bytes, prefill_rows| {
            Some(TensorLaunch {
                padded_dim,
                decode_threads: threads,
                decode_shared_bytes: decode_bytes,
                prefill_shared_bytes: prefill_bytes,
                prefill_rows,
            })
        };
        match (self.element, self.head_dim) {
            (ElementType::F32, _) => None,
            (_, dim) if !dim.is_multiple_of(DIM_STEP) => None,
            (_, 32..=64) => launch(64, 128, 49_152, 32_768, 128),
            (_, 65..=128) => launch(128, 128, 65_536, 65_536, 128),
            (_, 129..=256) => launch(256, 64, 73_728, 65_536, 64),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct TensorLaunch {
    /// Head size that the kernels are compiled for, part of their names.
    padded_dim: u32,
    decode_threads: u32,
    decode_shared_bytes: u32,
    prefill_shared_bytes: u32,
    /// (Query, head of its group) pairs in a tile.
    prefill_rows: u32,
}

#[derive(Clone, Debug)]
pub struct Attention {
    shape: AttendShape,
    multiprocessors: u32,
    decode: Kernel,
    /// Thread blocks for all heads of a row and split.
    decode_blocks: u32,
    decode_threads: u32,
    decode_shared_bytes: u32,
    combine: Kernel,
    prefill: Kernel,
    prefill_blocks: u32,
    prefill_shared_bytes: u32,
    queries_per_tile: u32,
}

impl Attention {
    /// # Errors
    /// If a kernel is missing, the GPU has too little shared memory, or the kernels do not support the heads.
    pub fn load(
        modules: &Modules,
        shape: AttendShape,
        multiprocessors: u32,
    ) -> Result<Self, DriverError> {
        shape.check()?;
        let suffix = shape.element.suffix();
        let tensor = shape.tensor();
        let tiled = tensor.filter(|launch| shape.group() <= launch.prefill_rows);
        let group = shape.group();
        let name = |operation: &str, tensor: Option<TensorLaunch>| match tensor {
            Some(launch) => format!("{operation}_{suffix}_d{}", launch.padded_dim),
            None => format!("{operation}_generic_{suffix}"),
        };
        let attention = Self {
            shape,
            multiprocessors,
            decode: modules.kernel(DECODE, &name("attend_decode", tensor))?,
            decode_blocks: match tensor {
                Some(_) => shape.n_kv_heads * group.div_ceil(DECODE_HEADS),
                None => shape.n_heads,
            },
            decode_threads: tensor.map_or(THREADS, |launch| launch.decode_threads),
            decode_shared_bytes: tensor.map_or(0, |launch| launch.decode_shared_bytes),
            combine: modules.kernel(DECODE, &format!("attend_combine_{suffix}"))?,
            prefill: modules.kernel(PREFILL, &name("attend_prefill", tiled))?,
            prefill_blocks: match tiled {
                Some(_) => shape.n_kv_heads,
                None => shape.n_heads,
            },
            prefill_shared_bytes: tiled.map_or(0, |launch| launch.prefill_shared_bytes),
            queries_per_tile: tiled
                .map_or(PLAIN_TILE_QUERIES, |launch| launch.prefill_rows / group),
        };
        let Self {
            decode, prefill, ..
        } = &attention;
        decode.allow_shared_bytes(attention.decode_shared_bytes)?;
        prefill.allow_shared_bytes(attention.prefill_shared_bytes)?;
        Ok(attention)
    }

    /// Queries of a tile of [`Self::prefill`]; tile `i` of a segment begins at query `i` times this number.
    pub fn queries_per_tile(&self) -> u32 {
        self.queries_per_tile
    }

    /// Splits of each context in a decode of `n_segments` rows: enough thread blocks to fill the GPU twice, without
    /// splits that are too small.
    pub fn n_splits(&self, n_segments: u32, longest_context: u32) -> u32 {
        let blocks = (self.decode_blocks * n_segments).max(1);
        let wanted = (2 * self.multiprocessors).div_ceil(blocks);
        wanted
            .clamp(1, MAX_SPLITS)
            .min(longest_context.div_ceil(KEYS_PER_SPLIT).max(1))
    }

    pub fn partials_len(&self, n_segments: u32, n_splits: u32) -> usize {
        match n_splits {
            0 | 1 => 0,
            n => {
                let records = n_segments as usize * self.shape.n_heads as usize * n as usize;
                records * (self.shape.head_dim as usize + 2)
            }
        }
    }

    /// The first `n_segments` segments have one query each.
    ///
    /// # Safety
    /// See the module; q, out and pools are aligned to 16 bytes.
    pub unsafe fn decode(
        &self,
        stream: &Stream,
        params: &AttendParams,
        n_segments: u32,
    ) -> Result<(), DriverError> {
        self.check(params);
        assert!(
            params.n_splits >= 1,
            "n_splits must be at least 1: {params:?}"
        );
        assert!(params.n_splits == 1 || !params.partials.is_null());
        let blocks = [self.decode_blocks, n_segments, params.n_splits];
        let grid = Grid::new(blocks, self.decode_threads).shared(self.decode_shared_bytes);
        // SAFETY: guaranteed by the caller; arguments as in attention_decode.cu.
        unsafe { self.decode.launch(stream, grid, &(*params,)) }?;
        if params.n_splits == 1 {
            return Ok(());
        }
        let grid = Grid::new([self.shape.n_heads, n_segments, 1], COMBINE_THREADS);
        // SAFETY: likewise.
        unsafe { self.combine.launch(stream, grid, &(*params,)) }
    }

    /// # Safety
    /// See the module; q, out and pools are aligned to 16 bytes.
    pub unsafe fn prefill(
        &self,
        stream: &Stream,
        params: &AttendParams,
        n_tiles: u32,
    ) -> Result<(), DriverError> {
        self.check(params);
        let grid =
            Grid::new([n_tiles, self.prefill_blocks, 1], THREADS).shared(self.prefill_shared_bytes);
        // SAFETY: guaranteed by the caller; arguments as in attention_prefill.cu.
        unsafe { self.prefill.launch(stream, grid, &(*params,)) }
    }

    fn check(&self, params: &AttendParams) {
        let AttendShape {
            n_heads,
            n_kv_heads,
            head_dim,
            ..
        } = self.shape;
        assert_eq!(
            (params.n_heads, params.n_kv_heads, params.head_dim),
            (n_heads, n_kv_heads, head_dim)
        );
        assert!(params.page_size >= 1);
        let aligned = [params.out, params.q, params.k_pool, params.v_pool];
        assert!(
            aligned.iter().all(|ptr| ptr.address().is_multiple_of(16)),
            "q, out and pools must be aligned to 16 bytes: {params:?}"
        );
    }
}

impl AttendShape {
    fn check(&self) -> Result<(), DriverError> {
        let Self {
            n_heads,
            n_kv_heads,
            head_dim,
            ..
        } = *self;
        let divides = n_kv_heads > 0 && n_heads > 0 && n_heads.is_multiple_of(n_kv_heads);
        let reason = if !divides {
            format!(
                "there are {n_heads} query heads, but the CUDA kernels need a multiple of the {n_kv_heads} key heads"
            )
        } else if !(1..=MAX_HEAD_DIM).contains(&head_dim) {
            format!(
                "a head has {head_dim} elements, and the CUDA kernels support 1 to {MAX_HEAD_DIM}"
            )
        } else {
            return Ok(());
        };
        Err(DriverError::unsupported(format!(
            "{reason}; use --device cpu"
        )))
    }
}
