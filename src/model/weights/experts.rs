//! Gives the tensors of experts their internal names, and splits stacks.
//!
//! Checkpoints name each expert's matrices separately, as Qwen or Mixtral does, or stack those of all experts in one
//! tensor: `gate_up_proj` `[experts, 2 * width, hidden]`, gates first, and `down_proj` `[experts, hidden, width]`.
//! 8-bit stacks have their scales in a separate tensor.

use super::checkpoint::Weights;
use super::entry::Entry;
use crate::config::experts::{ExpertNames, ExpertsConfig};
use souffleur_base::error::LoadError;

/// Names of stacked expert tensors, and the projections in each: 0 gate, 1 up, 2 down.
const STACKED: [(&str, &[usize]); 2] = [("gate_up_proj", &[0, 1]), ("down_proj", &[2])];

impl Weights {
    /// Renames experts, and splits stacks.
    ///
    /// # Errors
    /// [`LoadError::WrongShape`] or [`LoadError::Format`] for a stack that differs from the configuration or is
    /// quantised in an unsupported way.
    pub fn name_experts(
        &mut self,
        experts: &ExpertsConfig,
        hidden: usize,
    ) -> Result<(), LoadError> {
        if experts.names == ExpertNames::GPT_OSS {
            return self.extract_gpt_oss_experts(experts, hidden);
        }
        self.rename_experts(experts.names);
        for layer in (0..experts.layers.len()).filter(|layer| experts.are_in(*layer)) {
            for (stack, parts) in STACKED {
                let name = format!("{}.experts.{stack}", experts.names.module(layer));
                if let Some(entry) = self.entries.remove(&name) {
                    self.unstack(&name, entry, (layer, parts), (experts, hidden))?;
                }
                self.refuse_packed(&name)?;
            }
        }
        Ok(())
    }

    fn rename_experts(&mut self, names: ExpertNames) {
        let renamed = |name: &String| Some((name.clone(), new_name(name, names)?));
        let renamed: Vec<(String, String)> = self.entries.keys().filter_map(renamed).collect();
        for (old, new) in renamed {
            if !self.entries.contains_key(&new) {
                let entry = self.entries.remove(&old);
                self.entries.extend(entry.map(|entry| (new, entry)));
            }
        }
    }

    fn unstack(
        &mut self,
        name: &str,
        stack: Entry,
        (layer, parts): (usize, &[usize]),
        (experts, hidden): (&ExpertsConfig, usize),
    ) -> Result<(), LoadError> {
        let count = experts.count();
        let shape = match parts {
            [2] => [hidden, experts.width],
            _ => [experts.width, hidden],
        };
        let expected = [count, parts.len() * shape[0], shape[1]];
        if stack.shape != expected {
            return Err(LoadError::WrongShape {
                file: self.files[stack.file].path().to_owned(),
                tensor: self.file_name(name),
                expected: expected.to_vec(),
                got: stack.shape,
            });
        }
        let scales = self.scales_of_stack(name, &stack, parts.len())?;
        let bytes = stack.range.len() / (count * parts.len());
        let mut start = stack.range.start;
        for expert in 0..count {
            let projections = experts.names.projections(layer, expert);
            for part in parts {
                let entry = Entry {
                    file: stack.file,
                    stored: stack.stored.clone(),
                    shape: shape.to_vec(),
                    range: start..start + bytes,
                    order: stack.order,
                };
                let module = &projections[*part];
                self.entries.insert(format!("{module}.weight"), entry);
                start += bytes;
            }
            for (part, scale) in parts
                .iter()
                .zip(scales.iter().flat_map(|all| all.of(expert)))
            {
                let name = format!("{}.weight_scale", projections[*part]);
                self.entries.insert(name, scale);
            }
        }
        Ok(())
    }
}

/// The new name of a router's or expert's tensor, if it differs.
fn new_name(name: &str, names: ExpertNames) -> Option<String> {
    let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let (module, rest) = rest.split_once('.')?;
    ExpertNames::ALL
        .iter()
        .find(|known| known.module == module)?;
    let rest = match rest.strip_prefix("experts.") {
        None if rest.starts_with("gate.") => rest.to_owned(),
        None => return None,
        Some(of_expert) => {
            let mut words: Vec<&str> = of_expert.split('.').collect();
            let known = ExpertNames::ALL.iter();
            let mut places = known.filter_map(|known| {
                let mut projections = known.projections.iter();
                projections.position(|projection| Some(projection) == words.get(1))
            });
            if let Some(place) = places.next() {
                words[1] = names.projections[place];
            }
            format!("experts.{}", words.join("."))
        }
    };
    let new = format!("model.layers.{layer}.{}.{rest}", names.module);
    (new != name).then_some(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_get_the_names_of_their_family() {
        let to = |names| move |name: &str| new_name(name, names);
        let (qwen, mixtral) = (to(ExpertNames::QWEN), to(ExpertNames::MIXTRAL));
        for (ours, theirs) in [
            ("mlp.gate.weight", "block_sparse_moe.gate.weight"),
            (
                "mlp.experts.7.gate_proj.weight",
                "block_sparse_moe.experts.7.w1.weight",
            ),
            (
                "mlp.experts.7.up_proj.qweight",
                "block_sparse_moe.experts.7.w3.qweight",
            ),
            (
                "mlp.experts.70.down_proj.weight",
                "block_sparse_moe.experts.70.w2.weight",
            ),
            (
                "mlp.experts.gate_up_proj",
                "block_sparse_moe.experts.gate_up_proj",
            ),
        ] {
            let [ours, theirs] = [ours, theirs].map(|name| format!("model.layers.3.{name}"));
            assert_eq!(qwen(&theirs).as_ref(), Some(&ours));
            assert_eq!(mixtral(&ours).as_ref(), Some(&theirs));
            assert_eq!((qwen(&ours), mixtral(&theirs)), (None, None));
        }
        for other in [
            "model.layers.3.mlp.gate_proj.weight",
            "model.layers.3.self_attn.q_proj.weight",
            "lm_head.weight",
            "model.layers.3",
            "",
        ] {
            assert_eq!((qwen(other), mixtral(other)), (None, None), "{other}");
        }
    }
}
