//! What llguidance compiles: a grammar in Lark, and the JSON schemas that it refers to.

use llguidance::JsonCompileOptions;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::cache::Key;
use super::limits::GrammarLimits;
use crate::error::FieldError;
use crate::state::grammar::JsonWhitespace;

/// White space that models write of their own accord: a blank, or a line break with indentation.
const BOUNDED: &str = r"\x20|\n[\x20\t]{0,40}";
/// The letters after a backslash in JSON strings. `\u` is left out: with it, a property could be named in two ways,
/// and the second is not known to be taken.
const ESCAPES: &str = "nrbtf\\\"";

/// A grammar as text.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The field of the request that asks for it.
    pub(super) field: &'static str,
    /// The rules, `start` among them; empty if the first schema is all.
    lark: String,
    schemas: Vec<Value>,
}

impl Source {
    /// The values of one JSON schema, which has been checked.
    pub(super) fn of_schema(
        field: &'static str,
        schema: Value,
        whitespace: &JsonWhitespace,
    ) -> Self {
        let mut source = Self::of_lark(field, String::new());
        source.schema(schema, whitespace);
        source
    }

    /// A grammar in Lark, whole or to be continued.
    pub(super) fn of_lark(field: &'static str, lark: String) -> Self {
        Self {
            field,
            lark,
            schemas: Vec::new(),
        }
    }

    /// Adds a schema, which has been checked, and returns how rules refer to it.
    pub(super) fn schema(&mut self, mut schema: Value, whitespace: &JsonWhitespace) -> String {
        let (is_flexible, pattern) = match whitespace {
            JsonWhitespace::Bounded => (true, Some(BOUNDED.to_owned())),
            JsonWhitespace::Compact => (false, None),
            JsonWhitespace::Pattern(pattern) => (true, Some(pattern.to_string())),
        };
        let options = JsonCompileOptions {
            whitespace_flexible: is_flexible,
            whitespace_pattern: pattern,
            json_allowed_escapes: Some(ESCAPES.to_owned()),
            ..JsonCompileOptions::default()
        };
        options.apply_to(&mut schema);
        let known = self.schemas.iter().position(|known| *known == schema);
        let at = known.unwrap_or_else(|| {
            self.schemas.push(schema);
            self.schemas.len() - 1
        });
        format!("@s{at}")
    }

    /// Tells whether it is larger than it may be.
    pub(super) fn check_size(&self, limits: &GrammarLimits) -> Result<(), FieldError> {
        let bytes = self.lark.len() + self.schemas.iter().map(json_bytes).sum::<usize>();
        if bytes <= limits.source_bytes {
            return Ok(());
        }
        Err(FieldError::new(
            self.field,
            format!(
                "the grammar of {} has {bytes} bytes, limit is {}: ask for less",
                self.field, limits.source_bytes
            ),
        ))
    }

    /// Equal for sources that mean the same to a compiler.
    pub(super) fn key(&self) -> Key {
        let mut hash = Sha256::new();
        let schemas = self.schemas.iter().map(Value::to_string);
        for part in std::iter::once(self.lark.clone()).chain(schemas) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }

    pub(super) fn into_grammar(self) -> TopLevelGrammar {
        let named = |(at, schema)| GrammarWithLexer {
            name: Some(format!("s{at}")),
            ..GrammarWithLexer::from_json_schema(schema)
        };
        let schemas = self.schemas.into_iter().enumerate().map(named);
        let lark = (!self.lark.is_empty()).then(|| GrammarWithLexer::from_lark(self.lark));
        TopLevelGrammar {
            grammars: lark.into_iter().chain(schemas).collect(),
            max_tokens: None,
        }
    }
}

/// A text as Lark writes it.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Bytes of a value as JSON, without writing it.
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
