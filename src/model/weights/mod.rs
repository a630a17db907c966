//! Weights as they lie on disk: safetensors files, mapped and checked, never copied here.
//!
//! A model's whole set of names, shapes and dtypes is checked against `config.json` before anything is allocated for
//! it. Nothing here knows what a tensor is for.

// The one `unsafe` of the weights: mapping a file.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use memmap2::Mmap;
use rustc_hash::FxHashMap;
use safetensors::SafeTensors;

use crate::error::LoadError;
use crate::kernels::dtype::Dtype;
use crate::kernels::tensor_view::TensorView;
use crate::model::json_file::{JsonFile, format_error};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Largest index file read.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// A tensor that a model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in the files.
    pub name: String,
    /// Its shape, outermost dimension first.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Makes a spec.
    pub fn new(name: impl Into<String>, shape: &[usize]) -> Self {
        Self {
            name: name.into(),
            shape: shape.to_vec(),
        }
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|&size| size as u64).product()
    }
}

struct Shard {
    file: PathBuf,
    map: Mmap,
}

struct Entry {
    shard: usize,
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    /// Bytes of the mapped file.
    range: Range<usize>,
}

/// All weights of a model's folder.
pub struct Weights {
    dir: PathBuf,
    shards: Vec<Shard>,
    entries: FxHashMap<String, Entry>,
}

impl Weights {
    /// Maps `model.safetensors`, or the shards that `model.safetensors.index.json` names, and reads their headers.
    ///
    /// # Errors
    /// [`LoadError::Io`] and [`LoadError::Format`] naming the file: missing, truncated or corrupt.
    pub fn open(dir: &Path) -> Result<Self, LoadError> {
        let mut weights = Self {
            dir: dir.to_owned(),
            shards: Vec::new(),
            entries: FxHashMap::default(),
        };
        let single = dir.join(SINGLE);
        let index = dir.join(INDEX);
        if single.exists() {
            weights.map(single, |_| true)?;
        } else if index.exists() {
            for (shard, tensors) in shards_of(&index)? {
                let file = dir.join(&shard);
                if !file.exists() {
                    let reason = format!("names {shard}, which is not there: download it too");
                    return Err(format_error(&index, reason));
                }
                weights.map(file, |name| tensors.contains(name))?;
            }
        } else {
            let reason = format!("holds neither {SINGLE} nor {INDEX}: only safetensors are read");
            return Err(format_error(dir, reason));
        }
        Ok(weights)
    }

    fn map(&mut self, file: PathBuf, wanted: impl Fn(&str) -> bool) -> Result<(), LoadError> {
        let io = |source| LoadError::Io {
            file: file.clone(),
            source,
        };
        let opened = File::open(&file).map_err(io)?;
        if !opened.metadata().map_err(io)?.is_file() {
            return Err(format_error(&file, "is not a regular file"));
        }
        // SAFETY: the map is read-only and private to this type, which hands out shared byte slices bound to its own
        // lifetime, and bytes have no invalid values. That nobody shortens the file meanwhile is asked of the user.
        let map = unsafe { Mmap::map(&opened) }.map_err(io)?;
        let (header_bytes, metadata) = SafeTensors::read_metadata(&map).map_err(|error| {
            format_error(&file, format!("is not a whole safetensors file: {error}"))
        })?;
        // The format: 8 bytes of header length, the header, then the data that offsets count from.
        let data_start = 8 + header_bytes;
        let shard = self.shards.len();
        for (name, info) in metadata.tensors() {
            if !wanted(&name) {
                tracing::debug!(file = %file.display(), tensor = name, "tensor is not in the index, ignored");
                continue;
            }
            let (start, end) = info.data_offsets;
            let range = data_start + start..data_start + end;
            let entry = Entry {
                shard,
                dtype: info.dtype,
                shape: info.shape.clone(),
                range,
            };
            self.entries.insert(name, entry);
        }
        self.shards.push(Shard { file, map });
        Ok(())
    }

    /// Checks that every expected tensor is there, in the expected shape and a known dtype.
    ///
    /// Other tensors are ignored.
    ///
    /// # Errors
    /// The first thing wrong, as [`Self::tensor`] would report it.
    pub fn check(&self, expected: &[TensorSpec]) -> Result<(), LoadError> {
        for spec in expected {
            self.tensor(&spec.name, &spec.shape)?;
        }
        let known: BTreeSet<&str> = expected.iter().map(|spec| spec.name.as_str()).collect();
        for name in self.entries.keys() {
            // Old checkpoints store the rotation, which is computed from the configuration.
            if !known.contains(name.as_str()) && !name.ends_with("rotary_emb.inv_freq") {
                tracing::debug!(tensor = name, "tensor is not part of the model, ignored");
            }
        }
        Ok(())
    }

    /// Returns a tensor of the expected shape.
    ///
    /// # Errors
    /// [`LoadError::MissingTensor`], [`LoadError::WrongShape`], [`LoadError::Format`] for an unknown dtype.
    pub fn tensor(&self, name: &str, expected: &[usize]) -> Result<TensorView<'_>, LoadError> {
        let entry = self
            .entries
            .get(name)
            .ok_or_else(|| LoadError::MissingTensor {
                file: self.searched().to_owned(),
                tensor: name.to_owned(),
                expected: expected.to_vec(),
            })?;
        let shard = &self.shards[entry.shard];
        if entry.shape != expected {
            return Err(LoadError::WrongShape {
                file: shard.file.clone(),
                tensor: name.to_owned(),
                expected: expected.to_vec(),
                got: entry.shape.clone(),
            });
        }
        let dtype = stored_dtype(entry.dtype).ok_or_else(|| {
            let got = entry.dtype;
            let reason =
                format!("tensor {name} has dtype {got:?}, supported are F32, F16 and BF16");
            format_error(&shard.file, reason)
        })?;
        let bytes = &shard.map[entry.range.clone()];
        Ok(TensorView::plain(dtype, &entry.shape, bytes))
    }

    /// Gives the memory of a tensor's bytes back to the system, which reads them from the file if they are asked for
    /// again. Without this a model that is copied while it is loaded counts twice in the resident memory.
    pub fn release(&self, name: &str) {
        #[cfg(unix)]
        if let Some(entry) = self.entries.get(name) {
            let map = &self.shards[entry.shard].map;
            let (start, len) = (entry.range.start, entry.range.len());
            // SAFETY: the map is a read-only view of a file, so pages that are dropped come back with the same bytes.
            let dropped = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len)
            };
            if let Err(error) = dropped {
                tracing::debug!(tensor = name, %error, "pages of a loaded tensor stay in memory");
            }
        }
    }

    /// Dtype of a tensor as stored, if it is there and of a known dtype.
    pub fn dtype(&self, name: &str) -> Option<Dtype> {
        stored_dtype(self.entries.get(name)?.dtype)
    }

    /// Size of all tensors as stored.
    pub fn stored_bytes(&self) -> u64 {
        self.entries
            .values()
            .map(|entry| entry.range.len() as u64)
            .sum()
    }

    fn searched(&self) -> &Path {
        match self.shards.as_slice() {
            [only] => &only.file,
            _ => &self.dir,
        }
    }
}

/// The element type of a tensor in a file; `None` for those that have no kernels.
fn stored_dtype(dtype: safetensors::Dtype) -> Option<Dtype> {
    match dtype {
        safetensors::Dtype::F32 => Some(Dtype::F32),
        safetensors::Dtype::F16 => Some(Dtype::F16),
        safetensors::Dtype::BF16 => Some(Dtype::BF16),
        _ => None,
    }
}

/// Reads which tensors each shard holds.
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

#[cfg(test)]
mod tests;
