//! The weights of a model: tensors by name, with their type and bytes in the files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

use super::entry::Entry;
use super::quantised::gpt_oss::Strided;
use super::quantised::part_names::part_names;
use super::quantised::part_of::MatrixRows;
use super::quantised::scheme::Scheme;
use crate::json_file::load_error;
use crate::tensor_spec::TensorSpec;
use souffleur_base::error::LoadError;
use souffleur_gguf::mapped::MappedFile;
use souffleur_kernels::dtype::Dtype;
use souffleur_kernels::tensor_view::{Stored, TensorView};

/// Tensors of one element type in the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeCount {
    pub name: String,
    pub tensors: usize,
    pub bytes: u64,
}

pub struct Weights {
    /// The file or folder that errors name.
    searched: PathBuf,
    pub(super) files: Vec<MappedFile>,
    pub(super) entries: FxHashMap<String, Entry>,
    types: Vec<TypeCount>,
    pub(super) scheme: Option<Scheme>,
    pub(super) gpt_oss: FxHashMap<String, Strided>,
    /// Matrices that are rows of a quantised matrix.
    pub(super) parts: FxHashMap<String, MatrixRows>,
    /// Parts of tensor names: in the checkpoint, and the internal equivalent.
    pub(super) renamed_parts: Vec<(&'static str, &'static str)>,
}

impl Weights {
    /// `types` are the element type and bytes of each tensor in the files.
    pub(crate) fn new<'a>(
        searched: &Path,
        files: Vec<MappedFile>,
        entries: FxHashMap<String, Entry>,
        types: impl IntoIterator<Item = (&'a str, usize)>,
    ) -> Self {
        Self {
            searched: searched.to_owned(),
            files,
            entries,
            types: count_types(types),
            scheme: None,
            gpt_oss: FxHashMap::default(),
            parts: FxHashMap::default(),
            renamed_parts: Vec::new(),
        }
    }

    pub fn quantised(self, scheme: Option<Scheme>) -> Self {
        Self { scheme, ..self }
    }

    pub fn scheme(&self) -> Option<Scheme> {
        self.scheme
    }

    /// Checks that every expected tensor is present, in the expected shape and a known type. Ignores other tensors.
    ///
    /// # Errors
    /// The first error, as [`Self::tensor`] would report it.
    pub fn check(&self, expected: &[TensorSpec]) -> Result<(), LoadError> {
        for spec in expected {
            match <&[usize; 2]>::try_from(spec.shape.as_slice()) {
                Ok(shape) => drop(self.matrix(&spec.name, shape)?),
                Err(_) => drop(self.tensor(&spec.name, &spec.shape)?),
            }
        }
        let names = expected.iter().map(|spec| spec.name.as_str());
        let known: BTreeSet<&str> = names.flat_map(|name| self.stored_names(name)).collect();
        for name in self.entries.keys() {
            // Old checkpoints store RoPE's frequencies, which are computed from the configuration.
            if !known.contains(name.as_str()) && !name.ends_with("rotary_emb.inv_freq") {
                tracing::debug!(tensor = name, "tensor is not part of the model, ignored");
            }
        }
        Ok(())
    }

    /// # Errors
    /// [`LoadError::MissingTensor`], [`LoadError::WrongShape`], [`LoadError::Format`] for an unknown element type.
    pub fn tensor(&self, name: &str, expected: &[usize]) -> Result<TensorView<'_>, LoadError> {
        let entry = self
            .entries
            .get(name)
            .ok_or_else(|| LoadError::MissingTensor {
                file: self.searched().to_owned(),
                tensor: self.file_name(name),
                expected: expected.to_vec(),
            })?;
        let file = &self.files[entry.file];
        if entry.shape != expected {
            return Err(LoadError::WrongShape {
                file: file.path().to_owned(),
                tensor: self.file_name(name),
                expected: expected.to_vec(),
                got: entry.shape.clone(),
            });
        }
        let stored = entry.stored.as_ref().map_err(|got| {
            let name = self.file_name(name);
            let reason = format!("tensor {name} has dtype {got}, supported: F32, F16 and BF16");
            load_error(file.path(), reason)
        })?;
        Ok(TensorView {
            stored: *stored,
            shape: &entry.shape,
            bytes: &file.bytes()[entry.range.clone()],
            order: entry.order,
        })
    }

    /// Releases a tensor's pages, which are read again from the file on access. Without this, weights that are copied
    /// during loading would count twice in resident memory.
    pub fn release(&self, name: &str) {
        // Two matrices may share these bytes; pages released too early are read again.
        for (file, range) in self.gpt_oss.get(name).into_iter().flat_map(Strided::ranges) {
            self.files[*file].release(range.clone());
        }
        for name in self.stored_names(name) {
            let entry = &self.entries[name];
            self.files[entry.file].release(entry.range.clone());
        }
    }

    pub(super) fn stored_names(&self, name: &str) -> Vec<&str> {
        let name = self.stored_matrix(name);
        let parts = part_names(name).filter(|_| self.scheme.is_some());
        let found = std::iter::once(name.to_owned())
            .chain(parts)
            .filter_map(|name| self.entries.get_key_value(&name));
        found.map(|(name, _)| name.as_str()).collect()
    }

    /// The stored type of a tensor, or the block type of a converted matrix; `None` if missing or of an unknown type.
    pub fn stored(&self, name: &str) -> Option<Stored> {
        match self.entries.get(name) {
            Some(entry) => entry.stored.as_ref().ok().copied(),
            None => match self.gpt_oss.get(name) {
                Some(matrix) => Some(matrix.stored()),
                None => self.quantised_blocks(name).map(Stored::Blocks),
            },
        }
    }

    /// The type of a plain tensor; `None` if missing or in blocks.
    pub fn dtype(&self, name: &str) -> Option<Dtype> {
        match self.stored(name)? {
            Stored::Plain(dtype) => Some(dtype),
            Stored::Blocks(_) => None,
        }
    }

    /// Whether two tensors have this shape, one type and different bytes; `false` if one is missing.
    pub(crate) fn differ(&self, names: [&str; 2], shape: [usize; 2]) -> bool {
        let [a, b] = names.map(|name| self.tensor(name, &shape).ok());
        let (Some(a), Some(b)) = (a, b) else {
            return false;
        };
        let differ = a.stored == b.stored && a.bytes != b.bytes;
        // Equal ones were read whole.
        for name in names {
            self.release(name);
        }
        differ
    }

    /// The names of all tensors, in no particular order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Bytes of a tensor in the files; `None` if missing.
    pub fn bytes_of(&self, name: &str) -> Option<usize> {
        if let Some(matrix) = self.gpt_oss.get(name) {
            return Some(matrix.file_bytes());
        }
        let names = self.stored_names(name);
        let bytes = names.iter().map(|name| self.entries[*name].range.len());
        let bytes: usize = bytes.sum();
        let share = match self.parts.get(name) {
            Some(part) => bytes / part.shape[0] * part.rows,
            None => bytes,
        };
        (!names.is_empty()).then_some(share)
    }

    pub fn stored_bytes(&self) -> u64 {
        self.types.iter().map(|count| count.bytes).sum()
    }

    /// Sorted by bytes, descending.
    pub fn types(&self) -> &[TypeCount] {
        &self.types
    }

    pub(super) fn searched(&self) -> &Path {
        match self.files.as_slice() {
            [only] => only.path(),
            _ => &self.searched,
        }
    }
}

fn count_types<'a>(tensors: impl IntoIterator<Item = (&'a str, usize)>) -> Vec<TypeCount> {
    let mut counts = BTreeMap::<&str, (usize, u64)>::new();
    for (name, bytes) in tensors {
        let count = counts.entry(name).or_default();
        count.0 += 1;
        count.1 += bytes as u64;
    }
    let counts = counts
        .into_iter()
        .map(|(name, (tensors, bytes))| TypeCount {
            name: name.to_owned(),
            tensors,
            bytes,
        });
    let mut counts: Vec<TypeCount> = counts.collect();
    counts.sort_by_key(|count| std::cmp::Reverse(count.bytes));
    counts
}
