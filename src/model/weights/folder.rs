//! Opens weights in safetensors: a single file, or the shards of an index.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use rustc_hash::FxHashMap;
use safetensors::SafeTensors;

use super::checkpoint::Weights;
use super::entry::Entry;
use crate::json_file::{JsonFile, load_error};
use souffleur_base::error::LoadError;
use souffleur_gguf::mapped::MappedFile;
use souffleur_kernels::dtype::Dtype;
use souffleur_kernels::tensor_view::{RowOrder, Stored};

pub const SINGLE: &str = "model.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";
const MAX_INDEX_BYTES: u64 = 64 << 20;

#[derive(Default)]
struct Shards {
    files: Vec<MappedFile>,
    entries: FxHashMap<String, Entry>,
    types: Vec<(String, usize)>,
}

impl Weights {
    /// Maps `model.safetensors`, or the shards of `model.safetensors.index.json`, and reads their headers.
    ///
    /// # Errors
    /// [`LoadError::Io`] and [`LoadError::Format`] naming the file: missing, truncated or corrupt.
    pub fn open(dir: &Path) -> Result<Self, LoadError> {
        let mut shards = Shards::default();
        let single = dir.join(SINGLE);
        let index = dir.join(INDEX);
        if single.exists() {
            shards.map(single, |_| true)?;
        } else if index.exists() {
            for (shard, tensors) in shards_of(&index)? {
                let file = dir.join(&shard);
                if !file.exists() {
                    let reason = format!("names {shard}, which is missing: download it too");
                    return Err(load_error(&index, reason));
                }
                shards.map(file, |name| tensors.contains(name))?;
            }
        } else {
            let reason = format!(
                "holds neither {SINGLE} nor {INDEX} nor a GGUF file: only safetensors and GGUF are read"
            );
            return Err(load_error(dir, reason));
        }
        let types = shards
            .types
            .iter()
            .map(|(name, bytes)| (name.as_str(), *bytes));
        Ok(Self::new(dir, shards.files, shards.entries, types))
    }
}

/// The files that [`Weights::open`] reads, in order, including the index.
///
/// # Errors
/// The index cannot be read.
pub(crate) fn files_of(dir: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let (single, index) = (dir.join(SINGLE), dir.join(INDEX));
    if single.exists() {
        return Ok(vec![single]);
    }
    if !index.exists() {
        return Ok(Vec::new());
    }
    let shards = shards_of(&index)?;
    let shards = shards.into_keys().map(|shard| dir.join(shard));
    Ok([index].into_iter().chain(shards).collect())
}

impl Shards {
    fn map(&mut self, file: PathBuf, wanted: impl Fn(&str) -> bool) -> Result<(), LoadError> {
        let mapped = MappedFile::open(file)?;
        let (header_bytes, metadata) =
            SafeTensors::read_metadata(mapped.bytes()).map_err(|error| {
                let reason =
                    format!("is not a complete safetensors file: {error}; download it again");
                load_error(mapped.path(), reason)
            })?;
        // Format: 8 bytes of header length, the header, the data. Offsets are relative to the data.
        let data_start = 8 + header_bytes;
        for (name, info) in metadata.tensors() {
            if !wanted(&name) {
                let file = mapped.path().display();
                tracing::debug!(%file, tensor = name, "tensor is not in the index, ignored");
                continue;
            }
            let (start, end) = info.data_offsets;
            let dtype = format!("{:?}", info.dtype);
            self.types.push((dtype.clone(), end - start));
            let entry = Entry {
                file: self.files.len(),
                stored: dtype_of(info.dtype).map(Stored::Plain).ok_or(dtype),
                shape: info.shape.clone(),
                range: data_start + start..data_start + end,
                order: RowOrder::AsNumbered,
            };
            self.entries.insert(name, entry);
        }
        self.files.push(mapped);
        Ok(())
    }
}

/// `None` for types without kernels.
fn dtype_of(dtype: safetensors::Dtype) -> Option<Dtype> {
    match dtype {
        safetensors::Dtype::F32 => Some(Dtype::F32),
        safetensors::Dtype::F16 => Some(Dtype::F16),
        safetensors::Dtype::BF16 => Some(Dtype::BF16),
        _ => None,
    }
}

fn shards_of(index: &Path) -> Result<BTreeMap<String, BTreeSet<String>>, LoadError> {
    let json = JsonFile::read(index, MAX_INDEX_BYTES)?;
    let map = json
        .object("weight_map")?
        .ok_or_else(|| json.error("weight_map", "is missing"))?;
    let mut shards = BTreeMap::<String, BTreeSet<String>>::new();
    for (tensor, file) in map.entries() {
        let name = file
            .as_str()
            .filter(|name| is_plain_file_name(name))
            .ok_or_else(|| map.expected(tensor, file, "the name of a file in the same folder"))?;
        shards
            .entry(name.to_owned())
            .or_default()
            .insert(tensor.clone());
    }
    Ok(shards)
}

fn is_plain_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let plain = matches!(
        (parts.next(), parts.next()),
        (Some(Component::Normal(_)), None)
    );
    plain && !name.contains(['/', '\\', '\0'])
}
