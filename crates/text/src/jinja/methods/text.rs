//! Implements the methods of Python's `str`.

use super::super::args::Args;
use super::super::characters::is_blank;
use super::super::error::{Fault, Result};
use super::super::eval::Interpreter;
use super::super::value::{Dict, Value};
use super::case::{centered, change, predicate};
use super::splitting::{lines, split, split_blank};

impl Interpreter<'_> {
    pub(super) fn call_text_method(
        &self,
        value: &Value,
        text: &str,
        name: &str,
        args: Args,
    ) -> Result<Value> {
        if let Some(is) = predicate(name) {
            args.expect_none(name)?;
            return Ok(Value::Bool(is(text)));
        }
        if let Some(changed) = change(name) {
            args.expect_none(name)?;
            return Ok(Value::like(value, changed(text)));
        }
        let like = |text: String| Ok(Value::like(value, text));
        match name {
            "strip" | "lstrip" | "rstrip" => {
                let [chars] = args.by_position(name, 0)?;
                like(self.stripped(text, chars.as_ref(), name != "rstrip", name != "lstrip")?)
            }
            "split" | "rsplit" => {
                let [separator, max] = args.bind(name, ["sep", "maxsplit"], 0)?;
                self.split_text(value, text, separator, max, name == "rsplit")
            }
            "splitlines" => self.split_lines(value, text, args),
            "partition" | "rpartition" => self.partition(value, text, args, name == "rpartition"),
            "replace" => {
                let [old, new, count] = args.bind(name, ["old", "new", "count"], 2)?;
                self.replace(value, text, old, new, count)
            }
            "removeprefix" | "removesuffix" => {
                let [affix] = args.by_position(name, 1)?;
                let affix = affix.unwrap_or(Value::None);
                like(self.without_affix(text, &affix, name == "removeprefix")?)
            }
            "center" | "ljust" | "rjust" => self.justify(value, text, name, args),
            "zfill" => {
                let [width] = args.by_position(name, 1)?;
                let width = self.whole(&width.unwrap_or(Value::None))?;
                like(self.fill_with_zeros(text, width)?)
            }
            "expandtabs" => {
                let [size] = args.bind(name, ["tabsize"], 0)?;
                let size = size.map_or(Ok(8), |size| self.whole(&size))?;
                like(self.expand_tabs(text, usize::try_from(size).unwrap_or(0))?)
            }
            "join" => {
                let [items] = args.by_position(name, 1)?;
                self.join(value, text, &items.unwrap_or(Value::None))
            }
            "encode" => {
                let [encoding, errors] = args.bind(name, ["encoding", "errors"], 0)?;
                self.encode(text, encoding, errors)
            }
            "format" => like(self.format_text(text, &args)?),
            "format_map" => {
                let [mapping] = args.by_position(name, 1)?;
                like(self.format_map(text, &mapping.unwrap_or(Value::None))?)
            }
            "translate" => match args.by_position(name, 1)? {
                [Some(Value::Dict(table))] => like(self.translate(text, &table)?),
                _ => Fault::other("translate takes a mapping"),
            },
            "maketrans" => self.make_table(args),
            _ => self.search(text, name, args),
        }
    }

    fn split_lines(&self, value: &Value, text: &str, args: Args) -> Result<Value> {
        let [keeps] = args.bind("splitlines", ["keepends"], 0)?;
        let keeps = keeps.is_some_and(|keeps| self.truth(&keeps));
        self.texts(value, lines(text, keeps))
    }

    fn without_affix(&self, text: &str, affix: &Value, is_prefix: bool) -> Result<String> {
        let affix = self.text_of(affix)?;
        let rest = if is_prefix {
            text.strip_prefix(affix)
        } else {
            text.strip_suffix(affix)
        };
        Ok(rest.unwrap_or(text).to_owned())
    }

    /// Pads with zeros to `width` characters, after the sign if there is one.
    fn fill_with_zeros(&self, text: &str, width: i64) -> Result<String> {
        let fill = usize::try_from(width).unwrap_or(0);
        let fill = fill.saturating_sub(text.chars().count());
        self.check_allocation(1, fill)?;
        let signed = usize::from(text.starts_with(['+', '-']));
        Ok([&text[..signed], &"0".repeat(fill), &text[signed..]].concat())
    }

    fn format_map(&self, text: &str, mapping: &Value) -> Result<String> {
        let args = Args {
            positional: Vec::new(),
            named: self.named(mapping)?,
        };
        self.format_text(text, &args)
    }

    pub(in super::super) fn stripped(
        &self,
        text: &str,
        chars: Option<&Value>,
        at_start: bool,
        at_end: bool,
    ) -> Result<String> {
        let trim = |is: &dyn Fn(char) -> bool| {
            let text = if at_start {
                text.trim_start_matches(is)
            } else {
                text
            };
            let text = if at_end {
                text.trim_end_matches(is)
            } else {
                text
            };
            text.to_owned()
        };
        Ok(match chars {
            None | Some(Value::None) => trim(&is_blank),
            Some(chars) => {
                let chars = self.text_of(chars)?;
                trim(&|character| chars.contains(character))
            }
        })
    }

    pub(super) fn texts(&self, like: &Value, parts: Vec<&str>) -> Result<Value> {
        self.check_allocation(parts.len(), size_of::<Value>())?;
        let parts = parts.into_iter();
        Value::list(
            parts
                .map(|part| Value::like(like, part.to_owned()))
                .collect(),
        )
    }

    fn split_text(
        &self,
        value: &Value,
        text: &str,
        separator: Option<Value>,
        max: Option<Value>,
        from_end: bool,
    ) -> Result<Value> {
        let max = max.map_or(Ok(-1), |max| self.whole(&max))?;
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        let parts = match separator {
            None | Some(Value::None) => split_blank(text, max, from_end),
            Some(separator) => match self.text_of(&separator)? {
                "" => return Fault::other("empty separator"),
                separator => split(text, separator, max, from_end),
            },
        };
        self.texts(value, parts)
    }

    fn partition(&self, value: &Value, text: &str, args: Args, from_end: bool) -> Result<Value> {
        let [separator] = args.by_position("partition", 1)?;
        let separator = separator.unwrap_or(Value::None);
        let separator = self.text_of(&separator)?;
        if separator.is_empty() {
            return Fault::other("empty separator");
        }
        let found = if from_end {
            text.rsplit_once(separator)
        } else {
            text.split_once(separator)
        };
        let parts = match (found, from_end) {
            (Some((before, after)), _) => [before, separator, after],
            (None, true) => ["", "", text],
            (None, false) => [text, "", ""],
        };
        Value::tuple(
            parts
                .map(|part| Value::like(value, part.to_owned()))
                .to_vec(),
        )
    }

    fn replace(
        &self,
        value: &Value,
        text: &str,
        old: Option<Value>,
        new: Option<Value>,
        count: Option<Value>,
    ) -> Result<Value> {
        let (old, new) = (old.unwrap_or(Value::None), new.unwrap_or(Value::None));
        let count = count.map_or(Ok(-1), |count| self.whole(&count))?;
        let replaced = self.replaced(text, self.text_of(&old)?, self.text_of(&new)?, count)?;
        Ok(Value::like(value, replaced))
    }

    pub(in super::super) fn replaced(
        &self,
        text: &str,
        old: &str,
        new: &str,
        count: i64,
    ) -> Result<String> {
        let max = usize::try_from(count).unwrap_or(usize::MAX);
        let found = text.matches(old).take(max).count();
        self.check_memory(text.len())?;
        self.check_allocation(new.len(), found)?;
        Ok(text.replacen(old, new, found))
    }

    fn justify(&self, value: &Value, text: &str, name: &str, args: Args) -> Result<Value> {
        let [width, fill] = args.by_position(name, 1)?;
        let width = self.whole(&width.unwrap_or(Value::None))?;
        let fill = fill.unwrap_or_else(|| Value::text(" "));
        let mut chars = self.text_of(&fill)?.chars();
        let (Some(fill), None) = (chars.next(), chars.next()) else {
            return Fault::other("The fill character must be exactly one character long");
        };
        let width = usize::try_from(width).unwrap_or(0);
        let pad = width.saturating_sub(text.chars().count());
        self.check_allocation(fill.len_utf8(), pad)?;
        let padding = |count: usize| fill.to_string().repeat(count);
        Ok(Value::like(
            value,
            match name {
                "ljust" => text.to_owned() + &padding(pad),
                "rjust" => padding(pad) + text,
                _ => centered(text, width, fill),
            },
        ))
    }

    fn expand_tabs(&self, text: &str, size: usize) -> Result<String> {
        let tabs = text.matches('\t').count();
        self.check_allocation(size, tabs)?;
        let (mut out, mut column) = (String::new(), 0);
        for character in text.chars() {
            match character {
                '\t' if size > 0 => {
                    let blanks = size - column % size;
                    out.extend(std::iter::repeat_n(' ', blanks));
                    column += blanks;
                }
                '\t' => (),
                '\n' | '\r' => {
                    out.push(character);
                    column = 0;
                }
                _ => {
                    out.push(character);
                    column += 1;
                }
            }
        }
        Ok(out)
    }

    fn join(&self, value: &Value, separator: &str, items: &Value) -> Result<Value> {
        let mut out = String::new();
        for (index, item) in self.items(items)?.iter().enumerate() {
            let Value::Text(text) = item else {
                let kind = item.type_name();
                return Fault::other(format!(
                    "sequence item {index}: expected str instance, {kind} found"
                ));
            };
            if index > 0 {
                out.push_str(separator);
            }
            if value.is_safe() && !text.is_safe() {
                out.push_str(&super::super::filters::escape(text.as_str()))
            } else {
                out.push_str(text.as_str())
            }
            self.step(1)?;
            self.check_memory(out.len())?;
        }
        Ok(Value::like(value, out))
    }

    fn encode(&self, text: &str, encoding: Option<Value>, errors: Option<Value>) -> Result<Value> {
        let encoding = encoding.unwrap_or_else(|| Value::text("utf-8"));
        let encoding = self
            .text_of(&encoding)?
            .to_ascii_lowercase()
            .replace('_', "-");
        let errors = errors.unwrap_or_else(|| Value::text("strict"));
        let last = match encoding.as_str() {
            "utf-8" | "utf8" => return Ok(Value::Bytes(text.as_bytes().into())),
            "ascii" | "us-ascii" => '\x7f',
            "latin-1" | "latin1" | "iso-8859-1" => '\u{ff}',
            _ => return Fault::other(format!("unknown encoding: {encoding}")),
        };
        let mut bytes = Vec::with_capacity(text.len());
        for character in text.chars() {
            match (u8::try_from(character), self.text_of(&errors)?) {
                (Ok(byte), _) if character <= last => bytes.push(byte),
                (_, "ignore") => (),
                (_, "replace") => bytes.push(b'?'),
                _ => {
                    return Fault::other(format!(
                        "'{encoding}' codec can't encode character {character:?}"
                    ));
                }
            }
        }
        Ok(Value::Bytes(bytes.into()))
    }

    fn named(&self, mapping: &Value) -> Result<Vec<(String, Value)>> {
        let Value::Dict(dict) = mapping else {
            return Fault::other("format_map takes a mapping");
        };
        let entries = dict.entries().iter();
        let texts =
            entries.filter_map(|(key, value)| Some((key.as_str()?.to_owned(), value.clone())));
        Ok(texts.collect())
    }

    fn translate(&self, text: &str, table: &Dict) -> Result<String> {
        let mut out = String::new();
        for character in text.chars() {
            self.step(1)?;
            match table.get(&Value::Int(u32::from(character).into())) {
                None => out.push(character),
                Some(Value::None) => (),
                Some(Value::Text(text)) => out.push_str(text.as_str()),
                Some(other) => {
                    let code = u32::try_from(self.whole(other)?)
                        .ok()
                        .and_then(char::from_u32);
                    match code {
                        Some(code) => out.push(code),
                        None => {
                            return Fault::other("character mapping must be in range(0x110000)");
                        }
                    }
                }
            }
            self.check_memory(out.len())?;
        }
        Ok(out)
    }

    fn make_table(&self, args: Args) -> Result<Value> {
        let code = |character: char| Value::Int(u32::from(character).into());
        let [from, to, without] = args.by_position("maketrans", 1)?;
        let mut entries = Vec::new();
        match (from, to) {
            (Some(Value::Dict(dict)), None) => {
                for (key, value) in dict.entries() {
                    let key = match key.as_str() {
                        Some(text) => text.chars().next().map_or(Value::None, code),
                        None => key.clone(),
                    };
                    entries.push((key, value.clone()));
                }
            }
            (Some(Value::Text(from)), Some(Value::Text(to))) => {
                let (from, to) = (from.as_str().chars(), to.as_str().chars());
                if from.clone().count() != to.clone().count() {
                    return Fault::other(
                        "the first two maketrans arguments must have equal length",
                    );
                }
                entries.extend(from.zip(to).map(|(from, to)| (code(from), code(to))));
            }
            _ => return Fault::other("maketrans takes a mapping or two strings"),
        }
        if let Some(without) = &without {
            let without = self.text_of(without)?.chars();
            entries.extend(without.map(|character| (code(character), Value::None)));
        }
        Value::dict(entries)
    }
}
