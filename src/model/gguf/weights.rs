//! Weights of a GGUF file, under internal names.

use std::collections::BTreeSet;

use super::Gguf;
use super::names::{self, Place, ROPE_FACTORS, ROPE_FREQS};
use crate::config::ModelConfig;
use crate::weights::{Entry, TensorSpec, Weights};
use souffleur_base::error::LoadError;
use souffleur_kernels::blocks::BlockType;
use souffleur_kernels::dtype::Dtype;
use souffleur_kernels::tensor_view::Stored;

/// Finds the tensors of the configuration, and rejects any others.
pub(super) fn of(gguf: Gguf, config: &ModelConfig) -> Result<Weights, LoadError> {
    let mut entries = Vec::new();
    let rotations = ROPE_FACTORS.into_iter().chain([ROPE_FREQS]);
    let mut used: BTreeSet<String> = rotations.map(str::to_owned).collect();
    for spec in config.tensors() {
        let place =
            names::find(&gguf, config, &spec).ok_or_else(|| missing(&gguf, config, &spec))?;
        used.insert(place.tensor.info.name.clone());
        let entry = entry(&place, &spec)?;
        entries.push((spec.name, entry));
    }
    refuse_others(&gguf, config, &used)?;
    let types: Vec<(&str, usize)> = gguf
        .tensors()
        .map(|tensor| (tensor.element.name, tensor.bytes.len()))
        .collect();
    let searched = gguf.path().to_owned();
    Ok(Weights::new(
        &searched,
        gguf.into_files(),
        entries.into_iter().collect(),
        types,
    ))
}

fn missing(gguf: &Gguf, config: &ModelConfig, spec: &TensorSpec) -> LoadError {
    LoadError::MissingTensor {
        file: gguf.path().to_owned(),
        tensor: names::file_name(config, &spec.name),
        expected: spec.shape.clone(),
    }
}

fn entry(place: &Place<'_>, spec: &TensorSpec) -> Result<Entry, LoadError> {
    let info = place.tensor.info;
    if !same_shape(&info.shape, &place.whole_shape) {
        return Err(LoadError::WrongShape {
            file: place.tensor.file.path().to_owned(),
            tensor: info.name.clone(),
            expected: place.whole_shape.clone(),
            got: info.shape.clone(),
        });
    }
    let stored = stored(info.element.id, spec).ok_or_else(|| {
        let (name, supported) = (info.element.name, supported(spec));
        let reason = format!(
            "has type {name}, supported: {supported}; use a file of the same model in one of these"
        );
        place.tensor.error(reason)
    })?;
    let n_rows: usize = match place.whole_shape.as_slice() {
        [elements] => *elements,
        [outer @ .., _] => outer.iter().product(),
        [] => 1,
    };
    let row_bytes = info.bytes.len() / n_rows;
    let start = info.bytes.start;
    Ok(Entry {
        file: place.tensor.file_index,
        stored: Ok(stored),
        shape: spec.shape.clone(),
        range: start + place.rows.start * row_bytes..start + place.rows.end * row_bytes,
        order: place.order,
    })
}

/// Whether two shapes are equal, apart from leading dimensions of 1.
fn same_shape(got: &[usize], expected: &[usize]) -> bool {
    let longer = got.len().max(expected.len());
    let filled = |shape: &[usize]| {
        let ones = std::iter::repeat_n(1, longer - shape.len());
        ones.chain(shape.iter().copied()).collect::<Vec<_>>()
    };
    filled(got) == filled(expected)
}

/// Element types that are not block-quantised, with their GGUF ids.
const PLAIN: [(u32, &str, Dtype); 3] = [
    (0, "F32", Dtype::F32),
    (1, "F16", Dtype::F16),
    (30, "BF16", Dtype::BF16),
];

/// `None` for types without kernels. Only matrices have blocks.
fn stored(id: u32, spec: &TensorSpec) -> Option<Stored> {
    let plain = PLAIN.iter().find(|(known, ..)| *known == id);
    match (plain, spec.shape.len()) {
        (Some((.., dtype)), _) => Some(Stored::Plain(*dtype)),
        (None, 1) => None,
        (None, _) => BlockType::from_gguf_id(id).map(Stored::Blocks),
    }
}

fn supported(spec: &TensorSpec) -> String {
    let plain = PLAIN.iter().map(|(_, name, _)| *name);
    let blocks = BlockType::ALL.iter().map(|block| block.name());
    let blocks = blocks.filter(|_| spec.shape.len() > 1);
    plain.chain(blocks).collect::<Vec<_>>().join(", ")
}

/// Rejects unknown tensors, which would change the result if they were used.
fn refuse_others(
    gguf: &Gguf,
    config: &ModelConfig,
    used: &BTreeSet<String>,
) -> Result<(), LoadError> {
    // Layers after the decoder's are for multi-token prediction, and are not used.
    let is_extra = |name: &str| {
        let layer = name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split_once('.'));
        let layer = layer.and_then(|(layer, _)| layer.parse::<usize>().ok());
        let predicts_more = config.recurrent.is_some() || config.latent.is_some();
        predicts_more && layer.is_some_and(|layer| layer >= config.num_hidden_layers)
    };
    let other = gguf
        .tensors()
        .find(|tensor| !used.contains(&tensor.name) && !is_extra(&tensor.name));
    let Some(other) = other.and_then(|other| gguf.tensor(&other.name)) else {
        return Ok(());
    };
    let reason = format!(
        "is not part of a model of this architecture with {} layers, or not supported: use another model",
        config.num_hidden_layers
    );
    Err(other.error(reason))
}
