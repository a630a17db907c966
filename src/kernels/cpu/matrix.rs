//! Weight matrices, packed into panels at load.

use half::{bf16, f16};
use smallvec::SmallVec;

use super::block32;
use super::element::Element;
use super::format::Format;
use super::k_quants::{self, SUPER_BLOCK};
use super::memory::{WeightArena, WeightWords};
use super::nibbles;
use super::nodes::{PerNode, locate};
use super::panel::{INT8_GROUP, INT8_STEPS, PANEL};
use super::quantise::{INT8_VECTORS, INT8_WORDS, quantise};
use super::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use super::tensor::Shared;
use super::threads::ThreadPool;
use crate::blocks::{BlockType, encode};
use crate::dtype::Dtype;
use crate::tensor_view::{Stored, TensorView, widen};

const WEIGHT_COST: usize = 4;
/// Number of inputs that are converted through f32 at once.
const CHUNK: usize = INT8_GROUP;

/// A weight matrix `[outputs, inputs]` in panels, or a node's part of one. Each stacked part begins with a new panel;
/// the panels of two parts of equal shape alternate, so that gate and up are one stream.
pub struct Matrix {
    pub outputs: usize,
    pub inputs: usize,
    pub format: Format,
    pub node: usize,
    pub panel_words: usize,
    words: WeightWords,
    panels: Vec<Panel>,
    alternates: bool,
}

#[derive(Clone, Copy)]
pub struct Parts<'a> {
    /// Stacked in order; all have the same width.
    pub tensors: &'a [TensorView<'a>],
    pub first_output: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct Panel {
    pub first: u32,
    /// Number of lanes that hold outputs.
    pub len: u32,
}

impl Matrix {
    /// Packs tensors of equal width, stacked in order, on all threads, into memory of `arena`. Panels, or alternating
    /// pairs of panels, are divided among the NUMA nodes: the result is a matrix for each node.
    ///
    /// # Panics
    /// If the widths differ.
    pub fn pack(
        (pool, isa): (&mut ThreadPool, Isa),
        arena: &mut WeightArena,
        format: Format,
        Parts {
            tensors: parts,
            first_output,
        }: Parts<'_>,
    ) -> SmallVec<[Self; 1]> {
        let inputs = parts[0].shape[1];
        assert!(
            parts.iter().all(|part| part.shape[1] == inputs),
            "stacked matrices must have equal width"
        );
        let mut panels = Vec::new();
        let mut end = first_output;
        for part in parts {
            let rows = part.shape[0];
            panels.extend((0..rows).step_by(PANEL).map(|first| PanelSource {
                panel: Panel {
                    first: (end + first) as u32,
                    len: PANEL.min(rows - first) as u32,
                },
                part: *part,
                first,
            }));
            end += rows;
        }
        let alternates = matches!(parts, [a, b] if a.shape == b.shape);
        if alternates {
            panels.sort_by_key(|source| source.first);
        }
        let panel_words = format.panel_words(inputs);
        let at_once = if alternates { 2 } else { 1 };
        let shares = pool.nodes().shares(panels.len() / at_once).into_iter();
        let mut matrices: SmallVec<[Self; 1]> = shares
            .enumerate()
            .map(|(node, share)| {
                let own = &panels[share.start * at_once..share.end * at_once];
                let panels: Vec<Panel> = own.iter().map(|source| source.panel).collect();
                Self {
                    outputs: panels.iter().map(|panel| panel.len as usize).sum(),
                    inputs,
                    format,
                    node,
                    panel_words,
                    words: arena.zeroed(node, panels.len() * panel_words),
                    panels,
                    alternates,
                }
            })
            .collect();
        let cost = (end - first_output) * inputs * WEIGHT_COST;
        fill((pool, isa), &mut matrices, &panels, cost);
        matrices
    }

    /// Whether panels of the first and second half of the outputs alternate.
    pub fn alternates(&self) -> bool {
        self.alternates
    }

    pub fn panels(&self) -> &[Panel] {
        &self.panels
    }

    pub fn words(&self) -> &[u32] {
        self.words.as_slice()
    }

    /// Reads the weights of one output of an unstacked matrix, such as an embedding table.
    ///
    /// # Panics
    /// If `output` is beyond the outputs, or `out` not as long as the inputs.
    pub fn read_row(&self, output: usize, out: &mut [f32]) {
        assert!(
            output < self.outputs,
            "row {output} must be below {}",
            self.outputs
        );
        assert_eq!(
            out.len(),
            self.inputs,
            "a row must have a value for each input"
        );
        let panel_words = self.panel_words;
        let panel = &self.words()[output / PANEL * panel_words..][..panel_words];
        let lane = output % PANEL;
        match self.format {
            Format::F32 => {
                for (out, step) in out.iter_mut().zip(panel.chunks_exact(PANEL)) {
                    *out = f32::from_bits(step[lane]);
                }
            }
            Format::F16 => {
                for (out, step) in out.iter_mut().zip(panel.chunks_exact(PANEL / 2)) {
                    let bits = (step[lane / 2] >> (16 * (lane % 2))) as u16;
                    *out = f16::from_bits(bits).to_f32();
                }
            }
            Format::Bf16 | Format::ExactBf16 => {
                for (out, step) in out.chunks_mut(2).zip(panel.chunks_exact(PANEL)) {
                    let pair = [step[lane] << 16, step[lane] & 0xffff_0000];
                    for (out, bits) in out.iter_mut().zip(pair) {
                        *out = f32::from_bits(bits);
                    }
                }
            }
            Format::Block32(_) => block32::unpack(panel, lane, out),
            Format::Nibbles(header) => nibbles::unpack(header, panel, lane, out),
            Format::KQuant(block) => {
                let lines = panel.chunks_exact(k_quants::lines(block) * PANEL);
                let mut values = [0.0; SUPER_BLOCK];
                for (out, lines) in out.chunks_mut(SUPER_BLOCK).zip(lines) {
                    k_quants::unpack(block, lines, lane, &mut values);
                    out.copy_from_slice(&values[..out.len()]);
                }
            }
            Format::Int8 => {
                let groups = panel.chunks_exact((INT8_STEPS + 1) * PANEL);
                for (out, group) in out.chunks_mut(INT8_GROUP).zip(groups) {
                    let scale = f32::from_bits(group[lane]);
                    for (i, out) in out.iter_mut().enumerate() {
                        let word = group[(i / 4 + 1) * PANEL + lane];
                        let byte = (word >> (8 * (i % 4))) as u8;
                        *out = scale * (f32::from(byte) - 128.0);
                    }
                }
            }
        }
    }
}

/// Packs the panels of nodes' matrices, each on a thread of its node (first touch).
fn fill(
    (pool, isa): (&mut ThreadPool, Isa),
    matrices: &mut [Matrix],
    panels: &[PanelSource<'_>],
    cost: usize,
) {
    let (format, panel_words) = (matrices[0].format, matrices[0].panel_words);
    let node_items: PerNode<usize> = matrices.iter().map(|own| own.panels.len()).collect();
    let words = matrices.iter_mut().map(|own| own.words.as_mut_slice());
    let words: PerNode<Shared<'_, u32>> = words.map(Shared::new).collect();
    // A thread takes consecutive panels: two threads on neighbouring panels would fault in the same pages.
    pool.for_each_on_own_node(&node_items, cost, &|index| {
        let (node, panel) = locate(&node_items, index);
        // SAFETY: each panel is written by one item.
        let out = unsafe { words[node].part(panel * panel_words, panel_words) };
        let source = panels[index].source();
        dispatch(
            isa,
            PackPanel {
                format,
                source,
                out,
            },
        );
    });
}

struct PanelSource<'a> {
    panel: Panel,
    part: TensorView<'a>,
    first: usize,
}

impl PanelSource<'_> {
    fn source(&self) -> Source<'_> {
        Source {
            tensor: self.part,
            first: self.first,
            n_rows: self.panel.len as usize,
        }
    }
}

/// Rows of a stored tensor, at most sixteen.
struct Source<'a> {
    tensor: TensorView<'a>,
    first: usize,
    n_rows: usize,
}

impl Source<'_> {
    fn inputs(&self) -> usize {
        self.tensor.shape[1]
    }

    fn rows(&self) -> impl Iterator<Item = &[u8]> {
        (self.first..self.first + self.n_rows).map(|row| self.tensor.row(row))
    }
}

struct PackPanel<'a> {
    format: Format,
    source: Source<'a>,
    out: &'a mut [u32],
}

impl Kernel for PackPanel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let is_even = self.source.inputs().is_multiple_of(2);
        match (self.format, self.source.tensor.stored) {
            (Format::F32, Stored::Plain(Dtype::F32)) => self.transpose_words(),
            (Format::Bf16, Stored::Plain(Dtype::BF16)) if is_even => self.transpose_words(),
            (Format::Block32(_), Stored::Blocks(block)) => {
                let rows: SmallVec<[&[u8]; PANEL]> = self.source.rows().collect();
                block32::pack(block, &rows, self.out);
            }
            (Format::Nibbles(header), Stored::Blocks(_)) => {
                for (lane, row) in self.source.rows().enumerate() {
                    nibbles::pack(header, row, lane, self.out);
                }
            }
            (Format::KQuant(_), Stored::Blocks(block)) => {
                let rows: SmallVec<[&[u8]; PANEL]> = self.source.rows().collect();
                k_quants::pack(block, &rows, self.out);
            }
            (Format::KQuant(block), Stored::Plain(_)) => self.quantise_superblocks(block),
            (_, Stored::Plain(dtype)) => self.convert::<S>(dtype),
            (_, Stored::Blocks(_)) => self.decode::<S>(),
        }
    }
}

impl PackPanel<'_> {
    /// Word `s` of row `r` goes to lane `r` of step `s`.
    #[inline(always)]
    fn transpose_words(self) {
        let rows: Vec<&[u8]> = self.source.rows().collect();
        for (block, out) in self.out.chunks_mut(PANEL * PANEL).enumerate() {
            for (lane, row) in rows.iter().enumerate() {
                let words = row[block * PANEL * 4..].chunks_exact(4);
                for (out, word) in out.chunks_exact_mut(PANEL).zip(words) {
                    out[lane] = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                }
            }
        }
    }

    #[inline(always)]
    fn quantise_superblocks(self, block: BlockType) {
        let inputs = self.source.inputs();
        let row_bytes = inputs.div_ceil(SUPER_BLOCK) * block.bytes();
        let mut values = vec![0f32; inputs.next_multiple_of(SUPER_BLOCK)];
        let mut bytes = vec![0u8; self.source.n_rows * row_bytes];
        for (lane, row) in bytes.chunks_exact_mut(row_bytes).enumerate() {
            let from = self.source.first + lane;
            self.source.tensor.read_row(from, &mut values[..inputs]);
            let superblocks = values.as_chunks::<SUPER_BLOCK>().0.iter();
            for (values, bytes) in superblocks.zip(row.chunks_exact_mut(block.bytes())) {
                encode::encode(block, values, bytes);
            }
        }
        let rows: SmallVec<[&[u8]; PANEL]> = bytes.chunks_exact(row_bytes).collect();
        k_quants::pack(block, &rows, self.out);
    }

    #[inline(always)]
    fn convert<S: Lanes>(self, dtype: Dtype) {
        let (inputs, width) = (self.source.inputs(), dtype.bytes());
        let rows: Vec<&[u8]> = self.source.rows().collect();
        let mut chunk = [0f32; CHUNK];
        let chunk_words = self.format.panel_words(CHUNK);
        for (index, out) in self.out.chunks_mut(chunk_words).enumerate() {
            let (first, end) = (index * CHUNK, inputs.min((index + 1) * CHUNK));
            for (lane, row) in rows.iter().enumerate() {
                let (values, padding) = chunk.split_at_mut(end - first);
                widen(dtype, &row[first * width..end * width], values);
                padding.fill(0.0);
                encode::<S>(self.format, &chunk, lane, out);
            }
        }
    }

    #[inline(always)]
    fn decode<S: Lanes>(self) {
        let inputs = self.source.inputs();
        let mut values = vec![0f32; inputs.next_multiple_of(CHUNK)];
        let chunk_words = self.format.panel_words(CHUNK);
        for lane in 0..self.source.n_rows {
            let row = self.source.first + lane;
            self.source.tensor.read_row(row, &mut values[..inputs]);
            let (chunks, _) = values.as_chunks::<CHUNK>();
            for (chunk, out) in chunks.iter().zip(self.out.chunks_mut(chunk_words)) {
                encode::<S>(self.format, chunk, lane, out);
            }
        }
    }
}

/// Writes the chunk of one output into its lane, filling `out`.
#[inline(always)]
fn encode<S: Lanes>(format: Format, chunk: &[f32; CHUNK], lane: usize, out: &mut [u32]) {
    match format {
        Format::F32 => {
            for (out, x) in out.chunks_exact_mut(PANEL).zip(chunk) {
                out[lane] = x.to_bits();
            }
        }
        Format::F16 => {
            for (out, x) in out.chunks_exact_mut(PANEL / 2).zip(chunk) {
                out[lane / 2] |= u32::from(f16::narrow(*x).to_bits()) << (16 * (lane % 2));
            }
        }
        Format::Bf16 | Format::ExactBf16 => {
            for (out, x) in out.chunks_exact_mut(PANEL).zip(chunk.chunks_exact(2)) {
                let (low, high) = (bf16::narrow(x[0]), bf16::narrow(x[1]));
                out[lane] = u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16;
            }
        }
        Format::Block32(_) | Format::Nibbles(_) | Format::KQuant(_) => {
            unreachable!("blocks are packed natively")
        }
        Format::Int8 => {
            let mut words = [0u32; INT8_STEPS];
            // SAFETY: both arrays cover the reads and writes; `dispatch` detected the instruction set.
            let scale = unsafe {
                let load = |i| S::load(chunk.as_ptr().wrapping_add(i * LANES));
                let (scale, quads): (f32, [S::W; INT8_WORDS]) =
                    quantise::<S, INT8_VECTORS, INT8_WORDS>(std::array::from_fn(load));
                for (i, quads) in quads.into_iter().enumerate() {
                    S::store_words(words.as_mut_ptr().wrapping_add(i * LANES), quads);
                }
                scale
            };
            out[lane] = scale.to_bits();
            let steps = out[PANEL..].chunks_exact_mut(PANEL);
            for (out, word) in steps.zip(words) {
                // From -127..=127 to 1..=255.
                out[lane] = word ^ 0x8080_8080;
            }
        }
    }
}
