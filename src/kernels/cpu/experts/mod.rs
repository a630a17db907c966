//! Mixture of experts (MoE) on the CPU.
//!
//! Tokens are sorted by expert once, in blocks if there are many. One kernel then computes all experts' gate and up
//! projections, and a second kernel all down projections: each of its items owns some outputs of every token of a block
//! and sums over the experts in ascending id.

pub mod routes;
pub(super) mod rows;

use smallvec::SmallVec;

use self::routes::Routes;
use self::rows::{ExpertRows, PICKED};
use super::CpuBackend;
use super::format::Encoding;
use super::matmul::experts::{ExpertProduct, add_experts, multiply_experts};
use super::matmul::{ItemRun, WeightedRows, Write};
use super::row_source::Activations;
use super::rowwise;
use super::simd::Isa;
use super::stack::Encodings;
use super::tensor::{Scratch, Tensor};
use super::threads::ThreadPool;
use crate::shard::Shard;
use crate::{Expert, Gate, Linear, Router};

type PackedInputs<'a> = SmallVec<[ExpertRows<'a>; 2]>;

pub struct Experts {
    gate_up: Vec<Linear<CpuBackend>>,
    down: Vec<Linear<CpuBackend>>,
    gate_up_encodings: Encodings,
    down_encodings: Encodings,
    /// Whether gate and up panels alternate in all experts.
    alternates: bool,
    width: usize,
    gate: Gate,
}

impl Experts {
    /// # Panics
    /// If there are no experts, or their shapes differ.
    pub fn new(experts: Vec<Expert<CpuBackend>>, gate: Gate) -> Self {
        let (gate_up, down): (Vec<_>, Vec<_>) = experts
            .into_iter()
            .map(|expert| (expert.gate_up, expert.down))
            .unzip();
        let shapes = |all: &[Linear<CpuBackend>]| -> [usize; 2] {
            let shape = |linear: &Linear<CpuBackend>| [linear.weight.outputs, linear.weight.inputs];
            let first = shape(&all[0]);
            assert!(
                all.iter().all(|other| shape(other) == first),
                "experts must have equal shapes"
            );
            first
        };
        let ([both, hidden], [outputs, width]) = (shapes(&gate_up), shapes(&down));
        assert_eq!(
            [both, hidden],
            [2 * width, outputs],
            "gate/up and down projections must have matching shapes"
        );
        Self {
            gate_up_encodings: encodings(&gate_up),
            down_encodings: encodings(&down),
            alternates: gate_up.iter().all(|linear| linear.weight.alternates()),
            gate_up,
            down,
            width,
            gate,
        }
    }

    /// How ranks divide the down projections.
    pub fn shard(&self) -> Shard {
        self.down[0].weight.shard
    }
}

fn encodings(all: &[Linear<CpuBackend>]) -> Encodings {
    let mut found = Encodings::new();
    let each = all.iter().flat_map(|linear| linear.weight.encodings());
    for encoding in each {
        if !found.contains(encoding) {
            found.push(*encoding);
        }
    }
    found
}

pub fn route(backend: &mut CpuBackend, x: &Tensor, router: &Router<CpuBackend>) -> Routes {
    let weight = &router.logits.weight;
    let packed = backend.pack(Activations::plain(x.values(), x.width()), weight);
    let mut logits = backend.scratch.tensor(x.rows(), weight.outputs);
    backend.product(&packed, &router.logits, &mut logits, Write::Store);
    let mut routes = std::mem::take(&mut backend.routes);
    let threads = (&mut backend.pool, backend.isa);
    let per_expert = [&router.correction, &router.factors].map(|per_expert| per_expert.as_deref());
    routes.choose(threads, (&router.routing, per_expert), &logits);
    routes
}

/// Adds to each row of `residual` the output of its experts for the same row of `x`.
pub fn add(
    backend: &mut CpuBackend,
    residual: &mut Tensor,
    x: &Tensor,
    routes: &Routes,
    experts: &Experts,
) {
    let mut context = MoeContext {
        pool: &mut backend.pool,
        isa: backend.isa,
        scratch: &backend.scratch,
        routes,
        runs: &mut backend.expert_items,
    };
    context.add(experts, x, residual);
}

pub struct MoeContext<'a> {
    pub pool: &'a mut ThreadPool,
    pub isa: Isa,
    pub scratch: &'a Scratch,
    pub routes: &'a Routes,
    /// Reused, so that steps allocate nothing.
    pub runs: &'a mut Vec<ItemRun>,
}

impl<'a> MoeContext<'a> {
    pub fn add(&mut self, experts: &Experts, x: &Tensor, residual: &mut Tensor) {
        if self.routes.rows() == 0 {
            return;
        }
        let packed = self.pack_inputs(experts, x);
        let gated = self.gated(experts, &packed);
        let product = ExpertProduct {
            x: &gated,
            experts: &experts.down,
            active: &self.routes.active,
            blocks: &self.routes.blocks,
            out: residual.values_mut(),
            write: Write::AddWeighted,
        };
        let weighted = WeightedRows {
            rows: &self.routes.tokens,
            weights: &self.routes.weights,
        };
        add_experts(self.pool, self.isa, product, weighted);
    }

    fn pack_inputs(&mut self, experts: &Experts, x: &Tensor) -> PackedInputs<'a> {
        let picked = &self.routes.tokens;
        if experts.gate_up_encodings.as_slice() == [PICKED] {
            let threads = (&mut *self.pool, self.isa);
            let rows = ExpertRows::picked(threads, self.scratch, x, picked);
            return [rows].into_iter().collect();
        }
        let source = Activations {
            picked: Some(picked),
            ..Activations::plain(x.values(), x.width())
        };
        self.pack(source, &experts.gate_up_encodings)
    }

    fn gated(&mut self, experts: &Experts, packed: &[ExpertRows<'_>]) -> PackedInputs<'a> {
        let (rows, width) = (self.routes.rows(), experts.width);
        if !experts.alternates || experts.gate != Gate::Silu {
            let mut both = self.scratch.tensor(rows, 2 * width);
            self.multiply(experts, packed, &mut both, Write::Store);
            let out = self.scratch.tensor(rows, width);
            let out = rowwise::gated(self.pool, self.isa, experts.gate, &both, out);
            return self.pack_gated(experts, &out);
        }
        let words = match experts.down_encodings.as_slice() {
            [Encoding::Bf16] => Some((Encoding::Bf16, Write::GatedPairs)),
            [Encoding::WideBf16] => Some((Encoding::WideBf16, Write::GatedRounded)),
            [Encoding::Bf16Rows] => Some((Encoding::Bf16Rows, Write::GatedRows)),
            _ => None,
        };
        if let Some((encoding, write)) = words {
            let mut out = ExpertRows::uninit(self.scratch, self.isa, encoding, rows, width);
            self.multiply(experts, packed, out.words_mut(), write);
            return [out].into_iter().collect();
        }
        let mut out = self.scratch.tensor(rows, width);
        self.multiply(experts, packed, &mut out, Write::GatedSilu);
        self.pack_gated(experts, &out)
    }

    fn multiply(
        &mut self,
        experts: &Experts,
        x: &[ExpertRows<'_>],
        out: &mut Tensor,
        write: Write,
    ) {
        let product = ExpertProduct {
            x,
            experts: &experts.gate_up,
            active: &self.routes.active,
            blocks: &self.routes.blocks,
            out: out.values_mut(),
            write,
        };
        multiply_experts(self.pool, self.isa, product, self.runs);
    }

    fn pack_gated(&mut self, experts: &Experts, gated: &Tensor) -> PackedInputs<'a> {
        let source = Activations::plain(gated.values(), gated.width());
        self.pack(source, &experts.down_encodings)
    }

    fn pack(&mut self, source: Activations<'_>, encodings: &[Encoding]) -> PackedInputs<'a> {
        let packed = encodings.iter().map(|encoding| {
            let threads = (&mut *self.pool, self.isa);
            ExpertRows::pack(
                threads,
                self.scratch,
                *encoding,
                source,
                &self.routes.groups,
            )
        });
        packed.collect()
    }
}
