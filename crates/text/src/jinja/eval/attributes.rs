//! Evaluates attributes and items of values in templates.

use std::rc::Rc;

use super::super::error::{Fault, Result};
use super::super::methods;
use super::super::number::Number;
use super::super::value::Value;
use super::{Interpreter, LoopState, Object, slices};

/// Names a value in Jinja's messages about missing attributes.
fn described(value: &Value) -> String {
    match value {
        Value::None => "None".to_owned(),
        other => format!("{} object", other.type_name()),
    }
}

impl<'t> Interpreter<'t> {
    /// `value.name`: an attribute, or else an item.
    pub(in super::super) fn attribute(&self, value: &Value, name: &str) -> Result<Value> {
        if let Value::Undefined(message) = value {
            return Fault::other(message.to_string());
        }
        if let Some(found) = self.own_attribute(value, name)? {
            return Ok(found);
        }
        if let Value::Dict(dict) = value
            && let Some(found) = dict.get_text(name)
        {
            return Ok(found.clone());
        }
        Ok(missing(value, name))
    }

    /// `value[index]`: an item, or else an attribute.
    pub(in super::super) fn item(&self, value: &Value, index: &Value) -> Result<Value> {
        let found = match value {
            Value::Undefined(message) => return Fault::other(message.to_string()),
            Value::Dict(dict) => match index.as_str() {
                Some(name) => dict.get_text(name).cloned(),
                None => dict.get(index).cloned(),
            },
            other => slices::at(other, index),
        };
        if let Some(found) = found {
            return Ok(found);
        }
        if let Some(name) = index.as_str() {
            if let Some(found) = self.own_attribute(value, name)? {
                return Ok(found);
            }
            return Ok(missing(value, name));
        }
        let index = self.repr(index)?;
        Ok(Value::undefined(format!(
            "{} has no element {index}",
            described(value)
        )))
    }

    /// Looks up an attribute or a method, but not an item of a mapping.
    fn own_attribute(&self, value: &Value, name: &str) -> Result<Option<Value>> {
        let found = match value {
            Value::Object(id) => self.object_attribute(*id, name)?,
            Value::Tuple(items) if items.is_group => match name {
                "grouper" => items.first().cloned(),
                "list" => items.get(1).cloned(),
                _ => None,
            },
            Value::Bool(_) | Value::Int(_) | Value::Big(_) => match name {
                "real" | "numerator" => self.positive(value).ok(),
                "imag" => Some(Value::Int(0)),
                "denominator" => Some(Value::Int(1)),
                _ => None,
            },
            Value::Float(_) => match name {
                "real" => Some(value.clone()),
                "imag" => Some(Value::Float(0.0)),
                _ => None,
            },
            Value::Range(range) => match name {
                "start" => Some(Value::Int(range.start)),
                "step" => Some(Value::Int(range.step)),
                "stop" => Some(range.at(range.len)),
                _ => None,
            },
            _ => None,
        };
        if found.is_some() {
            return Ok(found);
        }
        if methods::is_mutating(value, name) {
            let kind = value.type_name();
            let text = format!("access to attribute '{name}' of '{kind}' object is unsafe.");
            return Ok(Some(Value::undefined(text)));
        }
        let is_method = methods::method_names(value).contains(&name);
        Ok(is_method.then(|| Value::Method(Rc::new((value.clone(), name.into())))))
    }

    fn object_attribute(&self, id: usize, name: &str) -> Result<Option<Value>> {
        let objects = self.objects.borrow();
        Ok(match objects.get(id) {
            Some(Object::Namespace(attributes)) => {
                let mut attributes = attributes.iter();
                let found = attributes.find(|(known, _)| known == name);
                found.map(|(_, value)| value.clone())
            }
            Some(Object::Loop(state)) => loop_attribute(id, state, name),
            Some(Object::Cycler { items, at }) => match name {
                "current" => items.get(*at).cloned(),
                "next" | "reset" => Some(Value::Method(Rc::new((Value::Object(id), name.into())))),
                _ => None,
            },
            Some(Object::Macro(index, _)) => {
                let body = &self.template.macros[*index];
                match name {
                    "name" => Some(Value::text(body.name.as_str())),
                    "arguments" => {
                        let names = body.parameters.iter();
                        let names = names.map(|name| Value::text(name.as_str())).collect();
                        Some(Value::tuple(names)?)
                    }
                    "catch_varargs" => Some(Value::Bool(body.uses[0])),
                    "catch_kwargs" => Some(Value::Bool(body.uses[1])),
                    "caller" => Some(Value::Bool(body.uses[2])),
                    _ => None,
                }
            }
            _ => None,
        })
    }

    /// Writes an object as Python's `repr` does.
    pub(in super::super) fn write_object(
        &self,
        out: &mut String,
        id: usize,
        depth: usize,
    ) -> Result<()> {
        let entries = match self.objects.borrow().get(id) {
            Some(Object::Namespace(attributes)) => attributes.clone(),
            Some(Object::Loop(state)) => {
                let (index, len) = (state.index + 1, state.items.len());
                out.push_str(&format!("<LoopContext {index}/{len}>"));
                return Ok(());
            }
            Some(Object::Macro(index, _)) => {
                let name = &self.template.macros[*index].name;
                out.push_str(&format!("<Macro '{name}'>"));
                return Ok(());
            }
            Some(Object::Cycler { .. }) => {
                out.push_str("<jinja2.utils.Cycler object>");
                return Ok(());
            }
            _ => {
                out.push_str("<jinja2.utils.Joiner object>");
                return Ok(());
            }
        };
        out.push_str("<Namespace ");
        self.nested(|| self.write_entries(out, &entries, depth))?;
        out.push('>');
        Ok(())
    }

    /// The items over which a loop iterates.
    pub(in super::super) fn items(&self, value: &Value) -> Result<Vec<Value>> {
        let len = value.len().unwrap_or(0);
        self.check_allocation(len, size_of::<Value>())?;
        value.items()
    }

    pub(in super::super) fn whole(&self, value: &Value) -> Result<i64> {
        match (Number::of(value), value) {
            (Some(Number::Int(number)), _) => Ok(number),
            (Some(Number::Big(_)), _) => {
                Fault::other("Python int too large to convert to C ssize_t")
            }
            (_, Value::Undefined(message)) => Fault::other(message.to_string()),
            _ => Fault::other(format!(
                "'{}' object cannot be interpreted as an integer",
                value.type_name()
            )),
        }
    }
}

fn loop_attribute(id: usize, state: &LoopState<'_>, name: &str) -> Option<Value> {
    let (index, len) = (state.index, state.items.len());
    let next = || state.items.get(index + 1);
    Some(match name {
        "index" => (index + 1).into(),
        "index0" => index.into(),
        "revindex" => len.saturating_sub(index).into(),
        "revindex0" => len.saturating_sub(index + 1).into(),
        "first" => Value::Bool(index == 0),
        "last" => Value::Bool(index + 1 >= len),
        "length" => len.into(),
        "depth" => (state.depth + 1).into(),
        "depth0" => state.depth.into(),
        "previtem" if index == 0 => Value::undefined("there is no previous item"),
        "previtem" => state.items.get(index - 1)?.clone(),
        "nextitem" => match next() {
            Some(item) => item.clone(),
            None => Value::undefined("there is no next item"),
        },
        "cycle" | "changed" => Value::Method(Rc::new((Value::Object(id), name.into()))),
        _ => return None,
    })
}

fn missing(value: &Value, name: &str) -> Value {
    Value::undefined(format!("'{}' has no attribute '{name}'", described(value)))
}

impl Interpreter<'_> {
    pub(in super::super) fn is_loop(&self, value: &Value) -> bool {
        let Value::Object(id) = value else {
            return false;
        };
        matches!(self.objects.borrow().get(*id), Some(Object::Loop(_)))
    }

    pub(in super::super) fn is_callable(&self, value: &Value) -> bool {
        let Value::Object(id) = value else {
            return false;
        };
        let objects = self.objects.borrow();
        let object = objects.get(*id);
        matches!(
            object,
            Some(Object::Macro(..) | Object::Loop(_) | Object::Joiner { .. })
        )
    }

    pub(in super::super) fn max_output_bytes(&self) -> usize {
        self.limits.output_bytes
    }
}
