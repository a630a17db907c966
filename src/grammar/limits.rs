//! Defines the limits of a grammar's size, compilation time and mask computation.

use std::time::Duration;

use llguidance::api::ParserLimits;

use souffleur_base::error::FieldError;

/// The limits of one request's grammar. A limit ends the request that exceeds it, and never changes a mask.
/// The work for a mask depends on the lexer's earlier inputs, so masks that a limit changed would differ between runs.
#[derive(Clone, Debug)]
pub struct GrammarLimits {
    /// Bytes of a regular expression, a grammar or the texts of a choice.
    pub text_bytes: usize,
    /// Bytes of the whole grammar of a request, with its schemas as JSON.
    pub source_bytes: usize,
    /// Values in a JSON schema, including the values in its constants.
    pub schema_nodes: usize,
    /// Nesting depth of objects and arrays in a JSON schema.
    pub schema_depth: usize,
    /// Time limit of a request's wait for its grammar, from the start of the compilation.
    pub compile_time: Duration,
    /// Compilations in flight, including those that no request waits for.
    pub compiling: usize,
    /// Compiled grammars and compilation errors that are cached for later requests.
    pub cached: usize,
    /// Symbols of a compiled grammar.
    pub symbols: usize,
    /// Work of the lexer while it is built; 50,000 take about 1 ms.
    pub start_fuel: u64,
    /// Work of the lexer for one mask; 14,000 take about 1 ms.
    pub step_fuel: u64,
    /// Earley items that the parser creates for one mask; 20,000 take about 1 ms.
    pub step_items: usize,
    /// Earley items of the parser after one token.
    pub row_items: usize,
    /// States of the lexer of one output, 1 to 2 kB each.
    pub lexer_states: usize,
}

impl Default for GrammarLimits {
    fn default() -> Self {
        Self {
            text_bytes: 64 << 10,
            source_bytes: 2 << 20,
            schema_nodes: 20_000,
            schema_depth: 64,
            compile_time: Duration::from_secs(10),
            compiling: 4,
            cached: 64,
            symbols: 200_000,
            start_fuel: 1_000_000,
            step_fuel: 200_000,
            step_items: 200_000,
            row_items: 10_000,
            lexer_states: 20_000,
        }
    }
}

impl GrammarLimits {
    pub(super) fn of_parser(&self) -> ParserLimits {
        ParserLimits {
            max_items_in_row: self.row_items,
            initial_lexer_fuel: self.start_fuel,
            step_lexer_fuel: self.step_fuel,
            step_max_items: self.step_items,
            max_lexer_states: self.lexer_states,
            max_grammar_size: self.symbols,
            precompute_large_lexemes: true,
            verbose_errors: false,
        }
    }
}

/// Refuses a text of more bytes than the limit.
pub(super) fn check_bytes(
    field: &str,
    bytes: usize,
    limits: &GrammarLimits,
) -> Result<(), FieldError> {
    let limit = limits.text_bytes;
    if bytes <= limit {
        return Ok(());
    }
    let reason = format!("{field} has {bytes} bytes, limit is {limit}: send a shorter one");
    Err(FieldError::new(field, reason))
}
