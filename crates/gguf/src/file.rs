//! A GGUF file: parsed header and memory map.

use std::path::{Path, PathBuf};

use crate::cursor::Cursor;
use crate::mapped::MappedFile;
use crate::metadata::{Metadata, Pairs};
use crate::tensors::{self, TensorInfo};
use souffleur_base::error::{LoadError, load_error};

const MAGIC: &[u8] = b"GGUF";
/// In bytes, for files without `general.alignment`.
const DEFAULT_ALIGNMENT: usize = 32;
const MAX_ALIGNMENT: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Header {
    pub pairs: Pairs,
    pub tensors: Vec<TensorInfo>,
}

impl Header {
    /// Reads the header, and checks that the data is complete.
    pub fn parse(file: &Path, bytes: &[u8]) -> Result<Self, LoadError> {
        let broken = |reason| load_error(file, reason);
        let mut cursor = Cursor::new(bytes);
        check_version(&mut cursor).map_err(broken)?;
        let n_tensors = tensors::count(&mut cursor).map_err(broken)?;
        let n_pairs = Pairs::count(&mut cursor).map_err(broken)?;
        let pairs = Pairs::read(&mut cursor, n_pairs).map_err(broken)?;
        let alignment = alignment(Metadata::new(file, bytes, &pairs))?;
        let tensors =
            tensors::read(&mut cursor, n_tensors, alignment, bytes.len()).map_err(broken)?;
        Ok(Self { pairs, tensors })
    }
}

fn check_version(cursor: &mut Cursor<'_>) -> Result<(), String> {
    let magic = cursor.take(4, "the first four bytes").unwrap_or_default();
    if magic != MAGIC {
        return Err(format!(
            "begins with {}, expected GGUF: set --model-path to a GGUF file or a folder in Hugging Face layout",
            crate::metadata::quote(&String::from_utf8_lossy(magic))
        ));
    }
    match cursor.u32("the version")? {
        2 | 3 => Ok(()),
        1 => Err(
            "has GGUF version 1, supported: 2 and 3: convert the model again with a newer llama.cpp".to_owned(),
        ),
        swapped if swapped & 0xffff == 0 && swapped != 0 => {
            Err("is a big-endian GGUF file, only little-endian ones are supported: convert the model again".to_owned())
        }
        other => Err(format!(
            "has GGUF version {other}, supported: 2 and 3: convert the model again"
        )),
    }
}

fn alignment(metadata: Metadata<'_>) -> Result<usize, LoadError> {
    const KEY: &str = "general.alignment";
    match metadata.size(KEY, 1..=MAX_ALIGNMENT)? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(alignment) if alignment.is_power_of_two() => Ok(alignment),
        Some(other) => {
            let reason = format!(
                "is {other}, expected a power of two: the file is broken, download it again"
            );
            Err(metadata.error(KEY, reason))
        }
    }
}

pub struct GgufFile {
    header: Header,
    mapped: MappedFile,
}

impl GgufFile {
    /// Opens a whole model or a part of one.
    ///
    /// # Errors
    /// [`LoadError::Io`] and [`LoadError::Format`], naming the file and its fault.
    pub fn open(file: PathBuf) -> Result<Self, LoadError> {
        let mapped = MappedFile::open(file)?;
        Ok(Self {
            header: Header::parse(mapped.path(), mapped.bytes())?,
            mapped,
        })
    }

    pub fn path(&self) -> &Path {
        self.mapped.path()
    }

    pub fn metadata(&self) -> Metadata<'_> {
        Metadata::new(self.path(), self.mapped.bytes(), &self.header.pairs)
    }

    /// The tensors, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.header.tensors
    }

    pub fn into_mapped(self) -> MappedFile {
        self.mapped
    }

    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        &self.mapped.bytes()[tensor.bytes.clone()]
    }
}
