//! Launch of gemm.cu: selects our own kernel for a product's shape.

use super::super::driver::{DriverError, Grid, Kernel, Stream};
use super::super::pack::Modules;
use super::super::params::{ElementType, GemmParams};

const UNIT: &str = "gemm.cu";
const THREADS: u32 = 256;
const SIMT_TILE: u32 = 64;
const SKINNY_MAX_ROWS: u32 = 16;
const FEW_ROWS: u32 = 8;
/// With fewer outputs, a thread block of a skinny product computes 16 of them, so that there are enough blocks.
const FEW_OUTPUTS: u32 = 4096;
/// Inputs below which a split of `k` is not worth a thread block.
const INPUTS_PER_SPLIT: u32 = 512;
const REDUCE_COLUMNS: u32 = 1024;
/// Bytes of `partials` per multiprocessor.
const PARTIAL_BYTES: usize = 131_072;
/// Alignment of vector loads, in bytes.
const ALIGNMENT: u64 = 16;
const ROW_ELEMENTS: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmShape {
    /// Rows of activations.
    pub m: u32,
    /// Outputs.
    pub n: u32,
    /// Inputs.
    pub k: u32,
    /// Whether activations and weights are aligned to 16 bytes.
    pub aligned: bool,
}

impl GemmShape {
    pub fn of(params: &GemmParams) -> Self {
        let addresses = params.x.address() | params.w.address();
        Self {
            m: params.m,
            n: params.n,
            k: params.k,
            aligned: addresses.is_multiple_of(ALIGNMENT),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmChoice {
    variant: Variant,
    pub grid: Grid,
    /// Splits of `k`, each with separate partial sums.
    pub n_splits: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Simt,
    Skinny(usize),
    Tile(usize),
}

/// Rows and columns of a thread block.
const SKINNY: [(u32, u32); 3] = [(8, 16), (8, 32), (16, 32)];
/// Rows, columns, threads and shared bytes of a thread block.
const TILES: [(u32, u32, u32, u32); 3] = [
    (64, 128, 128, 98_304),
    (128, 128, 128, 65_536),
    (128, 256, 256, 98_304),
];
const LARGE_TILE: usize = 2;

#[derive(Clone, Debug)]
pub struct OwnGemm {
    element: ElementType,
    multiprocessors: u32,
    simt: Kernel,
    /// Only for bf16.
    tensor: Option<TensorKernels>,
}

#[derive(Clone, Debug)]
struct TensorKernels {
    skinny: [Kernel; SKINNY.len()],
    tiles: [Kernel; TILES.len()],
    reduce: Kernel,
}

impl OwnGemm {
    /// # Errors
    /// If a kernel is missing, or the GPU has too little shared memory.
    pub fn load(
        modules: &Modules,
        element: ElementType,
        multiprocessors: u32,
    ) -> Result<Self, DriverError> {
        let find = |name: &str| modules.kernel(UNIT, name);
        let simt = find(&format!("gemm_simt_{}", element.suffix()))?;
        let tensor = match element {
            ElementType::F32 => None,
            ElementType::Bf16 => Some(TensorKernels::load(&find)?),
        };
        Ok(Self {
            element,
            multiprocessors,
            simt,
            tensor,
        })
    }

    /// Maximum workspace of any product.
    pub fn workspace_bytes(&self) -> usize {
        match self.element {
            ElementType::F32 => 0,
            ElementType::Bf16 => Self::max_workspace_bytes(self.multiprocessors),
        }
    }

    /// Upper bound of `workspace_bytes`, before kernels are loaded.
    pub fn max_workspace_bytes(multiprocessors: u32) -> usize {
        PARTIAL_BYTES * multiprocessors as usize
    }

    /// Chooses a kernel, depending only on the shape, the element type and the GPU.
    pub fn choose(&self, shape: GemmShape) -> GemmChoice {
        choose(self.element, self.multiprocessors, shape)
    }

    /// Whether our kernels beat cuBLASLt's on an H100: at most 8 rows, in shapes where each weight is read once
    /// (`docs/gpu.md`).
    pub fn is_for_few_rows(&self, params: &GemmParams) -> bool {
        let choice = self.choose(GemmShape::of(params));
        matches!(choice.variant, Variant::Skinny(i) if SKINNY[i].0 <= FEW_ROWS)
    }

    /// Sets `n_splits` itself. `partials` has [`Self::workspace_bytes`], aligned to 16, for exclusive use.
    ///
    /// # Safety
    /// See the module.
    pub unsafe fn launch(&self, stream: &Stream, params: &GemmParams) -> Result<(), DriverError> {
        let choice = self.choose(GemmShape::of(params));
        let params = GemmParams {
            n_splits: choice.n_splits,
            ..*params
        };
        assert!(choice.n_splits == 1 || !params.partials.is_null());
        let kernel = match (choice.variant, &self.tensor) {
            (Variant::Skinny(i), Some(tensor)) => &tensor.skinny[i],
            (Variant::Tile(i), Some(tensor)) => &tensor.tiles[i],
            (_, _) => &self.simt,
        };
        // SAFETY: guaranteed by the caller; arguments as in gemm.cu.
        unsafe { kernel.launch(stream, choice.grid, &(params,)) }?;
        match &self.tensor {
            Some(tensor) if choice.n_splits > 1 => {
                let blocks = [params.m, params.n.div_ceil(REDUCE_COLUMNS), 1];
                let grid = Grid::new(blocks, THREADS);
                // SAFETY: likewise.
                unsafe { tensor.reduce.launch(stream, grid, &(params,)) }
            }
            _ => Ok(()),
        }
    }
}

impl TensorKernels {
    fn load(find: &impl Fn(&str) -> Result<Kernel, DriverError>) -> Result<Self, DriverError> {
        let skinny = |i: usize| {
            let (rows, columns) = SKINNY[i];
            find(&format!("gemm_skinny_{rows}x{columns}_bf16"))
        };
        let tile = |i: usize| {
            let (rows, columns, _, shared_bytes) = TILES[i];
            let kernel = find(&format!("gemm_tile_{rows}x{columns}_bf16"))?;
            kernel.allow_shared_bytes(shared_bytes)?;
            Ok::<_, DriverError>(kernel)
        };
        Ok(Self {
            skinny: [skinny(0)?, skinny(1)?, skinny(2)?],
            tiles: [tile(0)?, tile(1)?, tile(2)?],
            reduce: find("gemm_reduce_bf16")?,
        })
    }
}

fn choose(element: ElementType, multiprocessors: u32, shape: GemmShape) -> GemmChoice {
    let GemmShape { m, n, k, aligned } = shape;
    let loads_vectors = aligned && k.is_multiple_of(ROW_ELEMENTS);
    if element == ElementType::F32 || !loads_vectors {
        let blocks = [n.div_ceil(SIMT_TILE), m.div_ceil(SIMT_TILE), 1];
        return GemmChoice {
            variant: Variant::Simt,
            grid: Grid::new(blocks, THREADS),
            n_splits: 1,
        };
    }
    if m <= SKINNY_MAX_ROWS {
        let skinny = match m {
            ..=8 => usize::from(n >= FEW_OUTPUTS),
            _ => 2,
        };
        let columns = SKINNY[skinny].1;
        return GemmChoice {
            variant: Variant::Skinny(skinny),
            grid: Grid::new([n.div_ceil(columns), 1, 1], THREADS),
            n_splits: 1,
        };
    }
    let n_tiles = |tile: usize| {
        let (rows, columns, ..) = TILES[tile];
        m.div_ceil(rows) * n.div_ceil(columns)
    };
    let tile = match m {
        ..=64 => 0,
        _ if n_tiles(LARGE_TILE) >= multiprocessors => LARGE_TILE,
        _ => 1,
    };
    let tiles = n_tiles(tile);
    let n_splits = match tile {
        LARGE_TILE => 1,
        _ => (2 * multiprocessors / tiles).clamp(1, (k / INPUTS_PER_SPLIT).max(1)),
    };
    let (_, _, threads, shared_bytes) = TILES[tile];
    GemmChoice {
        variant: Variant::Tile(tile),
        grid: Grid::new([tiles, n_splits, 1], threads).shared(shared_bytes),
        n_splits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H100: u32 = 132;

    fn chosen(m: u32, n: u32, k: u32) -> (Variant, [u32; 3], u32) {
        let shape = GemmShape {
            m,
            n,
            k,
            aligned: true,
        };
        let choice = choose(ElementType::Bf16, H100, shape);
        (choice.variant, choice.grid.blocks, choice.n_splits)
    }

    #[test]
    fn the_shape_decides_the_kernel() {
        let table = [
            ((1, 4096, 4096), (Variant::Skinny(1), [128, 1, 1], 1)),
            ((1, 1024, 4096), (Variant::Skinny(0), [64, 1, 1], 1)),
            ((16, 1024, 4096), (Variant::Skinny(2), [32, 1, 1], 1)),
            ((17, 4096, 4096), (Variant::Tile(0), [32, 8, 1], 8)),
            ((64, 6144, 4096), (Variant::Tile(0), [48, 5, 1], 5)),
            ((65, 4096, 4096), (Variant::Tile(1), [32, 8, 1], 8)),
            ((4096, 4096, 4096), (Variant::Tile(2), [512, 1, 1], 1)),
            ((300, 4096, 4), (Variant::Simt, [64, 5, 1], 1)),
        ];
        for ((m, n, k), expected) in table {
            assert_eq!(chosen(m, n, k), expected, "{m} {n} {k}");
        }
    }

    #[test]
    fn unaligned_rows_and_f32_use_the_simt_kernel() {
        let shape = GemmShape {
            m: 1,
            n: 64,
            k: 64,
            aligned: false,
        };
        let variant = |element, shape| choose(element, H100, shape).variant;
        assert_eq!(variant(ElementType::Bf16, shape), Variant::Simt);
        let aligned = GemmShape {
            aligned: true,
            ..shape
        };
        assert_eq!(variant(ElementType::F32, aligned), Variant::Simt);
    }

    #[test]
    fn partial_sums_never_need_more_than_the_workspace() {
        let sizes = [1, 7, 33, 64, 100, 128, 500, 2048, 5000, 151_936];
        for (m, n, k) in sizes.iter().flat_map(|m| {
            let rest = sizes
                .iter()
                .flat_map(move |n| sizes.map(|k| (*m, *n, k * 8)));
            rest.collect::<Vec<_>>()
        }) {
            let (_, _, n_splits) = chosen(m, n, k);
            let bytes = u64::from(n_splits) * u64::from(m) * u64::from(n) * 4;
            assert!(
                n_splits == 1 || bytes <= PARTIAL_BYTES as u64 * u64::from(H100),
                "{m} {n} {k}: {n_splits} splits, {bytes} bytes"
            );
        }
    }
}
