//! Implements Jinja's filters for sequences.

use super::super::args::Args;
use super::super::error::{Fault, Result};
use super::super::eval::Interpreter;
use super::super::value::{Value, View};

impl Interpreter<'_> {
    pub(super) fn list_filter(&self, name: &str, value: Value, args: Args) -> Result<Value> {
        match name {
            "batch" => {
                let [count, fill] = args.bind(name, ["linecount", "fill_with"], 1)?;
                let count = self.whole(&count.unwrap_or(Value::None))?;
                self.batch(&value, count, fill.unwrap_or(Value::None))
            }
            "slice" => {
                let [count, fill] = args.bind(name, ["slices", "fill_with"], 1)?;
                let count = self.whole(&count.unwrap_or(Value::None))?;
                self.slices(&value, count, fill.unwrap_or(Value::None))
            }
            "join" => {
                let [separator, attribute] = args.bind(name, ["d", "attribute"], 0)?;
                let separator = separator.map_or(Ok(String::new()), |value| self.str(&value))?;
                self.joined(&value, &separator, attribute)
            }
            "items" => {
                args.expect_none(name)?;
                self.pairs(&value)
            }
            "list" => {
                args.expect_none(name)?;
                Value::list(self.items(&value)?)
            }
            "first" => {
                args.expect_none(name)?;
                let first = match &value {
                    Value::Generator(generator) => generator.next(),
                    other => self.items(other)?.into_iter().next(),
                };
                Ok(first.unwrap_or_else(|| Value::undefined("No first item, sequence was empty.")))
            }
            "last" => {
                args.expect_none(name)?;
                if matches!(value, Value::Generator(_)) {
                    return Fault::other("'generator' object is not reversible");
                }
                let last = self.items(&value)?.pop();
                Ok(last.unwrap_or_else(|| Value::undefined("No last item, sequence was empty.")))
            }
            "random" => {
                args.expect_none(name)?;
                let items = self.items(&value)?;
                if items.is_empty() {
                    Ok(Value::undefined("No random item, sequence was empty."))
                } else {
                    Ok(items[fastrand::usize(..items.len())].clone())
                }
            }
            _ => {
                args.expect_none(name)?;
                self.reversed(value)
            }
        }
    }

    fn pairs(&self, value: &Value) -> Result<Value> {
        match value {
            Value::Undefined(_) => Value::generator("do_items", Vec::new()),
            Value::Dict(dict) => {
                let pairs = self.items(&Value::View(dict.clone(), View::Items))?;
                Value::generator("do_items", pairs)
            }
            _ => Fault::other("Can only get item pairs from a mapping."),
        }
    }

    fn reversed(&self, value: Value) -> Result<Value> {
        if let Value::Text(text) = &value {
            return Ok(Value::like(&value, text.as_str().chars().rev().collect()));
        }
        let mut items = self.items(&value)?;
        items.reverse();
        match value {
            Value::Generator(_) => Value::list(items),
            _ => Value::generator("reversed", items),
        }
    }

    fn batch(&self, value: &Value, count: i64, fill: Value) -> Result<Value> {
        let items = self.items(value)?;
        let count = usize::try_from(count).unwrap_or(0);
        let mut rows = Vec::new();
        if count == 0 {
            // For a count of 0, Jinja returns an empty row and then a row for each item.
            rows.extend(items.into_iter().map(|item| vec![item]));
            if !rows.is_empty() {
                rows.insert(0, Vec::new());
            }
        } else {
            rows.extend(items.chunks(count).map(<[Value]>::to_vec));
            if let Some(last) = rows.last_mut()
                && !matches!(fill, Value::None)
            {
                self.check_allocation(count, size_of::<Value>())?;
                last.resize(count, fill);
            }
        }
        let rows = rows.into_iter().map(Value::list).collect::<Result<_>>()?;
        Value::generator("do_batch", rows)
    }

    fn slices(&self, value: &Value, count: i64, fill: Value) -> Result<Value> {
        let items = self.items(value)?;
        if count == 0 {
            return Fault::other("integer division or modulo by zero");
        }
        let count = usize::try_from(count).unwrap_or(0);
        self.check_allocation(count, 4 * size_of::<Value>())?;
        let (each, with_more) = match count {
            0 => (0, 0),
            count => (items.len() / count, items.len() % count),
        };
        let (mut start, mut rows) = (0, Vec::with_capacity(count));
        for row in 0..count {
            let end = start + each + usize::from(row < with_more);
            let mut part = items[start..end].to_vec();
            if row >= with_more && !matches!(fill, Value::None) {
                part.push(fill.clone());
            }
            rows.push(Value::list(part)?);
            start = end;
        }
        Value::generator("sync_do_slice", rows)
    }

    fn joined(&self, value: &Value, separator: &str, attribute: Option<Value>) -> Result<Value> {
        let getter = self.getter(attribute)?;
        let mut out = String::new();
        for (index, item) in self.items(value)?.iter().enumerate() {
            if index > 0 {
                out.push_str(separator);
            }
            let item = self.get(&getter, item, None)?;
            self.charge_read(&item)?;
            out.push_str(&self.str(&item)?);
            self.check_memory(out.len())?;
        }
        Ok(Value::text(out))
    }
}
