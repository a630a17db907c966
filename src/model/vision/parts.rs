//! The tensors of a tower, by their places in it, with their shapes.

use super::{TowerConfig, TowerFamily};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Scope {
    Tower,
    Layer(usize),
    Projector,
    /// The projector of a layer's output, by its number in the file.
    Deepstack(usize),
}

/// Checkpoints number these projectors, GGUF files name the layer.
pub(super) fn deepstack_scope(config: &TowerConfig, source: Source, set: usize) -> Scope {
    Scope::Deepstack(match source {
        Source::Safetensors => set,
        Source::Gguf => config.deepstack[set],
    })
}

/// Where the tensors are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Safetensors,
    Gguf,
}

/// A tensor: the place of its module, the module, and the tensor's name in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Part {
    pub scope: Scope,
    pub stem: &'static str,
    pub suffix: &'static str,
}

impl Part {
    pub fn new(scope: Scope, stem: &'static str, suffix: &'static str) -> Self {
        Self {
            scope,
            stem,
            suffix,
        }
    }
}

/// The bounds of a clipped matrix.
pub(super) const BOUNDS: [&str; 4] = ["input_min", "input_max", "output_min", "output_max"];

/// The tensors of the projector's linear layers, in order.
pub(super) fn projector_stems(config: &TowerConfig) -> &'static [&'static str] {
    match config.family {
        TowerFamily::Qwen | TowerFamily::Lfm2 => &["linear1", "linear2"],
        TowerFamily::Gemma3 | TowerFamily::Gemma4 => &["projection"],
        TowerFamily::Pixtral if config.projector_norm => &["merge", "linear1", "linear2"],
        TowerFamily::Pixtral => &["linear1", "linear2"],
    }
}

/// All tensors, with their shapes in the files.
pub(super) fn parts(config: &TowerConfig, source: Source) -> Vec<(Part, Vec<usize>)> {
    let mut list = List {
        config,
        source,
        parts: Vec::new(),
    };
    list.tower();
    for layer in 0..config.n_layers {
        list.layer(Scope::Layer(layer));
    }
    list.projector();
    for set in 0..config.deepstack.len() {
        list.deepstack(deepstack_scope(config, source, set));
    }
    list.parts
}

struct List<'a> {
    config: &'a TowerConfig,
    source: Source,
    parts: Vec<(Part, Vec<usize>)>,
}

impl List<'_> {
    fn add(&mut self, scope: Scope, stem: &'static str, suffix: &'static str, shape: &[usize]) {
        let part = Part::new(scope, stem, suffix);
        self.parts.push((part, shape.to_vec()));
    }

    /// A norm of a layer or of the tower.
    fn norm(&mut self, scope: Scope, stem: &'static str) {
        let hidden = self.config.hidden;
        self.add(scope, stem, "weight", &[hidden]);
        if self.config.is_biased() {
            self.add(scope, stem, "bias", &[hidden]);
        }
    }

    fn linear(&mut self, scope: Scope, stem: &'static str, shape: [usize; 2], bias: bool) {
        self.add(scope, stem, "weight", &shape);
        if bias {
            self.add(scope, stem, "bias", &shape[..1]);
        }
    }

    fn tower(&mut self) {
        let config = self.config;
        let (hidden, patch, positions) = (config.hidden, config.patch, config.positions);
        let picture = [hidden, 3, patch, patch];
        match (config.family, self.source) {
            (TowerFamily::Qwen, Source::Safetensors) => {
                let shape = [hidden, 3, config.frames, patch, patch];
                self.add(Scope::Tower, "patch", "weight", &shape);
            }
            (TowerFamily::Qwen, Source::Gguf) => {
                self.add(Scope::Tower, "patch", "weight", &picture);
                self.add(Scope::Tower, "patch", "weight.1", &picture);
            }
            (TowerFamily::Gemma4 | TowerFamily::Lfm2, Source::Safetensors) => {
                let shape = [hidden, config.patch_dim()];
                self.add(Scope::Tower, "patch", "weight", &shape);
            }
            _ => self.add(Scope::Tower, "patch", "weight", &picture),
        }
        if config.is_biased() {
            self.add(Scope::Tower, "patch", "bias", &[hidden]);
            let shape = [positions * positions, hidden];
            self.add(Scope::Tower, "positions", "weight", &shape);
            self.norm(Scope::Tower, "post_norm");
        }
        match config.family {
            TowerFamily::Pixtral => self.norm(Scope::Tower, "pre_norm"),
            TowerFamily::Gemma4 => {
                let shape = [2, positions, hidden];
                self.add(Scope::Tower, "positions", "weight", &shape);
            }
            TowerFamily::Qwen | TowerFamily::Gemma3 | TowerFamily::Lfm2 => {}
        }
        if config.standardizes {
            self.add(Scope::Tower, "std_bias", "", &[hidden]);
            self.add(Scope::Tower, "std_scale", "", &[hidden]);
        }
    }

    /// A matrix of a layer.
    fn matrix(&mut self, layer: Scope, stem: &'static str, shape: [usize; 2]) {
        self.linear(layer, stem, shape, self.config.is_biased());
        if self.config.clips {
            let shape: &[usize] = match self.source {
                Source::Safetensors => &[],
                Source::Gguf => &[1],
            };
            for bound in BOUNDS {
                self.add(layer, stem, bound, shape);
            }
        }
    }

    fn layer(&mut self, layer: Scope) {
        let config = self.config;
        let (hidden, attended, inner) = (config.hidden, config.attended(), config.intermediate);
        self.norm(layer, "norm1");
        self.norm(layer, "norm2");
        match config.family {
            TowerFamily::Qwen => self.matrix(layer, "qkv", [3 * attended, hidden]),
            _ => {
                for stem in ["q", "k", "v"] {
                    self.matrix(layer, stem, [attended, hidden]);
                }
            }
        }
        self.matrix(layer, "o", [hidden, attended]);
        if config.family == TowerFamily::Gemma4 {
            for stem in ["q_norm", "k_norm"] {
                self.add(layer, stem, "weight", &[config.head_dim]);
            }
            self.norm(layer, "post_norm1");
            self.norm(layer, "post_norm2");
        }
        if config.is_gated() {
            self.matrix(layer, "gate", [inner, hidden]);
        }
        self.matrix(layer, "up", [inner, hidden]);
        self.matrix(layer, "down", [hidden, inner]);
    }

    fn projector(&mut self) {
        let config = self.config;
        let scope = Scope::Projector;
        match config.family {
            TowerFamily::Gemma3 => self.add(scope, "norm", "weight", &[config.hidden]),
            TowerFamily::Pixtral if config.projector_norm => {
                self.add(scope, "norm", "weight", &[config.hidden]);
            }
            TowerFamily::Lfm2 if config.projector_norm => {
                self.add(scope, "norm", "weight", &[config.joined()]);
                self.add(scope, "norm", "bias", &[config.joined()]);
            }
            TowerFamily::Lfm2 | TowerFamily::Pixtral | TowerFamily::Qwen | TowerFamily::Gemma4 => {}
        }
        let stems = projector_stems(config).iter();
        for (&stem, [outputs, inputs]) in stems.zip(config.projector_shapes()) {
            let (shape, bias) = match config.family {
                // Stored transposed.
                TowerFamily::Gemma3 => ([inputs, outputs], false),
                _ => ([outputs, inputs], config.projector_bias && stem != "merge"),
            };
            self.linear(scope, stem, shape, bias);
        }
    }

    fn deepstack(&mut self, scope: Scope) {
        let joined = self.config.joined();
        self.add(scope, "norm", "weight", &[joined]);
        self.add(scope, "norm", "bias", &[joined]);
        let shapes = self.config.projector_shapes();
        for (stem, shape) in ["fc1", "fc2"].into_iter().zip(shapes) {
            self.linear(scope, stem, shape, true);
        }
    }
}
