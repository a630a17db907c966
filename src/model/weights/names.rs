//! Maps tensor names in checkpoints to internal names, and splits fused tensors.

use super::checkpoint::Weights;
use super::quantised::part_of::MatrixRows;
use crate::config::ModelConfig;
use crate::config::recurrent::Recurrence;
use souffleur_base::error::LoadError;
use souffleur_kernels::tensor_view::RowOrder;

/// Prefixes of decoder tensors: in vision-language checkpoints, and the internal equivalent.
const PREFIXES: [(&str, &str); 3] = [
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
];

/// Names of experts' projections: internal, in LFM2's checkpoints.
const LFM2_EXPERTS: [(&str, &str); 3] = [
    (".gate_proj.", ".w1."),
    (".up_proj.", ".w3."),
    (".down_proj.", ".w2."),
];

/// A part of a fused tensor: name, first row and number of rows in each group.
type Part<'a> = (&'a str, usize, usize);

impl Weights {
    /// Renames tensors, and splits fused ones.
    ///
    /// # Errors
    /// [`LoadError::WrongShape`] for a fused tensor that differs from the configuration, [`LoadError::MissingTensor`].
    pub fn rename_tensors(&mut self, config: &ModelConfig) -> Result<(), LoadError> {
        let used = PREFIXES.iter().filter(|(from, _)| {
            // In errors, a missing output projection has the prefix that the other tensors have.
            let prefix = match *from {
                "language_model.lm_head." => "language_model.model.",
                from => from,
            };
            let mut names = self.entries.keys();
            names.any(|name| name.starts_with(prefix))
        });
        self.renamed_parts = used.copied().collect();
        self.rename(|name| {
            let mut prefixes = PREFIXES.iter();
            prefixes.find_map(|(from, to)| Some(format!("{to}{}", name.strip_prefix(from)?)))
        });
        let of_family = config.architecture.family().tensor_names;
        self.renamed_parts.extend(of_family);
        self.rename(|name| {
            let (from, to) = of_family.iter().find(|(from, _)| name.contains(from))?;
            Some(name.replacen(from, to, 1))
        });
        for layer in 0..config.num_hidden_layers {
            self.split_layer(config, layer)?;
        }
        Ok(())
    }

    /// A tensor's name in the checkpoint, also if the tensor is missing there.
    pub(super) fn file_name(&self, internal_name: &str) -> String {
        let is_prefix = |from: &&(&str, &str)| PREFIXES.contains(*from);
        let (prefixes, parts): (Vec<_>, Vec<_>) = self.renamed_parts.iter().partition(is_prefix);
        let found = parts.iter().filter(|(_, to)| internal_name.contains(to));
        let mut name = match found.max_by_key(|(_, to)| to.len()) {
            Some((from, to)) => internal_name.replacen(to, from, 1),
            None => internal_name.to_owned(),
        };
        if name.contains(".feed_forward.experts.") {
            let words = LFM2_EXPERTS.iter();
            name = words.fold(name, |name, (ours, theirs)| name.replace(ours, theirs));
        }
        let mut prefixes = prefixes.iter();
        let whole = prefixes.find_map(|(from, to)| Some((from, name.strip_prefix(to)?)));
        match whole {
            Some((from, rest)) => format!("{from}{rest}"),
            None => name,
        }
    }

    /// Renames entries for which `new` returns an unused name.
    fn rename(&mut self, new: impl Fn(&str) -> Option<String>) {
        let renamed = self.entries.keys();
        let renamed: Vec<(String, String)> = renamed
            .filter_map(|name| Some((name.clone(), new(name)?)))
            .collect();
        for (old, new) in renamed {
            if !self.entries.contains_key(&new) {
                let entry = self.entries.remove(&old);
                self.entries.extend(entry.map(|entry| (new, entry)));
            }
        }
    }

    fn split_layer(&mut self, config: &ModelConfig, layer: usize) -> Result<(), LoadError> {
        let hidden = config.hidden_size;
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        match config.states_in(layer).map(|states| states.recurrence) {
            Some(Recurrence::DeltaNet { shape, fused: true }) => {
                let each = shape.value_heads / shape.key_heads;
                let (key, values) = (shape.key_dim, each * shape.value_dim);
                let wide = [
                    ("in_proj_q", 0, key),
                    ("in_proj_k", key, key),
                    ("in_proj_v", 2 * key, values),
                    ("in_proj_z", 2 * key + values, values),
                ];
                let narrow = [("in_proj_b", 0, each), ("in_proj_a", each, each)];
                let module = |part: &str| name(&format!("linear_attn.{part}.weight"));
                let groups = (shape.key_heads, Some(hidden));
                self.split(&module("in_proj_qkvz"), groups, &wide, module)?;
                self.split(&module("in_proj_ba"), groups, &narrow, module)
            }
            Some(_) => Ok(()),
            None if config.architecture.family().fused => {
                let (q, kv, mlp) = (
                    config.q_width(),
                    config.kv_width(),
                    config.intermediate_size,
                );
                let qkv = [("q_proj", 0, q), ("k_proj", q, kv), ("v_proj", q + kv, kv)];
                let gate_up = [("gate_proj", 0, mlp), ("up_proj", mlp, mlp)];
                let names_in = |module: &'static str| {
                    move |part: &str| name(&format!("{module}.{part}.weight"))
                };
                let (attention, mlp) = (names_in("self_attn"), names_in("mlp"));
                let one = (1, Some(hidden));
                self.split(&attention("qkv_proj"), one, &qkv, attention)?;
                self.split(&mlp("gate_up_proj"), one, &gate_up, mlp)
            }
            None if config.gates_attention() => {
                let (heads, dim) = (config.num_attention_heads, config.head_dim);
                let parts = [("q_proj", 0, dim), ("gate_proj", dim, dim)];
                for (suffix, width) in [("weight", Some(hidden)), ("bias", None)] {
                    let module = |part: &str| name(&format!("self_attn.{part}.{suffix}"));
                    self.split(&module("q_proj"), (heads, width), &parts, module)?;
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Splits a fused tensor: its rows form groups, such as heads, and each group has rows of every part. A quantised
    /// tensor is not split: the rows of each part are converted at load. `width` is `None` for a vector.
    fn split(
        &mut self,
        fused: &str,
        (groups, width): (usize, Option<usize>),
        parts: &[Part<'_>],
        name: impl Fn(&str) -> String,
    ) -> Result<(), LoadError> {
        let period: usize = parts.iter().map(|(.., rows)| rows).sum();
        let shape = |rows| {
            std::iter::once(groups * rows)
                .chain(width)
                .collect::<Vec<_>>()
        };
        let order = |first, len| RowOrder::Within { period, first, len };
        if let Some(inputs) = width
            && self.is_quantised(fused)
        {
            for &(part, first, rows) in parts {
                let part_of = MatrixRows {
                    whole: fused.to_owned(),
                    shape: [groups * period, inputs],
                    order: order(first, rows),
                    rows: groups * rows,
                };
                self.parts.insert(name(part), part_of);
            }
            return Ok(());
        }
        let has_parts = || {
            let mut parts = parts.iter();
            parts.any(|(part, ..)| self.entries.contains_key(&name(part)))
        };
        if self.entries.contains_key(fused) || width.is_some() && !has_parts() {
            if let Some(error) = self.undescribed_codes(fused) {
                return Err(error);
            }
            self.tensor(fused, &shape(period))?;
        }
        let Some(whole) = self.entries.remove(fused) else {
            return Ok(());
        };
        for &(part, first, rows) in parts {
            let mut entry = whole.clone();
            entry.shape = shape(rows);
            if groups == 1 {
                let row_bytes = whole.range.len() / period;
                let start = whole.range.start + first * row_bytes;
                entry.range = start..start + rows * row_bytes;
            } else {
                entry.order = order(first, rows);
            }
            self.entries.insert(name(part), entry);
        }
        Ok(())
    }
}
