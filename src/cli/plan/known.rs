//! Models that `souffleur plan --table` lists: GGUF files on the hub.

use souffleur::model::config::ModelConfig;
use souffleur::simulate::{SimulateError, shape};

use super::mix::Mix;

pub(super) struct Known {
    /// The id, as `souffleur run` takes it.
    pub id: &'static str,
    /// Size of the file on the hub.
    pub file_bytes: u64,
    pub mix: Mix,
    /// Name of the shape in `config/shapes`, which has the sizes in the model's `config.json`.
    shape: &'static str,
    /// Whether the file has an output matrix, although the model's output is its embedding.
    repeats_embedding: bool,
}

const fn known(id: &'static str, file_bytes: u64, shape: &'static str, mix: Mix) -> Known {
    Known {
        id,
        file_bytes,
        mix,
        shape,
        repeats_embedding: false,
    }
}

/// Sizes at the revisions 23749fe, 90862c4, bc64014, 7c41481, 530227a and e4d4baf of Qwen3, f86cb2c and 13fb94b of
/// Qwen2.5-Coder.
pub(super) const KNOWN: [Known; 9] = [
    known(
        "Qwen/Qwen3-0.6B-GGUF:Q8_0",
        639_446_688,
        "qwen3-0.6b",
        Mix::Q8_0,
    ),
    known(
        "Qwen/Qwen3-1.7B-GGUF:Q8_0",
        1_834_426_016,
        "qwen3-1.7b",
        Mix::Q8_0,
    ),
    known(
        "Qwen/Qwen3-4B-GGUF:Q4_K_M",
        2_497_280_256,
        "qwen3-4b",
        Mix::Q4KM,
    ),
    known(
        "Qwen/Qwen3-8B-GGUF:Q4_K_M",
        5_027_783_488,
        "qwen3-8b",
        Mix::Q4KM,
    ),
    known(
        "Qwen/Qwen3-14B-GGUF:Q4_K_M",
        9_001_752_960,
        "qwen3-14b",
        Mix::Q4KM,
    ),
    known(
        "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M",
        18_556_685_824,
        "qwen3-30b-a3b",
        Mix::Q4KM,
    ),
    known(
        "ggml-org/gpt-oss-20b-GGUF:mxfp4",
        12_109_566_560,
        "gpt-oss-20b",
        Mix::Mxfp4,
    ),
    Known {
        repeats_embedding: true,
        ..known(
            "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M",
            1_117_320_768,
            "qwen2.5-coder-1.5b",
            Mix::Q4KM,
        )
    },
    known(
        "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF:Q4_K_M",
        4_683_073_536,
        "qwen2.5-coder-7b",
        Mix::Q4KM,
    ),
];

impl Known {
    pub fn config(&self) -> Result<ModelConfig, SimulateError> {
        let mut config = shape::load(self.shape)?;
        config.tie_word_embeddings &= !self.repeats_embedding;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use souffleur::hub::HubModel;
    use souffleur::kernels::tensor_view::Stored;
    use souffleur::model::weights::TensorSpec;

    use super::*;

    /// The vocabulary of a file takes most of its header, so that models of a family have nearly equal headers.
    fn header_bytes(vocab_size: usize) -> std::ops::Range<u64> {
        match vocab_size {
            201_088 => 12_500_000..13_500_000,
            _ => 5_940_000..5_980_000,
        }
    }

    #[test]
    fn the_tensors_fill_the_published_files() {
        for model in &KNOWN {
            let config = model.config().expect(model.id);
            let bytes = |spec: &TensorSpec| {
                let width = spec.shape.last().copied().unwrap_or(1);
                let rows = spec.elements() / width as u64;
                rows * model.mix.stored(&config, spec).row_bytes(width) as u64
            };
            let tensors: u64 = config.tensors().iter().map(bytes).sum();
            let header = model.file_bytes.wrapping_sub(tensors);
            let expected = header_bytes(config.vocab_size);
            assert!(
                expected.contains(&header),
                "{}: tensors of {tensors} bytes leave {header}",
                model.id
            );
        }
    }

    #[test]
    fn ids_are_those_of_the_hub_and_differ() {
        let mut ids: Vec<&str> = KNOWN.iter().map(|model| model.id).collect();
        for id in &ids {
            assert!(HubModel::parse(id).is_some(), "{id}");
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), KNOWN.len());
    }

    #[test]
    fn routers_and_vectors_are_not_quantised() {
        for model in &KNOWN {
            let config = model.config().expect(model.id);
            for spec in config.tensors() {
                let is_plain = matches!(model.mix.stored(&config, &spec), Stored::Plain(_));
                let is_small = spec.shape.len() == 1
                    || spec.name.ends_with("mlp.gate.weight")
                    || spec.name.ends_with("router.weight");
                assert_eq!(is_plain, is_small, "{}: {}", model.id, spec.name);
            }
        }
    }
}
