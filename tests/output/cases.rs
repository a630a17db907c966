//! Generates random test cases: a transcript, and the answer that the parser must read from it.

use serde_json::{Map, Value};
use souffleur_output::output::{OutputFormats, OutputPiece, ReasoningFormat, ToolFormat};

use super::messages;
use super::transcript::{Mode, Transcript};
use super::values;

/// The reasoning, content and calls of an answer.
#[derive(Debug, Default, PartialEq)]
pub struct Answer {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<Call>,
}

#[derive(Debug, PartialEq)]
pub struct Call {
    pub name: String,
    /// As in the transcript where that is JSON (all arguments, an array or an object), else as `json.dumps` writes it.
    pub arguments: String,
    pub is_complete: bool,
}

pub struct Case {
    pub transcript: Transcript,
    pub answer: Answer,
}

impl Answer {
    pub fn of(pieces: &[OutputPiece]) -> Self {
        let mut answer = Self::default();
        for piece in pieces {
            match (piece, answer.calls.last_mut()) {
                (OutputPiece::Text(text), _) => answer.content.push_str(text),
                (OutputPiece::Reasoning(text), _) => answer.reasoning.push_str(text),
                (OutputPiece::CallStart { name }, _) => answer.calls.push(Call {
                    name: name.clone(),
                    arguments: String::new(),
                    is_complete: false,
                }),
                (OutputPiece::CallArguments(text), Some(call)) => call.arguments.push_str(text),
                (OutputPiece::CallEnd, Some(call)) => call.is_complete = true,
                (OutputPiece::CallBroken { .. }, _) => {}
                (OutputPiece::CallArguments(_) | OutputPiece::CallEnd, None) => {
                    panic!("a part of a call outside a call: {pieces:?}")
                }
            }
        }
        answer
    }

    pub fn add_call(&mut self, name: &str, arguments: &str) {
        self.calls.push(Call {
            name: name.to_owned(),
            arguments: arguments.to_owned(),
            is_complete: true,
        });
    }
}

impl Case {
    pub fn new(formats: OutputFormats, mode: Mode, rng: &mut fastrand::Rng) -> Self {
        let mut case = Self {
            transcript: Transcript::new(formats, mode),
            answer: Answer::default(),
        };
        if formats.is_harmony() {
            messages::write(&mut case, rng);
            return case;
        }
        let starts_in_reasoning = formats.reasoning == Some(ReasoningFormat::DeepSeekR1);
        if starts_in_reasoning || rng.bool() {
            case.write_reasoning(rng);
        }
        let n_calls = match formats.tool {
            Some(_) => rng.usize(0..=3),
            None => 0,
        };
        if n_calls == 0 {
            case.write_content(rng);
        } else {
            case.write_calls(n_calls, rng);
        }
        case
    }

    fn text(&mut self, text: &str) {
        self.transcript.text(text);
    }

    fn write_reasoning(&mut self, rng: &mut fastrand::Rng) {
        let Some(format) = self.transcript.formats.reasoning else {
            return;
        };
        if format != ReasoningFormat::DeepSeekR1 || rng.bool() {
            self.transcript.tag(format.opening());
        }
        if format == ReasoningFormat::Gemma4 {
            self.text("thought\n");
        }
        let thought = [
            "I see.",
            "Shall I?\n\nYes <think not> [THIN",
            "",
            "Say <tool_call> or [TOOL_CALLS] or <|python_tag|>, é",
        ][rng.usize(0..4)];
        self.answer.reasoning.push_str(thought);
        self.text(["", "\n", "\n\n"][rng.usize(0..3)]);
        values::push_with_random_tags(&mut self.transcript, thought, rng);
        self.text(["", "\n"][rng.usize(0..2)]);
        self.transcript.tag(format.closing());
        self.text(["", "\n", "\n\n"][rng.usize(0..3)]);
    }

    /// Content that is not a call, though it may look like one.
    fn write_content(&mut self, rng: &mut fastrand::Rng) {
        let content = [
            "Hello, é 😀!\n\nBye\n",
            "a < b, <tool_cal and </tool_cal",
            "[1, 2] and [TOOL_CALL] {\"name\": 4}",
            "{\"name\": \"Ada\", \"age\": 36}\n",
            "<tool_call>nothing</tool_call> ",
            "<|python_tag|> is a tag",
            "[TOOL_CALLS] as well",
            "[seat](http://seat)",
            "[seat(4)]",
            "x</tool_call",
            "<|tool_call_start|>[] and <｜tool▁call▁begin｜>f",
            "<|channel|> of <|message|>",
        ][rng.usize(0..12)];
        self.answer.content.push_str(content);
        self.text(content);
    }

    fn write_calls(&mut self, n_calls: usize, rng: &mut fastrand::Rng) {
        let before = ["", "Let me see.", "One <b> moment: é"][rng.usize(0..3)];
        self.answer.content.push_str(before);
        self.text(before);
        self.text(["", "\n", "\n\n"][rng.usize(0..3)]);
        let start = match before {
            "" => Start::Bare,
            _ => Start::Tagged,
        };
        match self.transcript.formats.tool {
            Some(ToolFormat::Hermes) => self.hermes(n_calls, rng),
            Some(ToolFormat::Qwen3Coder) => self.qwen3_coder(n_calls, rng),
            Some(ToolFormat::Llama3) => self.llama3(n_calls, start, rng),
            Some(ToolFormat::Pythonic) => self.pythonic(n_calls, start, rng),
            Some(ToolFormat::Mistral) if rng.bool() => self.mistral_list(n_calls, rng),
            Some(ToolFormat::Mistral) => self.mistral_named(n_calls, rng),
            Some(ToolFormat::Lfm2) => self.lfm2(n_calls, rng),
            Some(ToolFormat::Glm45) => self.glm(n_calls, "\n", rng),
            Some(ToolFormat::Glm47) => self.glm(n_calls, "", rng),
            Some(format @ (ToolFormat::DeepSeekV3 | ToolFormat::DeepSeekV31)) => {
                self.deepseek(n_calls, format, rng);
            }
            Some(ToolFormat::Gemma4) => self.gemma4(n_calls, rng),
            Some(format @ (ToolFormat::Granite | ToolFormat::Phi4Mini)) => {
                self.tagged_list(n_calls, format, rng);
            }
            Some(ToolFormat::GptOss) | None => {}
        }
        let after = ["", "\n", " \n", "\nDone.\n", " Done <tool_c"][rng.usize(0..5)];
        self.text(after);
        if !after.trim().is_empty() {
            self.answer.content.push_str(after);
        }
    }

    fn object(&mut self, key: &str, rng: &mut fastrand::Rng) {
        let name = ["seat", "other", "a.b-c"][rng.usize(0..3)];
        let arguments = Value::Object(values::arguments(rng));
        let written = values::json_text(&arguments, rng);
        let arguments_json = match rng.u8(0..8) {
            0 => Value::String(written.clone()).to_string(),
            _ => written.clone(),
        };
        self.answer.add_call(name, &written);
        let mut parts = [
            format!("\"name\": \"{name}\""),
            format!("\"{key}\":{arguments_json}"),
        ];
        if key == "arguments" && rng.u8(0..8) == 0 {
            parts.reverse();
        }
        let written = format!("{{{}}}", parts.join([",", ", ", "\n,\n"][rng.usize(0..3)]));
        values::push_with_random_tags(&mut self.transcript, &written, rng);
    }

    fn hermes(&mut self, n_calls: usize, rng: &mut fastrand::Rng) {
        for n in 0..n_calls {
            self.transcript.tag("<tool_call>");
            self.text(["", "\n"][rng.usize(0..2)]);
            self.object("arguments", rng);
            self.text(["", "\n"][rng.usize(0..2)]);
            self.transcript.tag("</tool_call>");
            self.text(["", "\n"][if n + 1 < n_calls { rng.usize(0..2) } else { 0 }]);
        }
    }

    fn qwen3_coder(&mut self, n_calls: usize, rng: &mut fastrand::Rng) {
        for n in 0..n_calls {
            let arguments = values::arguments(rng);
            self.transcript.tag("<tool_call>");
            self.text("\n<function=seat>\n");
            let mut written = Vec::new();
            for (key, value) in &arguments {
                let value_text = values::value_text(value, rng);
                self.text(&format!("<parameter={key}>\n"));
                values::push_with_random_tags(&mut self.transcript, &value_text, rng);
                self.text("\n</parameter>\n");
                written.push(parameter(key, value, &value_text));
            }
            self.text("</function>\n");
            self.transcript.tag("</tool_call>");
            self.text(["", "\n"][if n + 1 < n_calls { rng.usize(0..2) } else { 0 }]);
            self.answer
                .add_call("seat", &format!("{{{}}}", written.join(", ")));
        }
    }

    fn llama3(&mut self, n_calls: usize, start: Start, rng: &mut fastrand::Rng) {
        let is_tagged = start == Start::Tagged || rng.bool();
        if is_tagged {
            self.transcript.tag("<|python_tag|>");
        }
        for n in 0..n_calls {
            self.text(["", ";", "; ", "\n;"][if n == 0 { 0 } else { rng.usize(1..4) }]);
            self.bare_object(rng);
        }
    }

    /// Writes a call that is also recognised without a tag.
    fn bare_object(&mut self, rng: &mut fastrand::Rng) {
        let arguments = Value::Object(values::arguments(rng));
        let written = values::json_text(&arguments, rng);
        self.answer.add_call("seat", &written);
        let key = ["parameters", "arguments"][rng.usize(0..2)];
        let written = format!("{{\"name\": \"seat\", \"{key}\": {written}}}");
        values::push_with_random_tags(&mut self.transcript, &written, rng);
    }

    fn pythonic(&mut self, n_calls: usize, start: Start, rng: &mut fastrand::Rng) {
        let is_tagged = start == Start::Tagged || rng.bool();
        if is_tagged {
            self.transcript.tag("<|python_start|>");
        }
        self.text("[");
        for n in 0..n_calls {
            let arguments = values::arguments(rng);
            let mut written = Vec::new();
            for (key, value) in &arguments {
                let python = values::python(value, rng);
                written.push(format!("{key}{}{python}", ["=", " = "][rng.usize(0..2)]));
            }
            let comma = ["", ","][if n == 0 { 0 } else { 1 }];
            let written = format!("{comma}seat({})", written.join(", "));
            values::push_with_random_tags(&mut self.transcript, &written, rng);
            self.answer
                .add_call("seat", &dumps(&Value::Object(arguments)));
        }
        self.text("]");
        if is_tagged {
            self.transcript.tag("<|python_end|>");
        }
    }

    fn tagged_list(&mut self, n_calls: usize, format: ToolFormat, rng: &mut fastrand::Rng) {
        self.transcript.tag("<|tool_call|>");
        let has_brackets = n_calls > 1 || rng.u8(0..4) > 0;
        self.text(if has_brackets { "[" } else { "" });
        for n in 0..n_calls {
            self.text(["", ", ", ",\n"][if n == 0 { 0 } else { rng.usize(1..3) }]);
            self.object("arguments", rng);
        }
        self.text(if has_brackets { "]" } else { "" });
        if format == ToolFormat::Phi4Mini && rng.u8(0..4) > 0 {
            self.transcript.tag("<|/tool_call|>");
        }
    }

    fn lfm2(&mut self, n_calls: usize, rng: &mut fastrand::Rng) {
        self.transcript.tag("<|tool_call_start|>");
        let is_json = rng.u8(0..4) == 0;
        let has_brackets = n_calls > 1 || rng.u8(0..4) > 0;
        self.text(if has_brackets { "[" } else { "" });
        for n in 0..n_calls {
            self.text(["", ", "][if n == 0 { 0 } else { 1 }]);
            if is_json {
                self.object("arguments", rng);
                continue;
            }
            let arguments = values::arguments(rng);
            let written: Vec<String> = (arguments.iter())
                .map(|(key, value)| format!("{key}={}", values::python(value, rng)))
                .collect();
            let written = format!("seat({})", written.join(", "));
            values::push_with_random_tags(&mut self.transcript, &written, rng);
            self.answer
                .add_call("seat", &dumps(&Value::Object(arguments)));
        }
        self.text(if has_brackets { "]" } else { "" });
        self.transcript.tag("<|tool_call_end|>");
    }

    fn glm(&mut self, n_calls: usize, line: &str, rng: &mut fastrand::Rng) {
        for n in 0..n_calls {
            let arguments = values::arguments(rng);
            self.transcript.tag("<tool_call>");
            self.text(&format!("seat{line}"));
            let mut written = Vec::new();
            for (key, value) in &arguments {
                let value_text = values::value_text(value, rng);
                self.transcript
                    .tagged(&format!("<arg_key>{key}</arg_key>{line}<arg_value>"));
                values::push_with_random_tags(&mut self.transcript, &value_text, rng);
                self.transcript.tag("</arg_value>");
                self.text(line);
                written.push(parameter(key, value, &value_text));
            }
            self.transcript.tag("</tool_call>");
            self.text(if n + 1 < n_calls { line } else { "" });
            self.answer
                .add_call("seat", &format!("{{{}}}", written.join(", ")));
        }
    }

    fn gemma4(&mut self, n_calls: usize, rng: &mut fastrand::Rng) {
        for _ in 0..n_calls {
            let arguments = values::arguments(rng);
            self.transcript.tag("<|tool_call>");
            self.text("call:seat");
            self.braced(&arguments, rng);
            self.transcript.tag("<tool_call|>");
            self.answer
                .add_call("seat", &dumps(&Value::Object(arguments)));
        }
    }

    fn braced(&mut self, map: &Map<String, Value>, rng: &mut fastrand::Rng) {
        self.text("{");
        for (n, (key, value)) in map.iter().enumerate() {
            self.text(if n > 0 { "," } else { "" });
            let is_plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric());
            if is_plain && rng.bool() {
                self.text(key)
            } else {
                self.between_quotes(key, rng)
            }
            self.text(":");
            self.braced_value(value, rng);
        }
        self.text("}");
    }

    fn braced_value(&mut self, value: &Value, rng: &mut fastrand::Rng) {
        match value {
            Value::String(text) => self.between_quotes(text, rng),
            Value::Object(map) => self.braced(map, rng),
            Value::Array(items) => {
                self.text("[");
                for (n, item) in items.iter().enumerate() {
                    self.text(["", ",", ", "][if n == 0 { 0 } else { rng.usize(1..3) }]);
                    self.braced_value(item, rng);
                }
                self.text("]");
            }
            other => self.text(&other.to_string()),
        }
    }

    fn between_quotes(&mut self, text: &str, rng: &mut fastrand::Rng) {
        self.transcript.tag("<|\"|>");
        values::push_with_random_tags(&mut self.transcript, text, rng);
        self.transcript.tag("<|\"|>");
    }

    fn deepseek(&mut self, n_calls: usize, format: ToolFormat, rng: &mut fastrand::Rng) {
        let is_section = n_calls > 1 || rng.u8(0..4) > 0;
        let section = |case: &mut Self, tag| {
            if is_section {
                case.transcript.tag(tag);
            }
        };
        section(self, "<｜tool▁calls▁begin｜>");
        for n in 0..n_calls {
            let arguments = Value::Object(values::arguments(rng));
            let written = values::json_text(&arguments, rng);
            self.text(["", "\n"][if n > 0 { rng.usize(0..2) } else { 0 }]);
            let (before, after) = match format {
                ToolFormat::DeepSeekV3 => ("function<｜tool▁sep｜>seat\n```json\n", "\n```"),
                _ => ("seat<｜tool▁sep｜>", ""),
            };
            self.transcript.tag("<｜tool▁call▁begin｜>");
            self.transcript.tagged(before);
            values::push_with_random_tags(&mut self.transcript, &written, rng);
            self.text(after);
            self.transcript.tag("<｜tool▁call▁end｜>");
            self.answer.add_call("seat", &written);
        }
        section(self, "<｜tool▁calls▁end｜>");
    }

    fn mistral_list(&mut self, n_calls: usize, rng: &mut fastrand::Rng) {
        self.transcript.tag("[TOOL_CALLS]");
        self.text([" [", "["][rng.usize(0..2)]);
        for n in 0..n_calls {
            self.text(["", ",", ", "][if n == 0 { 0 } else { rng.usize(1..3) }]);
            self.object("arguments", rng);
        }
        self.text("]");
    }

    fn mistral_named(&mut self, n_calls: usize, rng: &mut fastrand::Rng) {
        for _ in 0..n_calls {
            let arguments = Value::Object(values::arguments(rng));
            let written = values::json_text(&arguments, rng);
            self.transcript.tag("[TOOL_CALLS]");
            self.text("seat");
            if rng.u8(0..4) == 0 {
                self.transcript.tag("[CALL_ID]");
                self.text("aB3");
            }
            self.transcript.tag("[ARGS]");
            values::push_with_random_tags(&mut self.transcript, &written, rng);
            self.answer.add_call("seat", &written);
        }
    }
}

/// A key with its value in the JSON arguments that the parser must return; `value_text` is the value in the transcript.
fn parameter(key: &str, value: &Value, value_text: &str) -> String {
    let is_json = |text: &str| serde_json::from_str::<Value>(text).is_ok();
    let json = match value {
        Value::Array(_) | Value::Object(_) if is_json(value_text) => value_text.to_owned(),
        _ => dumps(value),
    };
    format!("{}: {json}", dumps(&Value::from(key)))
}

/// Whether a call may begin without a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Bare,
    Tagged,
}

/// Writes a value as Python's `json.dumps` does with `ensure_ascii=False`.
fn dumps(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(dumps).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(map) => dumps_map(map),
        _ => value.to_string(),
    }
}

fn dumps_map(map: &Map<String, Value>) -> String {
    let item = |(key, value): (&String, &Value)| {
        format!("{}: {}", Value::from(key.as_str()), dumps(value))
    };
    let items: Vec<String> = map.iter().map(item).collect();
    format!("{{{}}}", items.join(", "))
}
