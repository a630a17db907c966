//! Parses `input_embeds`: a prompt as a list of embeddings, `[n][hidden_size]`, or a list of such prompts.
//!
//! The numbers of a prompt are counted and charged before memory is allocated, and then parsed into that memory.

use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, SeqAccess, Visitor};

use crate::call::{CallLimits, EmbedLimits, Prompts, check_size};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::raw::Raw;
use souffleur_base::error::FieldError;
use souffleur_base::field::{Field, Shallow};
use souffleur_request::{Prompt, PromptVectors};

pub(super) const NAME: &str = "input_embeds";
const VECTORS: &str = "a list of vectors, each a list of numbers";

pub(super) fn read(
    fields: &mut Fields,
    raw: &Raw,
    limits: CallLimits<'_>,
) -> Result<Prompts, ApiError> {
    let Some(embeds) = limits.embeds else {
        let text =
            format!("{NAME} is not supported by the engine's executor: send text or input_ids");
        return Err(ApiError::field(NAME, text));
    };
    if !raw.is_list() {
        let value = raw.shallow(NAME)?;
        return Err(Field::new(NAME, &value).must_be(VECTORS).into());
    }
    let (first, _) = raw.items(NAME, 1)?;
    if !first.first().is_some_and(is_prompt) {
        return prompt(fields, NAME, raw, embeds).map(Prompts::One);
    }
    let (items, len) = raw.items(NAME, limits.max_requests)?;
    check_size(NAME, len, len, limits)?;
    let one = |(index, item): (usize, &Raw)| {
        let name = format!("{NAME}[{index}]");
        prompt(fields, &name, item, embeds)
    };
    let prompts: Result<_, ApiError> = items.iter().enumerate().map(one).collect();
    prompts.map(Prompts::List)
}

/// Returns whether an item is a prompt, which is a list of vectors, and not a vector, which is a list of numbers.
fn is_prompt(item: &Raw) -> bool {
    item.first_of_list() == Some(b'[')
}

fn prompt(
    fields: &mut Fields,
    name: &str,
    raw: &Raw,
    limits: EmbedLimits,
) -> Result<Prompt, ApiError> {
    let max_values = limits.dim * limits.max_len;
    let expected = raw.count_values().min(max_values);
    fields.charge_request_bytes(expected * size_of::<f32>())?;
    let read = ReadVectors {
        name,
        limits,
        values: Vec::with_capacity(expected),
    };
    let values = raw.parse_with(name, read)??;
    Ok(Prompt::Vectors(Arc::new(PromptVectors::new(
        limits.dim, values,
    )?)))
}

/// Reads vectors in order, up to the first invalid one.
struct ReadVectors<'a> {
    name: &'a str,
    limits: EmbedLimits,
    values: Vec<f32>,
}

impl ReadVectors<'_> {
    fn check_limit(&self, n_vectors: usize) -> Option<FieldError> {
        let (name, limit) = (self.name, self.limits.max_len);
        (n_vectors >= limit).then(|| {
            let text =
                format!("{name} has more than {limit} vectors, which is the limit: send fewer");
            FieldError::new(NAME, text)
        })
    }
}

impl<'de> DeserializeSeed<'de> for ReadVectors<'_> {
    type Value = Result<Vec<f32>, FieldError>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ReadVectors<'_> {
    type Value = Result<Vec<f32>, FieldError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(VECTORS)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut n_vectors = 0;
        loop {
            let limit_error = self.check_limit(n_vectors);
            let vector = ReadVector {
                name: self.name,
                index: n_vectors,
                dim: self.limits.dim,
                // A vector beyond the limit is not stored.
                values: limit_error.is_none().then_some(&mut self.values),
            };
            let read = match list.next_element_seed(vector)? {
                None => return Ok(Ok(self.values)),
                Some(read) => limit_error.map_or(read, Err),
            };
            if let Err(error) = read {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(Err(error));
            }
            n_vectors += 1;
        }
    }
}

struct ReadVector<'a> {
    name: &'a str,
    index: usize,
    dim: usize,
    values: Option<&'a mut Vec<f32>>,
}

impl<'de> DeserializeSeed<'de> for ReadVector<'_> {
    type Value = Result<(), FieldError>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ReadVector<'_> {
    type Value = Result<(), FieldError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of {} numbers", self.dim)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let Some(values) = self.values else {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Ok(()));
        };
        let (name, index) = (self.name, self.index);
        for at in 0..self.dim {
            match list.next_element::<Shallow>()? {
                None => return Ok(Err(wrong_len(name, index, at, self.dim))),
                Some(found) => match found.as_f64() {
                    Some(value) => values.push(value as f32),
                    None => {
                        while list.next_element::<IgnoredAny>()?.is_some() {}
                        let name = format!("{name}[{index}][{at}]");
                        return Ok(Err(Field::new(&name, &found).must_be("a number")));
                    }
                },
            }
        }
        let mut n_extra = 0;
        while list.next_element::<IgnoredAny>()?.is_some() {
            n_extra += 1;
        }
        Ok(match n_extra {
            0 => Ok(()),
            _ => Err(wrong_len(name, index, self.dim + n_extra, self.dim)),
        })
    }
}

fn wrong_len(name: &str, index: usize, found: usize, dim: usize) -> FieldError {
    let text =
        format!("{name}[{index}] has {found} values, must have {dim}, the model's hidden size");
    FieldError::new(NAME, text)
}
