//! Tests of the format of gpt-oss (Harmony).

use super::*;

const TAGS: [&str; 7] = [
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];
const CALL: &str =
    "<|channel|>commentary to=functions.seat <|constrain|>json<|message|>{\"row\": 4}<|call|>";

fn formats(reasoning: Option<ReasoningFormat>) -> OutputFormats {
    OutputFormats {
        tool: Some(ToolFormat::GptOss),
        reasoning,
    }
}

fn read(engine: OutputEngine, text: &str) -> String {
    short(&run(engine, text))
}

fn check(text: &str, expected: &str) {
    let engine = |start| {
        let formats = formats(Some(ReasoningFormat::GptOss));
        OutputEngine::new(formats, Some(tools(true)), Arc::default(), start)
    };
    assert_eq!(
        read(engine(OutputStart::Header), text),
        expected,
        "{text:?}"
    );
    if !text.starts_with("<|channel|>") || expected.contains("<|") {
        return;
    }
    let next = format!("<|start|>assistant{text}");
    assert_eq!(
        read(engine(OutputStart::Between), &next),
        expected,
        "{next:?}"
    );
}

/// As [`check`], with tags as hidden marker tokens.
fn check_hidden(text: &str, expected: &str) {
    check_ended(text, None, expected);
}

fn check_ended(text: &str, end: Option<&str>, expected: &str) {
    let formats = formats(Some(ReasoningFormat::GptOss));
    let id = |text: &str| TAGS.iter().position(|tag| *tag == text).map(|at| at as u32);
    let markers = Arc::new(Markers::new(formats, id).hiding(|_| true));
    let mut engine = OutputEngine::new(formats, Some(tools(true)), markers, OutputStart::Header);
    let (mut pieces, mut rest) = (Vec::new(), text);
    while let Some((at, tag)) = TAGS
        .iter()
        .filter_map(|tag| Some((rest.find(tag)?, *tag)))
        .min()
    {
        engine.push_text(&rest[..at], &mut pieces);
        engine.push_marker(id(tag).expect("a known tag"), &mut pieces);
        rest = &rest[at + tag.len()..];
    }
    engine.push_text(rest, &mut pieces);
    if let Some(end) = end.and_then(id) {
        engine.push_end(end, &mut pieces);
    }
    engine.finish(OutputEnding::Whole, &mut pieces);
    let mut merged = Vec::new();
    pieces
        .into_iter()
        .for_each(|piece| push_piece(&mut merged, piece));
    assert_eq!(short(&merged), expected, "{text:?}");
}

#[test]
fn channels_separate_reasoning_from_content() {
    check(
        "<|channel|>analysis<|message|>So\n<|end|><|start|>assistant<|channel|>final<|message|>Hi\n<|return|>",
        "‹So\n›«Hi\n»",
    );
    check(
        "<|channel|>final <|constrain|>json<|message|>{\"a\": 1}",
        "«{\"a\": 1}»",
    );
    check("<|channel|>analysis<|message|>So", "‹So›");
    check(
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>",
        "‹a\nb›",
    );
    check(
        "<|channel|>commentary<|message|>One moment.<|end|><|start|>assistant<|channel|>final<|message|>Done.",
        "«One moment.\nDone.»",
    );
    check(
        "<|channel|>analysis<|message|>a<|channel|>final<|message|>b",
        "‹a›«b»",
    );
    check("Hello <b>", "«Hello <b>»");
    check("\n\nHello", "«\n\nHello»");
    check_hidden(
        "Hi<|end|><|start|>assistant, hello",
        "«Hi\nassistant, hello»",
    );
}

#[test]
fn messages_to_functions_are_calls() {
    let expected = r#"seat({"row": 4})"#;
    check(CALL, expected);
    for header in [
        " to=functions.seat<|channel|>commentary json",
        " to=functions.seat<|channel|>commentary <|constrain|>json",
        "<|channel|>commentary to=functions.seat",
        "<|channel|>analysis to=functions.seat code",
        "<|channel|>commentary to=seat <|constrain|>json",
    ] {
        check(
            &format!("{header}<|message|>{{\"row\": 4}}<|call|>"),
            expected,
        );
    }
    check(
        &format!("<|channel|>analysis<|message|>So<|end|><|start|>assistant{CALL}"),
        &format!("‹So›{expected}"),
    );
    check(
        &format!("{CALL}<|start|>assistant{CALL}"),
        &format!("{expected}{expected}"),
    );
    check(
        "<|channel|>commentary to=functions.seat<|message|><|call|>",
        "seat({})",
    );
    check(
        "<|channel|>commentary to=functions.seat<|message|>{\"row\": ",
        "seat({\"row\": ",
    );
    check(
        "<|channel|>commentary to=functions.seat<|message|>{\"a\": \"<|call|>\"}",
        "seat({\"a\": \"<|call|>\"})",
    );
    check(&format!("{CALL} So."), &format!("{expected}« So.»"));
}

#[test]
fn truncated_headers_are_dropped() {
    check_hidden("<|channel|>", "");
    check_hidden("<|channel|>analysis", "");
    check_hidden("<|channel|>commentary to=functions.se", "");
    check_hidden(
        "<|channel|>commentary to=functions.seat <|constrain|>json<|message|>",
        "",
    );
    check_hidden(
        "<|channel|>analysis<|message|>So<|end|><|start|>assis",
        "‹So›",
    );
    check_hidden(CALL, r#"seat({"row": 4})"#);
}

#[test]
fn the_end_of_the_output_ends_a_call_without_arguments() {
    let header = "<|channel|>commentary to=functions.seat <|constrain|>json";
    let begun = format!("{header}<|message|> ");
    for (text, end, expected) in [
        (begun.as_str(), "<|call|>", "seat({})"),
        (&begun, "<|return|>", "seat({})"),
        (&begun, "<|start|>", ""),
        (header, "<|call|>", ""),
        (
            &format!("{begun}{{\"row\": "),
            "<|call|>",
            "seat({\"row\": ",
        ),
        ("<|channel|>final<|message|>Hi", "<|return|>", "«Hi»"),
    ] {
        check_ended(text, Some(end), expected);
    }
}

#[test]
fn messages_that_are_not_calls_are_text() {
    check(
        "<|channel|>commentary to=functions.seat<|message|>4<|call|>",
        "«<|channel|>commentary to=functions.seat<|message|>4»",
    );
    check(
        "<|channel|>analysis to=python code<|message|>1+1<|call|>",
        "‹<|channel|>analysis to=python code<|message|>1+1›",
    );
    check(
        "<|start|>assistant to=user<|channel|>commentary<|message|>a",
        "«a»",
    );
    let long = "x".repeat(600);
    check(
        &format!("<|channel|>{long}<|message|>a"),
        &format!("«<|channel|>{long}<|message|>a»"),
    );
    check_hidden("a <|start|>b<|end|>c", "«a b\nc»");
}

#[test]
fn headers_stay_text_if_reasoning_does() {
    let text = format!("<|channel|>analysis<|message|>So<|end|><|start|>assistant{CALL}");
    let engine =
        |tools| OutputEngine::new(formats(None), tools, Arc::default(), OutputStart::Header);
    let before = "<|channel|>analysis<|message|>So<|end|>";
    assert_eq!(
        read(engine(Some(tools(true))), &text),
        format!("«{before}»seat({{\"row\": 4}})")
    );
    assert_eq!(read(engine(None), &text), format!("«{text}»"));
}

#[test]
fn prompts_determine_where_outputs_begin() {
    let start = |prompt| formats(None).start_after(prompt);
    assert_eq!(
        start("<|start|>user<|message|>a<|end|><|start|>assistant"),
        OutputStart::Header
    );
    assert_eq!(
        start("<|start|>assistant<|channel|>final<|message|>a"),
        OutputStart::Content
    );
    assert_eq!(
        start("<|start|>assistant<|channel|>analysis<|message|>a"),
        OutputStart::Reasoning
    );
    assert_eq!(
        start("<|start|>user<|message|>a<|end|>"),
        OutputStart::Between
    );
}
