//! Writes random answers as messages in gpt-oss channels.

use serde_json::Value;
use souffleur_output::output::ToolFormat;

use super::cases::Case;
use super::values;

/// Text of messages, some of which looks like parts of headers.
const TEXTS: [&str; 6] = [
    "I see.",
    "Shall I?\n\nYes <|chan of to=functions.seat, é",
    "",
    " {\"row\": 4} ",
    "analysis final commentary assistant",
    "<tool_call> or [TOOL_CALLS] or <think>\n",
];

/// Writes an answer: reasoning, commentary, calls and a final message, all of them optional.
pub fn write(case: &mut Case, rng: &mut fastrand::Rng) {
    let mut writer = Writer { case, rng, n: 0 };
    for _ in 0..writer.rng.usize(0..=2) {
        let text = writer.message("<|channel|>analysis", "<|end|>");
        append(&mut writer.case.answer.reasoning, text);
    }
    let has_tools = writer.case.transcript.formats.tool == Some(ToolFormat::GptOss);
    if writer.rng.u8(0..3) == 0 {
        let text = writer.message("<|channel|>commentary", "<|end|>");
        append(&mut writer.case.answer.content, text);
    }
    for _ in 0..if has_tools {
        writer.rng.usize(0..=2)
    } else {
        0
    } {
        writer.write_call();
    }
    if writer.rng.bool() {
        let headers = ["<|channel|>final", "<|channel|>final <|constrain|>json", ""];
        let header = match writer.n {
            0 => headers[writer.rng.usize(0..2)],
            _ => headers[writer.rng.usize(0..3)],
        };
        let end = ["<|return|>", "", "<|end|>"][writer.rng.usize(0..3)];
        let text = writer.message(header, end);
        append(&mut writer.case.answer.content, text);
    }
}

/// Appends a message. Messages of one kind are on separate lines.
fn append(messages: &mut String, text: &str) {
    if !messages.is_empty() && !text.is_empty() {
        messages.push('\n');
    }
    messages.push_str(text);
}

struct Writer<'a> {
    case: &'a mut Case,
    rng: &'a mut fastrand::Rng,
    /// Number of messages so far.
    n: usize,
}

impl Writer<'_> {
    /// Begins a message. The start of the first message is in the prompt.
    fn begin(&mut self) {
        if self.n > 0 {
            self.case.transcript.tag("<|start|>");
            self.case.transcript.text("assistant");
        }
        self.n += 1;
    }

    fn message(&mut self, header: &str, end: &str) -> &'static str {
        self.begin();
        let text = TEXTS[self.rng.usize(0..TEXTS.len())];
        self.case.transcript.tagged(header);
        self.case.transcript.tag("<|message|>");
        values::push_with_random_tags(&mut self.case.transcript, text, self.rng);
        if !end.is_empty() {
            self.case.transcript.tag(end);
        }
        text
    }

    fn write_call(&mut self) {
        self.begin();
        let name = ["seat", "other", "a.b-c"][self.rng.usize(0..3)];
        let headers = [
            format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"),
            format!("<|channel|>commentary to=functions.{name}<|constrain|>json<|message|>"),
            format!(" to=functions.{name}<|channel|>commentary json<|message|>"),
            format!("<|channel|>analysis to=functions.{name} code<|message|>"),
            format!("<|channel|>commentary to={name}<|message|> "),
        ];
        let header = &headers[self.rng.usize(0..headers.len())];
        self.case.transcript.tagged(header);
        let arguments = Value::Object(values::arguments(self.rng));
        let written = match self.rng.u8(0..8) {
            0 => String::new(),
            _ => values::json_text(&arguments, self.rng),
        };
        values::push_with_random_tags(&mut self.case.transcript, &written, self.rng);
        self.case.transcript.tag("<|call|>");
        let expected = if written.is_empty() { "{}" } else { &written };
        self.case.answer.add_call(name, expected);
    }
}
