//! A GGUF model of one or several files, and its tensor index.

use std::fmt::Display;
use std::path::Path;

use rustc_hash::FxHashMap;
use souffleur_base::error::{LoadError, load_error};

use crate::dtype::Dtype;
use crate::file::GgufFile;
use crate::mapped::MappedFile;
use crate::metadata::{Metadata, shown};
use crate::split::open_all;
use crate::tensors::TensorInfo;

/// An opened model. Only the headers have been read and checked.
pub struct Gguf {
    /// The first file has the metadata.
    files: Vec<GgufFile>,
    /// File index and tensor index, by name.
    index: FxHashMap<String, (usize, usize)>,
}

#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    pub file: &'a GgufFile,
    pub file_index: usize,
    pub info: &'a TensorInfo,
}

impl Gguf {
    /// Opens a model by its only or first file.
    ///
    /// # Errors
    /// [`LoadError::Io`] and [`LoadError::Format`], naming the file and its fault.
    pub fn open(file: &Path) -> Result<Self, LoadError> {
        let files = open_all(file)?;
        let mut index = FxHashMap::default();
        for (file_index, file) in files.iter().enumerate() {
            for (place, tensor) in file.tensors().iter().enumerate() {
                index.insert(tensor.name.clone(), (file_index, place));
            }
        }
        Ok(Self { files, index })
    }

    pub fn metadata(&self) -> Metadata<'_> {
        self.files[0].metadata()
    }

    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.files.iter().flat_map(GgufFile::tensors)
    }

    /// The default element type of the model and its KV: that of its 16-bit matrices (bfloat16 if it has both
    /// types), else float32 if all matrices are float32, else bfloat16.
    ///
    /// llama.cpp always stores KV in float16. Here bfloat16 has the fastest kernels, and the range used in training.
    pub fn dtype(&self) -> Dtype {
        let matrices = self.tensors().filter(|tensor| tensor.shape.len() > 1);
        let names: Vec<&str> = matrices.map(|tensor| tensor.element.name).collect();
        let has = |name| names.contains(&name);
        match (has("BF16"), has("F16")) {
            (true, _) => Dtype::BF16,
            (false, true) => Dtype::F16,
            (false, false) if names.iter().all(|name| *name == "F32") => Dtype::F32,
            (false, false) => Dtype::BF16,
        }
    }

    /// The only or first file.
    pub fn path(&self) -> &Path {
        self.files[0].path()
    }

    /// In the order of [`Tensor::file_index`].
    pub fn into_files(self) -> Vec<MappedFile> {
        self.files.into_iter().map(GgufFile::into_mapped).collect()
    }

    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let &(file_index, place) = self.index.get(name)?;
        let file = &self.files[file_index];
        Some(Tensor {
            file,
            file_index,
            info: &file.tensors()[place],
        })
    }
}

impl<'a> Tensor<'a> {
    pub fn bytes(&self) -> &'a [u8] {
        self.file.data(self.info)
    }

    pub fn error(&self, reason: impl Display) -> LoadError {
        let name = shown(&self.info.name);
        load_error(self.file.path(), format!("tensor {name} {reason}"))
    }
}
