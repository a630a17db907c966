//! Tests of outputs given as tokens, with markers that are single tokens.

use super::*;

fn run(items: &[(&str, Option<u32>)], hidden: bool) -> String {
    let formats = OutputFormats {
        tool: Some(ToolFormat::Hermes),
        reasoning: Some(ReasoningFormat::Think),
    };
    let ids = ["<think>", "</think>", "<tool_call>", "</tool_call>"];
    let markers = Markers::new(formats, |text| {
        ids.iter()
            .position(|known| *known == text)
            .map(|at| at as u32)
    });
    let markers = Arc::new(markers.hiding(|_| hidden));
    assert!(markers.is_marker(3) && !markers.is_marker(4));
    let mut engine = OutputEngine::new(formats, Some(tools(true)), markers, OutputStart::default());
    let mut pieces = Vec::new();
    for (text, token) in items {
        match token {
            Some(token) => engine.push_marker(*token, &mut pieces),
            None => engine.push_text(text, &mut pieces),
        }
    }
    engine.finish(OutputEnding::Whole, &mut pieces);
    short(&pieces)
}

#[test]
fn markers_are_recognised_as_tokens_but_not_as_text() {
    let text = |text: &'static str| (text, None);
    let token = |id: u32| ("", Some(id));
    let call = "{\"name\":\"f\",\"arguments\":{}}";
    let items = [
        token(0),
        text("a <tool_call>"),
        text(call),
        token(1),
        text("b"),
        token(2),
        text(call),
        token(3),
    ];
    assert_eq!(
        run(&items, false),
        "‹a <tool_call>{\"name\":\"f\",\"arguments\":{}}›«b»f({})"
    );
}

#[test]
fn marker_tokens_in_other_places_are_text() {
    let text = |text: &'static str| (text, None);
    let token = |id: u32| ("", Some(id));
    let items = [
        text("a"),
        token(0),
        token(2),
        text("{\"x "),
        token(1),
        text("y"),
        token(3),
        token(3),
    ];
    assert_eq!(
        run(&items, false),
        "«a<think><tool_call>{\"x </think>y</tool_call>»"
    );
    assert_eq!(run(&items, true), "«a{\"x y»");
    let items = [
        token(2),
        text("{\"name\":\"f\",\"arguments\":{\"a\":\""),
        token(3),
        text("\"}}"),
        token(3),
    ];
    assert_eq!(run(&items, false), "f({\"a\":\"</tool_call>\"})");
    assert_eq!(run(&items, true), "f({\"a\":\"\"})");
}
