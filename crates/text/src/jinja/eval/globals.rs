//! Implements the global functions of templates, such as `range`.

use super::super::args::Args;
use super::super::error::{Fault, Result};
use super::super::value::{Range, Value};
use super::{Interpreter, Object};
use crate::python::strftime_now;

pub(super) const NAMES: [&str; 7] = [
    "range",
    "dict",
    "namespace",
    "cycler",
    "joiner",
    "raise_exception",
    "strftime_now",
];

/// The limit of Jinja's sandbox.
const MAX_RANGE: u64 = 100_000;

impl Interpreter<'_> {
    pub(super) fn call_global(&self, name: &str, args: Args) -> Result<Value> {
        match name {
            "range" => self.range(args),
            "dict" => self.dict(args),
            "namespace" => {
                let Value::Dict(dict) = self.dict(args)? else {
                    return Fault::other("namespace takes a mapping");
                };
                let mut attributes = Vec::with_capacity(dict.entries().len());
                for (key, value) in dict.entries() {
                    match key.as_str() {
                        Some(name) if name.starts_with('_') => {
                            return Fault::other(format!(
                                "Chat templates cannot store underscore-prefixed attributes on a namespace, but got \
                                 '{name}'. Please rename the attribute."
                            ));
                        }
                        Some(name) => attributes.push((name.to_owned(), value.clone())),
                        None => return Fault::other("names in a namespace must be strings"),
                    }
                }
                self.object(Object::Namespace(attributes))
            }
            "cycler" => {
                if args.positional.is_empty() {
                    Fault::other("at least one item has to be provided")
                } else {
                    self.object(Object::Cycler {
                        items: args.positional,
                        at: 0,
                    })
                }
            }
            "joiner" => {
                let [separator] = args.bind("joiner", ["sep"], 0)?;
                self.object(Object::Joiner {
                    separator: separator.unwrap_or_else(|| Value::text(", ")),
                    is_used: false,
                })
            }
            "raise_exception" => {
                let [message] = args.bind("raise_exception", ["message"], 1)?;
                let message = message.unwrap_or(Value::None);
                Err(Fault::Raised(self.str(&message)?))
            }
            _ => {
                let [format] = args.bind("strftime_now", ["format"], 1)?;
                match format.as_ref().and_then(Value::as_str) {
                    Some(format) => Ok(Value::text(strftime_now(format))),
                    None => Fault::other("strftime() argument 1 must be str"),
                }
            }
        }
    }

    fn range(&self, args: Args) -> Result<Value> {
        let [first, second, step] = args.by_position("range", 1)?;
        let first = self.whole(&first.unwrap_or(Value::None))?;
        let (start, stop) = match second {
            Some(stop) => (first, self.whole(&stop)?),
            None => (0, first),
        };
        let step = step.map_or(Ok(1), |step| self.whole(&step))?;
        if step == 0 {
            return Fault::other("range() arg 3 must not be zero");
        }
        let is_empty = if step > 0 {
            stop <= start
        } else {
            stop >= start
        };
        let len = if is_empty {
            0
        } else {
            (start.abs_diff(stop) - 1) / step.unsigned_abs() + 1
        };
        if len > MAX_RANGE {
            return Fault::other(format!(
                "Range too big. The sandbox blocks ranges larger than MAX_RANGE ({MAX_RANGE})."
            ));
        }
        Ok(Value::Range(Range {
            start,
            step,
            len: len as usize,
        }))
    }

    fn dict(&self, args: Args) -> Result<Value> {
        if args.positional.len() > 1 {
            let given = args.positional.len();
            return Fault::other(format!("dict expected at most 1 argument, got {given}"));
        }
        let mut entries = Vec::new();
        for given in &args.positional {
            if let Value::Dict(dict) = given {
                entries.extend(dict.entries().iter().cloned());
                continue;
            }
            for pair in self.items(given)? {
                match self.items(&pair)?.as_slice() {
                    [key, value] => entries.push((key.clone(), value.clone())),
                    other => {
                        return Fault::other(format!(
                            "dictionary update sequence element has length {}; 2 is required",
                            other.len()
                        ));
                    }
                }
            }
        }
        let named = args.named.into_iter();
        entries.extend(named.map(|(name, value)| (Value::text(name), value)));
        Value::dict(entries)
    }
}
