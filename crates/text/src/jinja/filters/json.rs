//! Implements `tojson` as transformers overrides it: `json.dumps` without ASCII or HTML escapes.

use super::super::args::Args;
use super::super::error::{Fault, Result};
use super::super::eval::Interpreter;
use super::super::json::Style;
use super::super::value::Value;

/// Maximum indentation per level, in spaces.
const MAX_INDENT: i64 = 64;

impl Interpreter<'_> {
    pub(super) fn tojson(&self, value: &Value, args: Args) -> Result<Value> {
        let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
        let [ascii, indent, separators, sorts] = args.bind("tojson", names, 0)?;
        let mut style = Style {
            is_ascii: ascii.is_some_and(|ascii| self.truth(&ascii)),
            sorts_keys: sorts.is_some_and(|sorts| self.truth(&sorts)),
            limit: self.max_output_bytes(),
            ..Style::default()
        };
        style.indent = match indent {
            None | Some(Value::None) => None,
            Some(Value::Text(text)) => Some(text.as_str().to_owned()),
            Some(indent) => {
                let indent = self.whole(&indent)?;
                if indent > MAX_INDENT {
                    return Fault::other(format!(
                        "tojson: indent is {indent}, limit is {MAX_INDENT}"
                    ));
                }
                Some(" ".repeat(usize::try_from(indent).unwrap_or(0)))
            }
        };
        if style.indent.is_some() {
            style.item_separator = ",".to_owned();
        }
        if let Some(separators) = separators.filter(|value| !matches!(value, Value::None)) {
            let items = self.items(&separators)?;
            let [item, key] = items.as_slice() else {
                return Fault::other("tojson: separators must be two strings");
            };
            style.item_separator = self.text_of(item)?.to_owned();
            style.key_separator = self.text_of(key)?.to_owned();
        }
        let text = style.dump(value)?;
        self.step(text.len() / 64)?;
        Ok(Value::text(text))
    }
}
