//! The CUDA backend ([`Backend`](crate::Backend)): every operation is a kernel launch on one stream.
//!
//! Residual stream, rotations and logits are f32; other activations and KV have the weights' type (f32 or bfloat16).
//! Nothing is allocated after loading: activations come from an arena. The first failure is kept; later operations
//! launch nothing, and the executor checks for a failure before it uses a result.

use std::sync::Arc;

use super::arena::{Arena, Part};
use super::driver::{Device, DeviceBuffer, DevicePtr, DriverError, Stream};
use super::gemm::{GemmWish, Products};
use super::launch::{
    AttendShape, Attention, Embed, FillRandom, KvBlocks, RmsNorm, RopeStore, SiluMul,
};
use super::nccl::NcclError;
use super::pack::Modules;
use super::params::{Element, ElementType, Segment, Tile};
use super::weights::WeightLoader;
use crate::shape::DecoderShape;
use crate::shard::Rank;
use souffleur_base::kv_layout::KvLayout;

mod blocks;
mod deepstack;
mod factors;
mod grids;
mod memory;
mod operations;
mod ranks;
mod vectors;

pub use factors::check_periods;
pub use grids::GridToken;
use memory::KvPool;
pub use memory::{activation_bytes, check_layout};
use ranks::OtherRanks;
use vectors::EmbeddingUploads;

#[derive(Clone, Debug, thiserror::Error)]
pub enum CudaFailure {
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Ranks(#[from] NcclError),
    #[error(
        "failed to allocate {wanted_bytes} bytes in the {arena_bytes}-byte activation buffer, which is too small (a \
         bug): file an issue"
    )]
    OutOfArena {
        wanted_bytes: usize,
        arena_bytes: usize,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct CudaSizes {
    pub element: ElementType,
    /// Without the dummy page.
    pub n_pages: usize,
    pub page_size: usize,
    /// Including row 0.
    pub n_rows: usize,
    pub context_tokens: usize,
    pub step_tokens: usize,
    pub logit_rows: usize,
    pub gemm: GemmWish,
    /// Bytes and number of weight tensors.
    pub weights: (usize, usize),
    /// The part of the model that the backend computes.
    pub rank: Rank,
}

#[derive(Clone, Copy, Debug)]
pub struct CudaBatch {
    /// Number of query tokens: rows that decode (with padding) first, then prefills.
    pub n_tokens: usize,
    /// `[n_tokens]`.
    pub tokens: DevicePtr<u32>,
    /// `[n_tokens]`, by which queries and keys rotate. With M-RoPE they differ from the places in the sequence after an
    /// image, and [`CudaBackend::place_grid_tokens`] has those of its vectors.
    pub positions: DevicePtr<u32>,
    /// `[n_tokens]`: places in the sequences, divided by the period of [`CudaBackend::prepare_factors`]. Null if queries are
    /// not scaled.
    pub periods: DevicePtr<u32>,
    /// `[n_tokens]`.
    pub slots: DevicePtr<u32>,
    pub decode_segments: DevicePtr<Segment>,
    pub n_decode: usize,
    pub prefill_segments: DevicePtr<Segment>,
    /// Tiles of [`CudaBackend::queries_per_tile`] prefill queries.
    pub tiles: DevicePtr<Tile>,
    pub n_tiles: usize,
}

/// Rows of the residual stream whose logits are computed.
#[derive(Clone, Copy, Debug)]
pub struct TokenList {
    /// Indices of tokens; null for the first `len` tokens.
    pub tokens: DevicePtr<u32>,
    pub len: usize,
}

/// A matrix of activations; dropping it frees its memory.
pub struct Tensor {
    pub rows: usize,
    pub width: usize,
    value_bytes: usize,
    pub start: DevicePtr<u8>,
    _part: Option<Part>,
}

impl Tensor {
    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn f32(&self) -> DevicePtr<f32> {
        self.start.cast()
    }

    pub fn bytes(&self) -> DevicePtr<u8> {
        self.start
    }

    fn elements(&self) -> DevicePtr<Element> {
        self.start.cast()
    }
}

struct Launches {
    fill_random: FillRandom,
    embed: Embed,
    rms_norm: RmsNorm,
    rope_store: RopeStore,
    silu_mul: SiluMul,
    attention: Attention,
    products: Products,
    kv_blocks: KvBlocks,
}

pub struct CudaBackend {
    /// Dropped first: it ends the collectives for which the GPU may wait.
    ranks: Option<OtherRanks>,
    rank: Rank,
    /// The size of the vocabulary.
    vocab: usize,
    device: Device,
    pub stream: Arc<Stream>,
    launches: Launches,
    pub element: ElementType,
    kv: KvPool,
    pub page_table: DeviceBuffer<u32>,
    pub table_stride: usize,
    page_size: usize,
    context_tokens: usize,
    head_dim: usize,
    /// `[n_periods, head_dim]`; `None` if queries are not scaled by position.
    factors: Option<DeviceBuffer<f32>>,
    arena: Arena,
    pub activations: DeviceBuffer<u8>,
    loader: Option<WeightLoader>,
    embeddings: EmbeddingUploads,
    grid_tokens: Vec<GridToken>,
    failure: Option<CudaFailure>,
}

impl CudaBackend {
    /// Creates a backend that can only load weights until [`Self::take_memory`]. All work goes to `stream`.
    ///
    /// # Errors
    /// If memory is exhausted, a kernel is missing, or the driver reports an error.
    pub fn new(
        device: &Device,
        stream: Arc<Stream>,
        modules: &Modules,
        shape: &DecoderShape,
        sizes: &CudaSizes,
    ) -> Result<Self, DriverError> {
        let multiprocessors = device.info().multiprocessors;
        let element = sizes.element;
        let heads = AttendShape {
            element,
            n_heads: shape.attention.n_heads as u32,
            n_kv_heads: shape.attention.n_kv_heads as u32,
            head_dim: shape.attention.head_dim as u32,
        };
        let launches = Launches {
            fill_random: FillRandom::load(modules, element, multiprocessors)?,
            embed: Embed::load(modules, element)?,
            rms_norm: RmsNorm::load(modules, element)?,
            rope_store: RopeStore::load(modules, element)?,
            silu_mul: SiluMul::load(modules, element)?,
            attention: Attention::load(modules, heads, multiprocessors)?,
            products: Products::new(device, modules, element, sizes.gemm)?,
            kv_blocks: KvBlocks::load(modules)?,
        };
        let (bytes, n_tensors) = sizes.weights;
        Ok(Self {
            ranks: None,
            rank: sizes.rank,
            vocab: shape.vocab,
            kv: KvPool::new(device, &KvLayout::new(Vec::new()), 0)?,
            page_table: device.alloc(0)?,
            table_stride: sizes.context_tokens.div_ceil(sizes.page_size).max(1),
            page_size: sizes.page_size,
            context_tokens: sizes.context_tokens,
            head_dim: shape.attention.head_dim,
            factors: None,
            arena: Arena::new(0),
            activations: device.alloc(0)?,
            loader: Some(WeightLoader::new(device, bytes, n_tensors)?),
            embeddings: EmbeddingUploads::default(),
            grid_tokens: Vec::new(),
            failure: None,
            device: device.clone(),
            stream,
            launches,
            element,
        })
    }

    /// Waits until all weights are on the device and frees the loader's memory. Returns the free device bytes.
    ///
    /// # Errors
    /// The first failure of loading.
    pub fn end_loading(&mut self) -> Result<u64, CudaFailure> {
        self.take_failure()?;
        if let Some(loader) = self.loader.take() {
            loader.finish()?;
        }
        // Kernels may still fill random weights, and products may read weights before preceding launches have ended.
        self.stream.synchronize()?;
        Ok(self.device.memory()?.free_bytes)
    }

    /// Allocates KV, page table and activations; call last before the first step.
    pub fn take_memory(
        &mut self,
        shape: &DecoderShape,
        kv: &KvLayout,
        sizes: &CudaSizes,
    ) -> Result<(), DriverError> {
        let device = &self.device;
        let n_slots = (sizes.n_pages + 1) * sizes.page_size;
        self.kv = KvPool::new(device, kv, n_slots)?;
        self.page_table = device.alloc(sizes.n_rows * self.table_stride)?;
        // Page 0 is the dummy page, to which padding writes.
        let whole = 0..self.page_table.len();
        self.stream.fill(&self.page_table, whole, 0)?;
        let arena_bytes = activation_bytes(shape, sizes, device.info().multiprocessors);
        self.activations = device.alloc(arena_bytes)?;
        self.arena = Arena::new(arena_bytes);
        Ok(())
    }

    /// # Errors
    /// The first failure.
    pub fn take_failure(&mut self) -> Result<(), CudaFailure> {
        self.failure.take().map_or(Ok(()), Err)
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// `[n_rows, table_stride]`.
    pub fn page_table(&self) -> DevicePtr<u32> {
        self.page_table.ptr()
    }

    pub fn table_stride(&self) -> usize {
        self.table_stride
    }

    pub fn queries_per_tile(&self) -> usize {
        self.launches.attention.queries_per_tile() as usize
    }

    /// Reads a row of f32, after synchronizing.
    ///
    /// # Errors
    /// The driver's error; also a failure of earlier work on the device.
    pub fn read_row(&self, tensor: &Tensor, row: usize) -> Result<Vec<f32>, DriverError> {
        let row_bytes = tensor.width * size_of::<f32>();
        let start = (tensor.start.address() - self.activations.ptr().address()) as usize;
        let first = start + row * row_bytes;
        let bytes = self
            .stream
            .read(&self.activations, first..first + row_bytes)?;
        let words = bytes.chunks_exact(size_of::<f32>());
        Ok(words.map(bytemuck::pod_read_unaligned).collect())
    }

    /// Reads a tensor as f32, after synchronizing.
    ///
    /// # Errors
    /// The driver's error; also a failure of earlier work on the device.
    pub fn read_rows(&self, tensor: &Tensor) -> Result<Vec<f32>, DriverError> {
        let start = (tensor.start.address() - self.activations.ptr().address()) as usize;
        let n_bytes = tensor.rows * tensor.width * tensor.value_bytes;
        let bytes = self
            .stream
            .read(&self.activations, start..start + n_bytes)?;
        let values = bytes.chunks_exact(tensor.value_bytes);
        Ok(match tensor.value_bytes {
            2 => values
                .map(|value| half::bf16::from_le_bytes([value[0], value[1]]).to_f32())
                .collect(),
            _ => values.map(bytemuck::pod_read_unaligned).collect(),
        })
    }

    /// Takes activation memory for a kernel that is launched on [`Self::stream`].
    pub fn scratch(&mut self, bytes: usize) -> Tensor {
        self.tensor(1, bytes, 1)
    }

    fn f32(&mut self, rows: usize, width: usize) -> Tensor {
        self.tensor(rows, width, size_of::<f32>())
    }

    fn elements(&mut self, rows: usize, width: usize) -> Tensor {
        self.tensor(rows, width, self.element.bytes())
    }

    fn tensor(&mut self, rows: usize, width: usize, value_bytes: usize) -> Tensor {
        let wanted_bytes = rows * width * value_bytes;
        let part = self.arena.take(wanted_bytes);
        let start = match &part {
            Some(part) => self.activations.at(part.offset()),
            None => {
                let arena_bytes = self.activations.len();
                self.failure.get_or_insert(CudaFailure::OutOfArena {
                    wanted_bytes,
                    arena_bytes,
                });
                DevicePtr::NULL
            }
        };
        Tensor {
            rows,
            width,
            value_bytes,
            start,
            _part: part,
        }
    }

    fn launch(&mut self, launch: impl FnOnce(&mut Launches, &Stream) -> Result<(), DriverError>) {
        if self.failure.is_none()
            && let Err(error) = launch(&mut self.launches, &self.stream)
        {
            self.failure = Some(error.into());
        }
    }

    fn upload<T>(
        &mut self,
        upload: impl FnOnce(&mut WeightLoader) -> Result<T, DriverError>,
    ) -> Option<T> {
        if self.failure.is_some() {
            return None;
        }
        let loader = self.loader.as_mut();
        let uploaded = upload(loader.expect("weights must be uploaded before end_loading"));
        uploaded
            .map_err(|error| self.failure = Some(error.into()))
            .ok()
    }
}
