//! The table of an endpoint's fields. A row has the name of a field, its reader, its limits and its description; the
//! parser and the OpenAPI document walk the same rows.

use super::call::CallLimits;
use super::error::ApiError;
use super::fields::Fields;
use super::openapi::facts::Facts;
use super::openapi::shape::{ObjectShape, Shape, enum_of, flag, integer, object};
use souffleur_base::field::{Field, Integer, Shallow};

type Describe = Box<dyn Fn(&Facts) -> Shape>;
type Read<B> = Box<dyn Fn(&mut B, &mut Fields, CallLimits<'_>) -> Result<(), ApiError>>;

struct Row<B> {
    name: &'static str,
    is_required: bool,
    describe: Describe,
    read: Read<B>,
}

/// The fields of a body that is read into a `B`, in the order in which they are read.
pub(super) struct Table<B>(Vec<Row<B>>);

impl<B: Default + 'static> Table<B> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a field that may be absent or null.
    pub(super) fn takes<T: 'static>(
        self,
        name: &'static str,
        describe: impl Fn(&Facts) -> Shape + 'static,
        read: impl Fn(&mut Fields, &'static str, CallLimits<'_>) -> Result<T, ApiError> + 'static,
        set: fn(&mut B, T),
    ) -> Self {
        self.row(name, false, describe, move |body, fields, limits| {
            read(fields, name, limits).map(|value| set(body, value))
        })
    }

    /// Adds a required field: its reader fails if the field is absent.
    pub(super) fn has<T: 'static>(
        self,
        name: &'static str,
        describe: impl Fn(&Facts) -> Shape + 'static,
        read: impl Fn(&mut Fields, &'static str, CallLimits<'_>) -> Result<T, ApiError> + 'static,
        set: fn(&mut B, T),
    ) -> Self {
        self.row(name, true, describe, move |body, fields, limits| {
            read(fields, name, limits).map(|value| set(body, value))
        })
    }

    pub(super) fn text(
        self,
        name: &'static str,
        describe: impl Fn(&Facts) -> Shape + 'static,
        set: fn(&mut B, Option<String>),
    ) -> Self {
        self.takes(name, describe, |fields, name, _| fields.string(name), set)
    }

    pub(super) fn ignores(
        self,
        name: &'static str,
        describe: impl Fn(&Facts) -> Shape + 'static,
    ) -> Self {
        self.text(name, describe, |_, _| ())
    }

    pub(super) fn flag(
        self,
        name: &'static str,
        default: bool,
        about: &'static str,
        set: fn(&mut B, bool),
    ) -> Self {
        let describe = move |_: &Facts| flag().or(default).about(about);
        let read =
            move |fields: &mut Fields, name: &str, _: CallLimits<'_>| -> Result<_, ApiError> {
                let given = fields.optional_flag(name)?;
                Ok(given.unwrap_or(default))
            };
        self.takes(name, describe, read, set)
    }

    /// A whole number within the range of its type; `limit` describes a narrower range.
    pub(super) fn integer<T: Integer + 'static>(
        self,
        name: &'static str,
        limit: impl Fn(Shape) -> Shape + 'static,
        set: fn(&mut B, Option<T>),
    ) -> Self {
        let describe = move |_: &Facts| limit(integer::<T>());
        self.takes(name, describe, |fields, name, _| fields.integer(name), set)
    }

    /// A field whose value is one of `names`; the first is the default.
    pub(super) fn name<T: Copy + 'static, const N: usize>(
        self,
        name: &'static str,
        names: [(&'static str, T); N],
        about: &'static str,
        set: fn(&mut B, T),
    ) -> Self {
        let describe = move |_: &Facts| {
            let shape = enum_of(names.iter().map(|(name, _)| *name));
            shape.or(names[0].0).about(about)
        };
        let read =
            move |fields: &mut Fields, name: &str, _: CallLimits<'_>| -> Result<_, ApiError> {
                let Some(given) = fields.string(name)? else {
                    return Ok(names[0].1);
                };
                let found = names.iter().find(|(name, _)| *name == given);
                found.map(|(_, value)| *value).ok_or_else(|| {
                    let wanted = names.map(|(name, _)| name).join(" or ");
                    let given = Shallow::Text(given);
                    Field::new(name, &given).must_be(&wanted).into()
                })
            };
        self.takes(name, describe, read, set)
    }

    /// Adds the rows of another table, whose values are set in a part of the body.
    pub(super) fn and<C: 'static>(mut self, other: Table<C>, part: fn(&mut B) -> &mut C) -> Self {
        let rows = other.0.into_iter().map(|row| Row {
            name: row.name,
            is_required: row.is_required,
            describe: row.describe,
            read: Box::new(
                move |body: &mut B, fields: &mut Fields, limits: CallLimits<'_>| {
                    (row.read)(part(body), fields, limits)
                },
            ) as Read<B>,
        });
        self.0.extend(rows);
        self
    }

    /// Reads a body. Fails at the first field that its row refuses.
    pub(super) fn read(&self, fields: &mut Fields, limits: CallLimits<'_>) -> Result<B, ApiError> {
        let mut body = B::default();
        for row in &self.0 {
            (row.read)(&mut body, fields, limits)?;
        }
        Ok(body)
    }

    pub(super) fn shape(&self, facts: &Facts) -> ObjectShape {
        self.0.iter().fold(object(), |fields, row| {
            let shape = (row.describe)(facts);
            if row.is_required {
                fields.has(row.name, shape)
            } else {
                fields.takes(row.name, shape)
            }
        })
    }

    fn row(
        mut self,
        name: &'static str,
        is_required: bool,
        describe: impl Fn(&Facts) -> Shape + 'static,
        read: impl Fn(&mut B, &mut Fields, CallLimits<'_>) -> Result<(), ApiError> + 'static,
    ) -> Self {
        self.0.push(Row {
            name,
            is_required,
            describe: Box::new(describe),
            read: Box::new(read),
        });
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{openai, rerank, score};
    use souffleur_state::request_limits::RequestLimits;

    #[track_caller]
    fn check<B: Default + 'static>(table: &Table<B>) {
        let request = RequestLimits::default();
        let limits = CallLimits {
            max_requests: 8,
            websocket: None,
            request: &request,
            embeds: None,
        };
        for Row {
            name,
            is_required,
            read,
            ..
        } in &table.0
        {
            let error = |value: Value| {
                let mut fields = Fields::of(&json!({ *name: value }));
                let read = read(&mut B::default(), &mut fields, limits);
                read.err().map(|error| error.to_string())
            };
            assert_eq!(error(Value::Null).is_some(), *is_required, "{name}");
            // Each field refuses at least one of these values.
            let wrong = [
                json!([{"a": [1]}]),
                json!(7.5),
                json!({"a": 1}),
                json!("x y"),
            ];
            let mut errors = wrong.into_iter().filter_map(error);
            assert!(errors.any(|error| error.starts_with(name)), "{name}");
        }
        let names = table.0.iter().map(|row| row.name);
        let names: std::collections::BTreeSet<&str> = names.collect();
        assert_eq!(names.len(), table.0.len(), "a name has two rows");
    }

    #[test]
    fn each_row_refuses_wrong_values_and_names_its_field() {
        check(&score::table());
        check(&rerank::table());
        check(&openai::embeddings::table());
    }
}
