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

use half::{bf16, f16};
use memmap2::Mmap;
use rustc_hash::FxHashMap;
use safetensors::SafeTensors;

use crate::error::LoadError;
use crate::model::json_file::{JsonFile, format_error};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Largest index file read.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// Element types of weights and of the KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit brain float.
    BF16,
}

impl Dtype {
    /// Size of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// The name in `config.json` and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
        }
    }

    /// Finds the dtype of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::F32, Self::F16, Self::BF16]
            .into_iter()
            .find(|dtype| dtype.name() == name)
    }

    fn stored(dtype: safetensors::Dtype) -> Option<Self> {
        match dtype {
            safetensors::Dtype::F32 => Some(Self::F32),
            safetensors::Dtype::F16 => Some(Self::F16),
            safetensors::Dtype::BF16 => Some(Self::BF16),
            _ => None,
        }
    }
}

/// What matrices are quantised to when they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantization {
    /// Signed bytes, with an f32 scale for each output and 128 inputs.
    Int8,
}

impl Quantization {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
        }
    }

    /// Finds the quantization of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        (name == Self::Int8.name()).then_some(Self::Int8)
    }

    /// Bytes of a matrix `[outputs, inputs]`, scales included.
    pub fn bytes(self, outputs: u64, inputs: u64) -> u64 {
        match self {
            Self::Int8 => outputs * (inputs + 4 * inputs.div_ceil(128)),
        }
    }
}

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

/// A tensor inside a mapped file: row-major, little endian, at any alignment.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Element type.
    pub dtype: Dtype,
    /// Shape, outermost dimension first.
    pub shape: &'a [usize],
    /// The elements; `shape.product() * dtype.bytes()` bytes.
    pub bytes: &'a [u8],
}

impl TensorView<'_> {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.bytes.len() / self.dtype.bytes()
    }

    /// Reads all elements, widened to f32 without loss.
    pub fn to_f32(&self) -> Vec<f32> {
        let pairs = || {
            self.bytes
                .chunks_exact(2)
                .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
        };
        match self.dtype {
            Dtype::F32 => {
                let words = self.bytes.chunks_exact(4);
                words
                    .map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]))
                    .collect()
            }
            Dtype::F16 => pairs().map(|bits| f16::from_bits(bits).to_f32()).collect(),
            Dtype::BF16 => pairs().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
        }
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
        let dtype = Dtype::stored(entry.dtype).ok_or_else(|| {
            let got = entry.dtype;
            let reason =
                format!("tensor {name} has dtype {got:?}, supported are F32, F16 and BF16");
            format_error(&shard.file, reason)
        })?;
        Ok(TensorView {
            dtype,
            shape: &entry.shape,
            bytes: &shard.map[entry.range.clone()],
        })
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
        Dtype::stored(self.entries.get(name)?.dtype)
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
