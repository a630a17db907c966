//! Holds the text that llguidance compiles: a Lark grammar with the JSON schemas and grammars that it refers to.

use std::collections::HashMap;
use std::fmt::Write;

use llguidance::JsonCompileOptions;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::cache::Key;
use super::limits::GrammarLimits;
use super::regex;
use souffleur_base::error::FieldError;
use souffleur_state::grammar::JsonWhitespace;

/// The whitespace that is allowed between JSON tokens by default, as models write it: a space, or a line break with
/// indentation.
const BOUNDED: &str = r"\x20|\n[\x20\t]{0,40}";
/// The characters after a backslash in JSON strings. `\u` is left out: with it, a property could be named in two ways,
/// and llguidance would not recognise the second.
const ESCAPES: &str = "nrbtf\\\"";

#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The field of the request, for errors.
    pub(super) field: &'static str,
    /// The rules, including `start`; empty if the first of `nested` is the whole grammar.
    lark: String,
    /// The schemas and grammars that the rules refer to as `@s0`, `@s1` and so on.
    nested: Vec<Nested>,
    /// Indices in `nested`, by the text of the schema or grammar.
    indices: HashMap<String, usize>,
}

#[derive(Clone, Debug)]
enum Nested {
    Schema(Value),
    Lark(String),
}

impl Source {
    /// A source for the values of one checked JSON schema.
    pub(super) fn of_schema(
        field: &'static str,
        schema: Value,
        whitespace: &JsonWhitespace,
    ) -> Self {
        let mut source = Self::of_lark(field, String::new());
        source.schema(schema, whitespace);
        source
    }

    /// A source of one Lark grammar, to which rules may be added.
    pub(super) fn of_lark(field: &'static str, lark: String) -> Self {
        Self {
            field,
            lark,
            nested: Vec::new(),
            indices: HashMap::new(),
        }
    }

    /// Adds a checked schema, and returns the reference to it for rules.
    pub(super) fn schema(&mut self, mut schema: Value, whitespace: &JsonWhitespace) -> String {
        let (is_flexible, pattern) = match whitespace {
            JsonWhitespace::Bounded => (true, Some(BOUNDED.to_owned())),
            JsonWhitespace::Compact => (false, None),
            JsonWhitespace::Pattern(pattern) => (true, Some(regex::rewrite_checked(pattern))),
        };
        regex::quote_patterns(&mut schema);
        let options = JsonCompileOptions {
            whitespace_flexible: is_flexible,
            whitespace_pattern: pattern,
            json_allowed_escapes: Some(ESCAPES.to_owned()),
            ..JsonCompileOptions::default()
        };
        options.apply_to(&mut schema);
        self.nested(schema.to_string(), Nested::Schema(schema))
    }

    /// Adds a Lark grammar, and returns the reference to it for rules.
    pub(super) fn grammar(&mut self, lark: String) -> String {
        self.nested(lark.clone(), Nested::Lark(lark))
    }

    fn nested(&mut self, text: String, nested: Nested) -> String {
        let next = self.nested.len();
        let at = *self.indices.entry(text).or_insert(next);
        if at == next {
            self.nested.push(nested);
        }
        format!("@s{at}")
    }

    pub(super) fn rule(&mut self, name: &str, body: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.lark, "{name}: {body}");
    }

    pub(super) fn check_size(&self, limits: &GrammarLimits) -> Result<(), FieldError> {
        let bytes = self.lark.len() + self.nested.iter().map(Nested::bytes).sum::<usize>();
        if bytes <= limits.source_bytes {
            return Ok(());
        }
        Err(FieldError::new(
            self.field,
            format!(
                "the grammar of {} has {bytes} bytes, limit is {}: simplify it",
                self.field, limits.source_bytes
            ),
        ))
    }

    /// A hash that is equal for sources with equal text.
    pub(super) fn key(&self) -> Key {
        let mut hash = Sha256::new();
        let nested = self.nested.iter().map(|nested| match nested {
            Nested::Schema(schema) => ("schema", schema.to_string()),
            Nested::Lark(lark) => ("lark", lark.clone()),
        });
        for (kind, part) in std::iter::once(("lark", self.lark.clone())).chain(nested) {
            hash.update(kind);
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }

    pub(super) fn into_grammar(self) -> TopLevelGrammar {
        let named = |(at, nested)| GrammarWithLexer {
            name: Some(format!("s{at}")),
            ..match nested {
                Nested::Schema(schema) => GrammarWithLexer::from_json_schema(schema),
                Nested::Lark(lark) => GrammarWithLexer::from_lark(lark),
            }
        };
        let nested = self.nested.into_iter().enumerate().map(named);
        let lark = (!self.lark.is_empty()).then(|| GrammarWithLexer::from_lark(self.lark));
        TopLevelGrammar {
            grammars: lark.into_iter().chain(nested).collect(),
            max_tokens: None,
        }
    }
}

impl Nested {
    fn bytes(&self) -> usize {
        match self {
            Self::Schema(schema) => json_bytes(schema),
            Self::Lark(lark) => lark.len(),
        }
    }
}

pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Counts the bytes of a value as JSON without storing the text.
fn json_bytes(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    match serde_json::to_writer(&mut count, value) {
        Ok(()) => count.0,
        Err(_) => usize::MAX,
    }
}
