//! The keys of one architecture in a file's metadata.

use std::ops::RangeInclusive;

use super::Metadata;
use crate::error::LoadError;

/// The metadata of one architecture: keys that begin with its name.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub metadata: Metadata<'a>,
    pub architecture: &'a str,
}

impl<'a> Keys<'a> {
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub fn text(&self, name: &str) -> Result<Option<&'a str>, LoadError> {
        self.metadata.text(&self.key(name))
    }

    pub fn number(
        &self,
        name: &str,
        limits: RangeInclusive<f64>,
    ) -> Result<Option<f64>, LoadError> {
        self.metadata.number(&self.key(name), limits)
    }

    /// A size, given once or for each layer; all layers must have the same.
    pub fn size(
        &self,
        name: &str,
        limits: RangeInclusive<usize>,
    ) -> Result<Option<usize>, LoadError> {
        let key = self.key(name);
        if !self.metadata.is_list(&key) {
            return self.metadata.size(&key, limits);
        }
        let within = *limits.start() as i64..=*limits.end() as i64;
        let sizes = self.metadata.integers(&key, within)?.unwrap_or_default();
        match sizes.as_slice() {
            [] => Err(self.error(name, "is an empty list, expected a number for each layer")),
            [first, rest @ ..] => match rest.iter().find(|size| *size != first) {
                None => Ok(Some(*first as usize)),
                Some(other) => {
                    let reason = format!(
                        "is {first} in the first layer and {other} in another: all layers must have the same"
                    );
                    Err(self.error(name, reason))
                }
            },
        }
    }

    /// A flag for each of `layers` layers, given as flags or as whole numbers. Entries after these are ignored.
    pub fn flags(&self, name: &str, layers: usize) -> Result<Option<Vec<bool>>, LoadError> {
        let Some(mut flags) = self.metadata.flags(&self.key(name))? else {
            return Ok(None);
        };
        if flags.len() < layers {
            let reason = format!(
                "has {} entries, expected one for each of {layers} layers: convert the model again",
                flags.len()
            );
            return Err(self.error(name, reason));
        }
        flags.truncate(layers);
        Ok(Some(flags))
    }

    pub fn required(&self, name: &str, limits: RangeInclusive<usize>) -> Result<usize, LoadError> {
        self.size(name, limits)?
            .ok_or_else(|| self.error(name, "is missing: convert the model again"))
    }

    pub fn error(&self, name: &str, reason: impl std::fmt::Display) -> LoadError {
        self.metadata.error(&self.key(name), reason)
    }
}
