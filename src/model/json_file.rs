//! Reader of untrusted JSON files: bounded in size, with errors that name file, key, value and limit.

use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

pub use souffleur_base::error::load_error;
use souffleur_base::error::{LoadError, number_within};

const QUOTED_CHARS: usize = 80;

pub(crate) struct JsonFile {
    file: PathBuf,
    /// Dotted path of the object in the file, empty for the root.
    within: String,
    object: Map<String, Value>,
}

impl JsonFile {
    pub fn read(file: &Path, max_bytes: u64) -> Result<Self, LoadError> {
        let io = |source| LoadError::Io {
            file: file.to_owned(),
            source,
        };
        let mut text = Vec::new();
        let opened = File::open(file).map_err(io)?;
        opened
            .take(max_bytes + 1)
            .read_to_end(&mut text)
            .map_err(io)?;
        if text.len() as u64 > max_bytes {
            return Err(load_error(
                file,
                format!("exceeds the limit of {max_bytes} bytes: check that it is the right file"),
            ));
        }
        Self::parse(file, &text)
    }

    pub fn parse(file: &Path, text: &[u8]) -> Result<Self, LoadError> {
        match serde_json::from_slice(text) {
            Ok(Value::Object(object)) => Ok(Self {
                file: file.to_owned(),
                within: String::new(),
                object,
            }),
            Ok(other) => Err(load_error(
                file,
                format!("expected a JSON object, got {}", quote(&other)),
            )),
            Err(error) => Err(load_error(file, format!("is not JSON: {error}"))),
        }
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    pub fn entries(&self) -> &Map<String, Value> {
        &self.object
    }

    /// True also for `null`.
    pub fn has(&self, key: &str) -> bool {
        self.object.contains_key(key)
    }

    /// `null` counts as absent.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    pub fn object(&self, key: &str) -> Result<Option<Self>, LoadError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(Self {
                file: self.file.clone(),
                within: format!("{}{key}.", self.within),
                object: object.clone(),
            })),
            Some(other) => Err(self.expected(key, other, "an object")),
        }
    }

    /// This object, overridden by the entries of the nested object `key`. There, `null` overrides nothing, and stays if
    /// this object has no such entry: a key without a value may mean another thing than a missing key.
    pub fn with_nested(&self, key: &str) -> Result<Self, LoadError> {
        let mut object = self.object.clone();
        if let Some(nested) = self.object(key)? {
            let entries = nested.object.into_iter();
            object.extend(entries.filter(|(name, value)| !value.is_null() || !self.has(name)));
        }
        Ok(Self {
            file: self.file.clone(),
            within: self.within.clone(),
            object,
        })
    }

    pub fn size(
        &self,
        key: &str,
        limits: RangeInclusive<usize>,
    ) -> Result<Option<usize>, LoadError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let number = value
            .as_u64()
            .and_then(|number| usize::try_from(number).ok());
        match number {
            Some(number) if limits.contains(&number) => Ok(Some(number)),
            _ => {
                let expected =
                    format!("a whole number from {} to {}", limits.start(), limits.end());
                Err(self.expected(key, value, expected))
            }
        }
    }

    pub fn required_size(
        &self,
        key: &str,
        limits: RangeInclusive<usize>,
    ) -> Result<usize, LoadError> {
        self.size(key, limits)?
            .ok_or_else(|| self.error(key, "is missing"))
    }

    pub fn number(&self, key: &str, limits: RangeInclusive<f64>) -> Result<Option<f64>, LoadError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) if limits.contains(&number) => Ok(Some(number)),
            _ => Err(self.expected(key, value, number_within(&limits))),
        }
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>, LoadError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        value
            .as_bool()
            .map(Some)
            .ok_or_else(|| self.expected(key, value, "true or false"))
    }

    /// `null` means false; a missing key means `if_missing`.
    pub fn flag_or_null(&self, key: &str, if_missing: bool) -> Result<bool, LoadError> {
        let default = if_missing && !self.has(key);
        Ok(self.flag(key)?.unwrap_or(default))
    }

    pub fn text(&self, key: &str) -> Result<Option<&str>, LoadError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        value
            .as_str()
            .map(Some)
            .ok_or_else(|| self.expected(key, value, "a string"))
    }

    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, LoadError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let texts = value
            .as_array()
            .and_then(|items| items.iter().map(Value::as_str).collect());
        texts
            .map(Some)
            .ok_or_else(|| self.expected(key, value, "a list of strings"))
    }

    /// Token ids, given as one number or a list.
    pub fn token_ids(&self, key: &str) -> Result<Option<Vec<u32>>, LoadError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let one = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = match value {
            Value::Array(items) => items.iter().map(one).collect(),
            single => one(single).map(|id| vec![id]),
        };
        ids.map(Some)
            .ok_or_else(|| self.expected(key, value, "a token id or a list of token ids"))
    }

    /// A list of non-negative integers; errors call it `what`.
    pub fn numbers(&self, key: &str, what: &str) -> Result<Option<Vec<usize>>, LoadError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let one = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
        let numbers = value
            .as_array()
            .and_then(|items| items.iter().map(one).collect());
        numbers
            .map(Some)
            .ok_or_else(|| self.expected(key, value, format!("a list of {what}")))
    }

    pub fn expected(&self, key: &str, got: &Value, expected: impl Display) -> LoadError {
        self.error(key, format!("is {}, expected {expected}", quote(got)))
    }

    pub fn error(&self, key: &str, reason: impl Display) -> LoadError {
        load_error(&self.file, format!("{}{key} {reason}", self.within))
    }
}

fn quote(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(QUOTED_CHARS) {
        None => text,
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}
