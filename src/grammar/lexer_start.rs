//! Creates llguidance's parser, and limits the work of starting its lexer.

use std::panic::AssertUnwindSafe;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::{ParserFactory, TokenParser, panic_utils};

/// Creates the parser of a grammar.
///
/// # Errors
/// llguidance's message, also for a work limit that was reached.
pub(super) fn parser(
    factory: &ParserFactory,
    grammar: TopLevelGrammar,
) -> Result<TokenParser, String> {
    let limits = factory.limits().clone();
    let vocabulary = Some(factory.tok_env().clone());
    let checked = panic_utils::catch_unwind(AssertUnwindSafe(|| {
        let parts = GrammarInit::Serialized(grammar).to_internal(vocabulary, limits.clone())?;
        Ok(check_first_bytes(&parts.1, limits).map(|()| parts))
    }));
    let (grammar, lexer) = checked.map_err(|error| error.to_string())??;
    let parser = factory.create_parser_from_init_default(GrammarInit::Internal(grammar, lexer));
    parser.map_err(|error| error.to_string())
}

/// Computes the lexer's transition for each first byte, with limited fuel. llguidance 1.9 computes these transitions
/// without a limit when it creates a lexer. Checking whether any text begins with a byte may exhaust the memory.
fn check_first_bytes(lexer: &LexerSpec, mut limits: ParserLimits) -> Result<(), String> {
    let fuel = limits.initial_lexer_fuel;
    let automaton = lexer.to_regex_vec(&mut limits);
    let mut automaton = automaton.map_err(|error| error.to_string())?;
    automaton.set_fuel(fuel);
    let start = automaton.initial_state(&lexer.all_lexemes());
    for byte in 0..=u8::MAX {
        automaton.transition(start, byte);
    }
    automaton.get_error().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lexer of one regular expression written in Lark.
    fn lexer_of(expression: &str) -> LexerSpec {
        let lark = format!("start: A\nA: {expression}\n");
        let grammar = GrammarInit::Serialized(TopLevelGrammar::from_lark(lark));
        grammar.to_internal(None, limits()).expect("valid Lark").1
    }

    fn limits() -> ParserLimits {
        crate::GrammarLimits::default().of_parser()
    }

    /// No match begins with "x". The proof takes lcm(2, 3, ..., 23) steps for the first pattern, 2^40 for the second.
    #[test]
    fn a_first_byte_costs_no_more_than_the_limit() {
        let lengths = ["2", "3", "5", "7", "11", "13", "17", "19", "23"];
        let lengths = lengths.map(|length| format!("/x(a{{{length}}})+b/"));
        let bits = "/x[01]*1[01]{40}/ & /x(00|11|01|10)*[01]?0[01]{40}/";
        for pattern in [lengths.join(" & "), bits.to_owned()] {
            let lexer = lexer_of(&format!("\"q\" | {pattern}"));
            let error = check_first_bytes(&lexer, limits()).expect_err("it exceeds the limit");
            assert!(error.contains("too many expressions"), "{pattern}: {error}");
        }
    }

    #[test]
    fn a_first_byte_of_some_text_is_accepted() {
        let matched = r#""q" | "x" /[01]{3}/"#;
        check_first_bytes(&lexer_of(matched), limits()).expect("it is within the limit");
    }
}
