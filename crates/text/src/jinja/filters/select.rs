//! Implements `map`, `select` and `reject`, which apply filters, tests and attributes by name.

use super::super::args::Args;
use super::super::error::{Fault, Result};
use super::super::eval::Interpreter;
use super::super::value::Value;

/// The path to a part of an item, as names and indices.
pub(super) type Getter = Vec<Value>;

impl Interpreter<'_> {
    /// Parses an attribute such as `a.0.b`.
    pub(super) fn getter(&self, attribute: Option<Value>) -> Result<Getter> {
        Ok(match attribute {
            None | Some(Value::None) => Vec::new(),
            Some(Value::Text(text)) => text.as_str().split('.').map(part).collect(),
            Some(other) => vec![other],
        })
    }

    pub(super) fn get(
        &self,
        getter: &Getter,
        item: &Value,
        default: Option<&Value>,
    ) -> Result<Value> {
        let mut found = item.clone();
        for part in getter {
            found = self.item(&found, part)?;
            if let (true, Some(default)) = (found.is_undefined(), default) {
                found = default.clone();
            }
        }
        Ok(found)
    }

    pub(super) fn apply_filter(&self, name: &str, value: Value, args: Args) -> Result<Value> {
        match name {
            "map" => self.map(&value, args),
            _ => self.select(name, &value, args),
        }
    }

    fn map(&self, value: &Value, args: Args) -> Result<Value> {
        let by_attribute =
            args.positional.is_empty() && args.named.iter().any(|(name, _)| name == "attribute");
        let mut mapped = Vec::new();
        if !self.truth(value) {
            return Value::generator("sync_do_map", mapped);
        }
        if by_attribute {
            let [attribute, default] = args.bind("map", ["attribute", "default"], 0)?;
            let default = default.filter(|default| !matches!(default, Value::None));
            let getter = self.getter(attribute)?;
            for item in self.items(value)? {
                mapped.push(self.get(&getter, &item, default.as_ref())?);
            }
            return Value::generator("sync_do_map", mapped);
        }
        let mut given = args.positional.into_iter();
        let Some(filter) = given.next() else {
            return Fault::other("map requires a filter argument");
        };
        let (filter, given): (_, Vec<Value>) = (self.text_of(&filter)?.to_owned(), given.collect());
        for item in self.items(value)? {
            let args = Args {
                positional: given.clone(),
                named: args.named.clone(),
            };
            mapped.push(self.filter(&filter, item, args)?);
        }
        Value::generator("sync_do_map", mapped)
    }

    fn select(&self, name: &str, value: &Value, args: Args) -> Result<Value> {
        let keeps = name.starts_with("select");
        let generator = if keeps {
            "sync_do_select"
        } else {
            "sync_do_reject"
        };
        if !self.truth(value) {
            return Value::generator(generator, Vec::new());
        }
        let mut given = args.positional.into_iter();
        let getter = if name.ends_with("attr") {
            match given.next() {
                Some(attribute) => self.getter(Some(attribute))?,
                None => return Fault::other("Missing parameter for attribute name"),
            }
        } else {
            Vec::new()
        };
        let test = match given.next() {
            Some(test) => Some(self.text_of(&test)?.to_owned()),
            None => None,
        };
        let given: Vec<Value> = given.collect();
        let mut kept = Vec::new();
        for item in self.items(value)? {
            let part = self.get(&getter, &item, None)?;
            let passes = match &test {
                Some(test) => {
                    let args = Args {
                        positional: given.clone(),
                        named: args.named.clone(),
                    };
                    self.test(test, part, args)?
                }
                None => self.truth(&part),
            };
            if passes == keeps {
                kept.push(item);
            }
        }
        Value::generator(generator, kept)
    }

    pub(super) fn attribute_only(&self, value: &Value, name: &str) -> Result<Value> {
        match value {
            Value::Dict(_) if !super::super::methods::method_names(value).contains(&name) => {
                let message = format!("'dict object' has no attribute '{name}'");
                Ok(Value::undefined(message))
            }
            _ => self.attribute(value, name),
        }
    }
}

fn part(name: &str) -> Value {
    match name.parse() {
        Ok(index) if name.bytes().all(|byte| byte.is_ascii_digit()) => Value::Int(index),
        _ => Value::text(name),
    }
}
