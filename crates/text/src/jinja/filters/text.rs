//! Implements Jinja's filters for texts.

use super::super::args::Args;
use super::super::error::{Fault, Result};
use super::super::eval::Interpreter;
use super::super::methods::{capitalized, centered, lines, words};
use super::super::value::Value;

/// Jinja's default for the characters by which a text may exceed the length given to `truncate`.
const LEEWAY: i64 = 5;

impl Interpreter<'_> {
    pub(super) fn text_filter(&self, name: &str, value: Value, args: Args) -> Result<Value> {
        match name {
            "string" => {
                args.expect_none(name)?;
                self.soft(&value)
            }
            "upper" | "lower" | "capitalize" | "title" => {
                args.expect_none(name)?;
                let value = self.soft(&value)?;
                let text = self.text_of(&value)?;
                let text = match name {
                    "upper" => text.to_uppercase(),
                    "lower" => text.to_lowercase(),
                    "capitalize" => capitalized(text),
                    _ => return Ok(Value::text(titled(text))),
                };
                Ok(Value::like(&value, text))
            }
            "trim" => {
                let [chars] = args.bind(name, ["chars"], 0)?;
                let value = self.soft(&value)?;
                let text = self.stripped(self.text_of(&value)?, chars.as_ref(), true, true)?;
                Ok(Value::like(&value, text))
            }
            "center" => {
                let [width] = args.bind(name, ["width"], 0)?;
                let width = width.map_or(Ok(80), |width| self.whole(&width))?;
                let width = usize::try_from(width).unwrap_or(0);
                self.check_allocation(1, width)?;
                let value = self.soft(&value)?;
                Ok(Value::like(
                    &value,
                    centered(self.text_of(&value)?, width, ' '),
                ))
            }
            "format" => self.format_filter(&value, args),
            "replace" => {
                let [old, new, count] = args.bind(name, ["old", "new", "count"], 2)?;
                let count = match count {
                    None | Some(Value::None) => -1,
                    Some(count) => self.whole(&count)?,
                };
                let text = self.str(&value)?;
                let old = self.str(&old.unwrap_or(Value::None))?;
                let new = self.str(&new.unwrap_or(Value::None))?;
                Ok(Value::text(self.replaced(&text, &old, &new, count)?))
            }
            "indent" => self.indent(&value, args),
            "truncate" => self.truncate(&value, args),
            "wordcount" => {
                args.expect_none(name)?;
                Ok(words(&self.str(&value)?).count().into())
            }
            "wordwrap" => self.wordwrap(&value, args),
            _ => Fault::other(format!("No filter named '{name}'.")),
        }
    }

    fn format_filter(&self, value: &Value, args: Args) -> Result<Value> {
        if !args.positional.is_empty() && !args.named.is_empty() {
            return Fault::other("can't handle positional and keyword arguments at the same time");
        }
        let values = if args.named.is_empty() {
            Value::tuple(args.positional)?
        } else {
            let named = args.named.into_iter();
            Value::dict(
                named
                    .map(|(name, value)| (Value::text(name), value))
                    .collect(),
            )?
        };
        match self.soft(value)? {
            Value::Text(text) => self.printf(&text, &values),
            _ => Fault::other("format takes a string"),
        }
    }

    fn indent(&self, value: &Value, args: Args) -> Result<Value> {
        let [width, first, blank] = args.bind("indent", ["width", "first", "blank"], 0)?;
        let indent = match width {
            None => "    ".to_owned(),
            Some(Value::Text(text)) => text.as_str().to_owned(),
            Some(width) => {
                let width = usize::try_from(self.whole(&width)?).unwrap_or(0);
                self.check_allocation(1, width)?;
                " ".repeat(width)
            }
        };
        let (first, blank) = (
            first.is_some_and(|first| self.truth(&first)),
            blank.is_some_and(|blank| self.truth(&blank)),
        );
        let text = match value {
            Value::Undefined(message) => return Fault::other(message.to_string()),
            value => self.text_of(value)?.to_owned() + "\n",
        };
        let lines = lines(&text, false);
        self.check_allocation(indent.len() + 1, lines.len())?;
        let mut out = String::with_capacity(text.len());
        for (index, line) in lines.iter().enumerate() {
            if index > 0 {
                out.push('\n');
            }
            let is_indented = match index {
                0 => first,
                _ => blank || !line.is_empty(),
            };
            if is_indented {
                out.push_str(&indent);
            }
            out.push_str(line);
        }
        Ok(Value::like(value, out))
    }

    fn truncate(&self, value: &Value, args: Args) -> Result<Value> {
        let names = ["length", "killwords", "end", "leeway"];
        let [length, kill, end, leeway] = args.bind("truncate", names, 0)?;
        let length = length.map_or(Ok(255), |length| self.whole(&length))?;
        let kill = kill.is_some_and(|kill| self.truth(&kill));
        let end = end.unwrap_or_else(|| Value::text("..."));
        let end = self.text_of(&end)?;
        let leeway = match leeway {
            None | Some(Value::None) => LEEWAY,
            Some(leeway) => self.whole(&leeway)?,
        };
        let end_chars = end.chars().count() as i64;
        if length < end_chars {
            return Fault::other(format!("expected length >= {end_chars}, got {length}"));
        }
        if leeway < 0 {
            return Fault::other(format!("expected leeway >= 0, got {leeway}"));
        }
        if value.as_str().is_none()
            && value
                .len()
                .is_some_and(|len| len as i64 <= length.saturating_add(leeway))
        {
            return Ok(value.clone());
        }
        let text = self.text_of(value)?;
        if text.chars().count() as i64 <= length.saturating_add(leeway) {
            return Ok(value.clone());
        }
        let kept: String = text.chars().take((length - end_chars) as usize).collect();
        let kept = if kill {
            kept.as_str()
        } else {
            kept.rsplit_once(' ')
                .map_or(kept.as_str(), |(kept, _)| kept)
        };
        Ok(Value::like(value, kept.to_owned() + end))
    }
}

/// Jinja's title case: capitalizes each part between white space, hyphens and opening brackets.
fn titled(text: &str) -> String {
    let is_gap = |character: char| {
        super::super::characters::is_blank(character)
            || matches!(character, '-' | '(' | '{' | '[' | '<')
    };
    let (mut out, mut starts) = (String::with_capacity(text.len()), true);
    let mut rest = text;
    while !rest.is_empty() {
        let end = if starts {
            rest.find(|character| !is_gap(character))
        } else {
            rest.find(is_gap)
        };
        let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
        if starts {
            out.push_str(part);
        } else {
            let first = part.chars().next().map_or(0, char::len_utf8);
            out.push_str(&part[..first].to_uppercase());
            out.push_str(&part[first..].to_lowercase());
        }
        starts = !starts;
        rest = after;
    }
    out
}
