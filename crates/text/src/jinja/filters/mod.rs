//! Dispatches Jinja's filters by name.

mod html;
mod json;
mod lists;
mod numbers;
mod select;
mod sorting;
mod text;
mod wrap;

use super::args::Args;
use super::error::{Fault, Result};
use super::eval::Interpreter;
use super::value::Value;
pub(super) use html::escape;

/// The supported filters, which the test `filter` knows; that test adds `xmlattr`. `urlize` is refused by name.
pub(super) const NAMES: [&str; 52] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "random",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
    "wordwrap",
];

impl Interpreter<'_> {
    pub(super) fn filter(&self, name: &str, value: Value, args: Args) -> Result<Value> {
        match (name, &value) {
            // These filters read no items, so their cost does not depend on the length.
            (
                "count" | "length" | "d" | "default",
                Value::List(_) | Value::Tuple(_) | Value::Dict(_),
            ) => self.step(1)?,
            _ => self.charge_read(&value)?,
        }
        match name {
            "attr" => {
                let [attribute] = args.bind(name, ["name"], 1)?;
                let attribute = attribute.unwrap_or(Value::None);
                self.attribute_only(&value, self.text_of(&attribute)?)
            }
            "count" | "length" => {
                args.expect_none(name)?;
                match (value.len(), &value) {
                    (Some(len), _) => Ok(len.into()),
                    (None, other) => {
                        let kind = other.type_name();
                        Fault::other(format!("object of type '{kind}' has no len()"))
                    }
                }
            }
            "d" | "default" => {
                let [default, boolean] = args.bind(name, ["default_value", "boolean"], 0)?;
                let boolean = boolean.is_some_and(|boolean| self.truth(&boolean));
                if value.is_undefined() || (boolean && !self.truth(&value)) {
                    Ok(default.unwrap_or_else(|| Value::text("")))
                } else {
                    Ok(value)
                }
            }
            "e" | "escape" | "forceescape" | "safe" | "striptags" | "urlencode" | "xmlattr" => {
                self.html_filter(name, value, args)
            }
            "abs" | "float" | "int" | "round" | "filesizeformat" | "sum" => {
                self.number_filter(name, value, args)
            }
            "batch" | "first" | "items" | "join" | "last" | "list" | "random" | "reverse"
            | "slice" => self.list_filter(name, value, args),
            "dictsort" | "groupby" | "max" | "min" | "sort" | "unique" => {
                self.sorting_filter(name, value, args)
            }
            "map" | "reject" | "rejectattr" | "select" | "selectattr" => {
                self.apply_filter(name, value, args)
            }
            "tojson" => self.tojson(&value, args),
            "pprint" => {
                args.expect_none(name)?;
                let text = self.repr(&self.sorted_keys(&value)?)?;
                if text.chars().count() <= 80 {
                    Ok(Value::text(text))
                } else {
                    Fault::other("pprint of more than 80 characters is not supported")
                }
            }
            "urlize" => Fault::other("the filter 'urlize' is not supported"),
            _ => self.text_filter(name, value, args),
        }
    }

    /// Sorts mappings by key, if the keys can be ordered.
    fn sorted_keys(&self, value: &Value) -> Result<Value> {
        self.step(1)?;
        let sorted = |items: &[Value]| -> Result<Vec<Value>> {
            items.iter().map(|item| self.sorted_keys(item)).collect()
        };
        Ok(match value {
            Value::List(items) => Value::list(sorted(items)?)?,
            Value::Tuple(items) => Value::tuple(sorted(items)?)?,
            Value::Dict(dict) => {
                let mut entries = Vec::with_capacity(dict.entries().len());
                for (key, value) in dict.entries() {
                    entries.push((key.clone(), self.sorted_keys(value)?));
                }
                entries.sort_by(|(a, _), (b, _)| {
                    let order = super::compare::order(a, b, "<").ok().flatten();
                    order.unwrap_or(std::cmp::Ordering::Equal)
                });
                Value::dict(entries)?
            }
            other => other.clone(),
        })
    }

    /// Converts a value to a text as Jinja's `soft_str` does.
    fn soft(&self, value: &Value) -> Result<Value> {
        match value {
            Value::Text(_) => Ok(value.clone()),
            other => Ok(Value::text(self.str(other)?)),
        }
    }
}
