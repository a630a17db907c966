//! Tests of grammars written as text: EBNF and Lark.

use super::vocabularies::{large, tiny};
use super::walk::walk;
use super::{accepts, compile, wish};
use souffleur_state::grammar::{Constraint, GrammarProgress};

fn ebnf(text: &str) -> Constraint {
    Constraint::Ebnf(text.into())
}

const JSON: &str = r##"
# A JSON document without numbers below 0.
root   ::= value
value  ::= object | array | string | number | ("true" | "false" | "null")
object ::= "{" ws ( member ("," ws member)* )? "}" ws
member ::= string ":" ws value
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x00-\x1f\x7f] | "\\" ["\\/bfnrt] )* "\"" ws
number ::= ("0" | [1-9] [0-9]*) ("." [0-9]+)? ws
ws     ::= ([ \t\n] ws)?
"##;

#[test]
fn a_grammar_of_json_writes_json() {
    for vocabulary in [tiny(), large()] {
        let compiler = vocabulary.compiler();
        let grammar = compile(compiler, ebnf(JSON)).expect("it compiles");
        for seed in 0..12 {
            let walk = walk(grammar.as_ref(), vocabulary, seed);
            assert_eq!(walk.end, Ok(GrammarProgress::Done), "{}", walk.text);
            let value = serde_json::from_str::<serde_json::Value>(&walk.text);
            assert!(value.is_ok(), "{}: {value:?}", walk.text);
        }
        let texts = [
            "{\"a\": [1, 2.5, null]}",
            "[]",
            "\"a\\n\"",
            "{\"a\":{\"b\":[[]]}} \n",
        ];
        for text in texts {
            assert!(accepts(grammar.as_ref(), vocabulary, text), "{text}");
        }
        for text in ["{\"a\" 1}", "[1,]", "-1", "01"] {
            assert!(!accepts(grammar.as_ref(), vocabulary, text), "{text}");
        }
    }
}

/// Grammars, texts that they derive, and texts that they do not derive.
const CASES: [(&str, &[&str], &[&str]); 9] = [
    ("root ::= \"yes\" | \"no\"", &["yes", "no"], &["yesno", ""]),
    (
        "root ::= [a-c]{2,3} \"!\"?",
        &["ab", "abc!"],
        &["a", "abcd", "ab!!"],
    ),
    (
        "root ::= (\"a\" | \"b\")+ tail\ntail ::= \".\" | \"\"",
        &["ab.", "b"],
        &["", "."],
    ),
    (
        "root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" expr \")\"",
        &["1+2", "(1+(2))+30"],
        &["1+", "(1"],
    ),
    (
        "root ::= list\nlist ::= item | list \",\" item\nitem ::= [a-z]+",
        &["a", "ab,c,d"],
        &["a,", ","],
    ),
    (
        "root ::= \"(\" root \")\" | \"x\"",
        &["x", "((x))"],
        &["((x)", "()"],
    ),
    (
        "root ::= \"\\x41\\u00e9\\n\" [^a-z\\]]",
        &["Aé\n1"],
        &["Aé\na", "Aé\n]"],
    ),
    (
        "root ::= a-b_1\na-b_1 ::= . . # any two\n",
        &["é\n"],
        &["a", "abc"],
    ),
    (
        "root ::= \"SELECT \" column \" FROM \" table\ncolumn ::= \"a\" | \"ab\"\ntable ::= column{,2}",
        &["SELECT ab FROM aab", "SELECT a FROM "],
        &["SELECT b FROM a"],
    ),
];

#[test]
fn grammars_derive_their_texts_and_no_others() {
    let vocabulary = tiny();
    let compiler = vocabulary.compiler();
    for (text, good, bad) in CASES {
        let grammar =
            compile(compiler, ebnf(text)).unwrap_or_else(|error| panic!("{text}: {error}"));
        for output in good {
            assert!(
                accepts(grammar.as_ref(), vocabulary, output),
                "{text}: {output:?}"
            );
        }
        for output in bad {
            assert!(
                !accepts(grammar.as_ref(), vocabulary, output),
                "{text}: {output:?}"
            );
        }
        for seed in 0..4 {
            let walk = walk(grammar.as_ref(), vocabulary, seed);
            assert_eq!(walk.end, Ok(GrammarProgress::Done), "{text}: {}", walk.text);
            assert!(
                accepts(grammar.as_ref(), vocabulary, &walk.text),
                "{text}: {}",
                walk.text
            );
        }
    }
}

#[test]
fn lark_is_compiled_unchanged() {
    let vocabulary = large();
    let compiler = vocabulary.compiler();
    let text = "%llguidance {}\nstart: \"a\" B <tool_call> /-?[0-9]/ \"&\"\nB: /[0-9]+/\n";
    let grammar = compile(compiler, ebnf(text)).expect("it compiles");
    assert!(accepts(grammar.as_ref(), vocabulary, "a12<tool_call>7&"));
    assert!(!accepts(grammar.as_ref(), vocabulary, "a12<tool_call>x"));
    for text in [
        "%llguidance {}\nstart: @s1",
        "%llguidance {}\nstart: x",
        "%llguidance {",
    ] {
        let refused = compiler.compile(&wish(ebnf(text)), &|| false);
        assert_eq!(
            refused.expect_err("it is refused").code(),
            "invalid_request",
            "{text}"
        );
    }
}
