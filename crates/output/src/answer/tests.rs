//! Tests of answer pieces: text, reasoning, calls and stop strings.

use super::*;
use crate::output::{OutputEnding, ReasoningFormat, Tool, ToolChoice, ToolFormat};

const OPEN: u32 = 256;
const CLOSE: u32 = 257;
const THINK: u32 = 258;
const THINK_END: u32 = 259;

/// One token per byte, and four marker tokens.
struct Bytes;

fn marker(token: u32) -> Option<&'static str> {
    Some(match token {
        OPEN => "<tool_call>",
        CLOSE => "</tool_call>",
        THINK => "<think>",
        THINK_END => "</think>",
        _ => return None,
    })
}

impl TokenText for Bytes {
    fn decode(&self, tokens: &[u32], _: bool, _: bool) -> String {
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|&token| match marker(token) {
                Some(text) => text.as_bytes().to_vec(),
                None => vec![token as u8],
            })
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The tokens of a text: each marker is one token.
fn tokens(text: &str) -> Vec<u32> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(next) = rest.bytes().next() {
        let found = (OPEN..=THINK_END).find(|&id| marker(id).is_some_and(|m| rest.starts_with(m)));
        tokens.push(found.unwrap_or(u32::from(next)));
        let len = found.and_then(marker).map_or(1, str::len);
        rest = if rest.is_char_boundary(len) {
            &rest[len..]
        } else {
            let len = rest.chars().next().map_or(1, char::len_utf8);
            tokens.extend(rest.as_bytes()[1..len].iter().map(|&byte| u32::from(byte)));
            &rest[len..]
        };
    }
    tokens
}

fn stream(stops: &[&str], parallel: bool) -> AnswerStream {
    let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
    let formats = OutputFormats {
        tool: Some(ToolFormat::Hermes),
        reasoning: Some(ReasoningFormat::Think),
    };
    let find = |text: &str| (OPEN..=THINK_END).find(|&id| marker(id) == Some(text));
    let tool = Tool {
        name: "seat".to_owned(),
        description: None,
        parameters: None,
        strict: false,
    };
    let form = AnswerForm {
        formats,
        markers: Arc::new(Markers::new(formats, find)),
        tools: Some(Arc::new(ToolUse {
            tools: vec![tool],
            choice: ToolChoice::Auto,
            parallel,
        })),
        start: OutputStart::Content,
        in_format_only: false,
    };
    let table = Arc::new(StopTable::new(&stops));
    AnswerStream::new(TextOptions::default(), table, &[], &Bytes, form)
}

fn run(mut stream: AnswerStream, text: &str) -> (Vec<OutputPiece>, Option<StopMatch>) {
    let mut stop = None;
    let mut pieces = Vec::new();
    for token in tokens(text) {
        stop = stop.or(stream.push(token, &Bytes));
        stream
            .take()
            .into_iter()
            .for_each(|piece| push_piece(&mut pieces, piece));
    }
    stream
        .finish(OutputEnding::Whole)
        .into_iter()
        .for_each(|piece| push_piece(&mut pieces, piece));
    (pieces, stop)
}

fn text(text: &str) -> OutputPiece {
    OutputPiece::Text(text.to_owned())
}

fn call(arguments: &str) -> [OutputPiece; 3] {
    [
        OutputPiece::CallStart {
            name: "seat".to_owned(),
        },
        OutputPiece::CallArguments(arguments.to_owned()),
        OutputPiece::CallEnd,
    ]
}

const CALL: &str =
    "<tool_call>\n{\"name\": \"seat\", \"arguments\": {\"row\": \"é\"}}\n</tool_call>";

#[test]
fn tokens_become_reasoning_text_and_calls() {
    let answer = format!("<think>\nWhére?\n</think>\n\nHére: {CALL}");
    let (pieces, stop) = run(stream(&[], true), &answer);
    let mut expected = vec![OutputPiece::Reasoning("Whére?".to_owned()), text("Hére: ")];
    expected.extend(call("{\"row\": \"é\"}"));
    assert_eq!((pieces, stop), (expected, None));
}

#[test]
fn stop_strings_are_found_only_in_the_text() {
    let answer = format!("<think>row</think>a ro{CALL}w row more");
    let (pieces, stop) = run(stream(&["row"], true), &answer);
    let mut expected = vec![OutputPiece::Reasoning("row".to_owned()), text("a ro")];
    expected.extend(call("{\"row\": \"é\"}"));
    expected.push(text("w "));
    assert_eq!(pieces, expected);
    let before_more = tokens(&answer).len() - " more".len();
    let expected = StopMatch {
        output_tokens_kept: before_more,
        matched: "row".to_owned(),
    };
    assert_eq!(stop, Some(expected));
}

#[test]
fn whitespace_completes_a_stop_string_at_once() {
    let call = format!("a\n\n{CALL}");
    for (stop, answer, kept, shown) in [
        ("\n", "Paris\nThe", 6, "Paris"),
        ("\n\n", "Paris\n\n\nThe", 7, "Paris"),
        ("\n", "Paris\n", 6, "Paris"),
        ("s\n", "Paris\n", 6, "Pari"),
        ("\n", "\nThe", 1, ""),
        ("\n\n", &call, 3, "a"),
        ("\n", "<think>\n</think>\n\nThe\nend", 9, "The"),
    ] {
        let (pieces, found) = run(stream(&[stop], true), answer);
        let expected = StopMatch {
            output_tokens_kept: kept,
            matched: stop.to_owned(),
        };
        assert_eq!(found, Some(expected), "{answer:?}");
        let content: String = (pieces.iter())
            .filter_map(|piece| match piece {
                OutputPiece::Text(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(content, shown, "{answer:?}");
    }
}

#[test]
fn whitespace_between_calls_is_not_text() {
    let (_, stop) = run(stream(&["\n"], true), &format!("{CALL}\n{CALL}"));
    assert_eq!(stop, None);
}

#[test]
fn a_possible_stop_string_is_held_and_emitted_at_the_end() {
    let mut stream = stream(&["stop"], true);
    tokens("a sto")
        .into_iter()
        .for_each(|token| assert_eq!(stream.push(token, &Bytes), None));
    assert_eq!(stream.take(), [text("a ")]);
    assert_eq!(stream.finish(OutputEnding::Whole), [text("sto")]);
}

#[test]
fn tokens_of_reasoning_are_counted_with_their_markers() {
    let mut stream = stream(&[], true);
    for token in tokens("<think>abc</think>de") {
        stream.push(token, &Bytes);
    }
    assert_eq!((stream.reasoning_tokens(), stream.output_tokens()), (5, 7));
}

#[test]
fn one_call_is_enough_where_calls_are_not_parallel() {
    let mut stream = stream(&[], false);
    // After the complete call, only the newline and the end tag remain.
    for token in tokens(CALL) {
        assert!(!stream.wants_end() || token == CLOSE || token == u32::from(b'\n'));
        stream.push(token, &Bytes);
    }
    assert!(stream.wants_end());
}
