//! Typed access to the tensors of a quantised module.

use super::scheme::{Packing, Scheme};
use crate::json_file::load_error;
use crate::weights::checkpoint::Weights;
use crate::weights::entry::Entry;
use souffleur_base::error::LoadError;
use souffleur_kernels::dtype::Dtype;
use souffleur_kernels::tensor_view::{Stored, widen};

pub struct Module<'a> {
    weights: &'a Weights,
    name: String,
}

/// A tensor of a module.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    weights: &'a Weights,
    name: &'a str,
    entry: &'a Entry,
}

impl<'a> Module<'a> {
    /// `None` unless the module has quantised codes.
    pub fn find(weights: &'a Weights, name: &str) -> Option<(Self, Scheme)> {
        let scheme = weights.scheme()?;
        let module = name.strip_suffix(".weight")?;
        let is_plain = weights
            .entries
            .get(name)
            .is_some_and(|entry| entry.stored.is_ok());
        let codes = match scheme {
            _ if is_plain => return None,
            Scheme::Fp8 { .. } | Scheme::Int8 => "weight",
            Scheme::Int4(Packing::CompressedTensors { .. }, _) => "weight_packed",
            Scheme::Int4(..) => "qweight",
        };
        let module = Self {
            weights,
            name: module.to_owned(),
        };
        module.part(codes)?;
        Some((module, scheme))
    }

    pub fn part(&self, part: &str) -> Option<Part<'a>> {
        let name = format!("{}.{part}", self.name);
        let (name, entry) = self.weights.entries.get_key_value(&name)?;
        Some(Part {
            weights: self.weights,
            name,
            entry,
        })
    }

    pub fn required(&self, part: &str, expected: &[usize]) -> Result<Part<'a>, LoadError> {
        self.part(part).ok_or_else(|| LoadError::MissingTensor {
            file: self.weights.searched().to_owned(),
            tensor: self.weights.file_name(&format!("{}.{part}", self.name)),
            expected: expected.to_vec(),
        })
    }

    pub fn exact(&self, part: &str, shape: &[usize], dtype: &str) -> Result<Part<'a>, LoadError> {
        let part = self.required(part, shape)?;
        if part.entry.shape != shape {
            return Err(part.wrong_shape(shape));
        }
        part.of_dtype(dtype)
    }
}

impl<'a> Part<'a> {
    pub fn bytes(&self) -> &'a [u8] {
        let file = &self.weights.files[self.entry.file];
        &file.bytes()[self.entry.range.clone()]
    }

    pub fn shape(&self) -> &'a [usize] {
        &self.entry.shape
    }

    pub fn of_dtype(self, dtype: &str) -> Result<Self, LoadError> {
        match &self.entry.stored {
            Err(found) if found == dtype => Ok(self),
            Err(found) => Err(self.error(format!("has dtype {found}, expected {dtype}"))),
            Ok(stored) => {
                let found = match stored {
                    Stored::Plain(dtype) => dtype.name(),
                    Stored::Blocks(block) => block.name(),
                };
                Err(self.error(format!("has dtype {found}, expected {dtype}")))
            }
        }
    }

    pub fn float(&self) -> Result<Dtype, LoadError> {
        match &self.entry.stored {
            Ok(Stored::Plain(dtype)) => Ok(*dtype),
            Ok(Stored::Blocks(block)) => Err(self.no_float(block.name())),
            Err(found) => Err(self.no_float(found)),
        }
    }

    fn no_float(&self, found: &str) -> LoadError {
        self.error(format!("has dtype {found}, supported: F32, F16 and BF16"))
    }

    /// Fails unless the type is F32, F16 or BF16.
    pub fn floats(&self) -> Result<Vec<f32>, LoadError> {
        let dtype = self.float()?;
        let bytes = self.bytes();
        let mut values = vec![0.0; bytes.len() / dtype.bytes()];
        widen(dtype, bytes, &mut values);
        Ok(values)
    }

    /// Fails unless the type is I32 or I64.
    pub fn integers(&self) -> Result<Vec<i64>, LoadError> {
        let bytes = self.bytes();
        match &self.entry.stored {
            Err(found) if found == "I32" => Ok(bytes
                .as_chunks()
                .0
                .iter()
                .map(|word| i64::from(i32::from_le_bytes(*word)))
                .collect()),
            Err(found) if found == "I64" => {
                let words = bytes.as_chunks().0.iter();
                Ok(words.map(|word| i64::from_le_bytes(*word)).collect())
            }
            _ => self.of_dtype("I32").map(|_| Vec::new()),
        }
    }

    pub fn wrong_shape(&self, expected: &[usize]) -> LoadError {
        LoadError::WrongShape {
            file: self.weights.files[self.entry.file].path().to_owned(),
            tensor: self.weights.file_name(self.name),
            expected: expected.to_vec(),
            got: self.entry.shape.clone(),
        }
    }

    pub fn error(&self, reason: impl std::fmt::Display) -> LoadError {
        let file = self.weights.files[self.entry.file].path();
        let name = self.weights.file_name(self.name);
        load_error(file, format!("tensor {name} {reason}"))
    }
}
