//! Tests of reasoning between tags.

use super::*;

fn check(format: ReasoningFormat, text: &str, expected: &str) {
    let engine = engine(None, Some(format));
    assert_eq!(short(&run(engine, text)), expected, "{text:?}");
}

#[test]
fn tags_separate_reasoning_from_content() {
    let f = ReasoningFormat::Think;
    check(f, "<think>\na\n\nb\n</think>\n\nc\n", "‹a\n\nb›«c\n»");
    check(f, "\n<think></think>\n\nc", "«c»");
    check(f, "<think>a", "‹a›");
    check(f, "<think>a\n</thin", "‹a\n</thin›");
    check(f, "a</think>b", "«ab»");
    check(f, "a <think> b</think>c", "«a <think> b</think>c»");
    check(f, "<think>a</think><think>b</think>c", "‹ab›«c»");
    check(f, "<think>a <think> b</think>c", "‹a <think> b›«c»");
    check(ReasoningFormat::MistralThink, "[THINK]a[/THINK]b", "‹a›«b»");
}

#[test]
fn outputs_may_begin_inside_reasoning() {
    let f = ReasoningFormat::DeepSeekR1;
    check(f, "a</think>b", "‹a›«b»");
    check(f, "<think>\na</think>b", "‹a›«b»");
    check(f, "a", "‹a›");
    assert!(f.is_open_after("x<think>\n"));
    assert!(!f.is_open_after("<think>\n\n</think>\n\n"));
    assert!(!f.is_open_after("x"));
}

#[test]
fn a_tool_call_ends_reasoning() {
    super::check(
        ToolFormat::Hermes,
        "<think>So\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n</think>\nx",
        "‹So›f({})«\nx»",
    );
}
