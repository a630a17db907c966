//! Tests of grammars, with random walks over small and large vocabularies.

mod bombs;
mod constraints;
mod gates;
mod grammars;
mod meanings;
mod patterns;
#[path = "../../../tests/common/schemas.rs"]
mod schema_list;
mod schemas;
mod structural_tags;
#[path = "../../../tests/common/tokenizers.rs"]
mod tokenizers;
mod tools;
mod vocabularies;
mod walk;

use std::sync::Arc;

use super::{GrammarCompiler, GrammarLimits, GrammarWish};
use souffleur_base::error::RequestError;
use souffleur_state::grammar::{Constraint, Grammar, JsonWhitespace};
use vocabularies::Vocabulary;

fn compiler_within(vocabulary: &Vocabulary, limits: GrammarLimits) -> GrammarCompiler {
    let text = vocabulary.text.clone();
    GrammarCompiler::new(text, &vocabulary.eos, vocabulary.size, limits)
}

fn wish(constraint: Constraint) -> GrammarWish {
    GrammarWish {
        constraint: Some(Arc::new(constraint)),
        ..GrammarWish::default()
    }
}

fn schema(schema: serde_json::Value) -> Constraint {
    Constraint::JsonSchema {
        schema: Arc::new(schema),
        whitespace: JsonWhitespace::default(),
        is_strict: false,
    }
}

/// Whether the grammar accepts the text as a complete output.
fn accepts(grammar: &dyn Grammar, vocabulary: &Vocabulary, text: &str) -> bool {
    walk::feed(grammar, vocabulary, text).is_some_and(|end| end.is_ok())
}

fn compile(
    compiler: &GrammarCompiler,
    constraint: Constraint,
) -> Result<Arc<dyn Grammar>, RequestError> {
    let grammar = compiler.compile(&wish(constraint), &|| false)?;
    Ok(grammar.expect("the constraint has a grammar"))
}
