//! Families of models: their markers, and their formats of reasoning and tool calls.

use serde_json::{Map, Value};

/// The parts of an answer, regardless of the format that a family writes them in.
#[derive(Clone, Default)]
pub struct Answer {
    pub reasoning: &'static str,
    pub content: &'static str,
    pub calls: Vec<Call>,
}

#[derive(Clone)]
pub struct Call {
    pub name: &'static str,
    pub arguments: Map<String, Value>,
}

pub struct Family {
    pub tokens: &'static [&'static str],
    /// The tokens are special: decoded text omits them.
    pub has_special_tokens: bool,
    pub form: Form,
    /// Tags that are plain text instead of tokens; arguments may contain them, too.
    pub text_tags: &'static [&'static str],
    /// Text may precede calls.
    pub allows_text_before_calls: bool,
    /// An answer ends after its first call.
    pub ends_after_first_call: bool,
    /// The engine's grammars force the same form of calls.
    pub has_grammar: bool,
}

/// How reasoning, text and calls follow each other.
pub enum Form {
    /// Reasoning, text and calls one after the other, with tags around reasoning and calls.
    Tagged {
        reasoning: Reasoning,
        calls: fn(&[Call]) -> String,
    },
    /// Each part in a message with a header (the Harmony format).
    Messages,
}

/// The tags around reasoning.
pub enum Reasoning {
    None,
    /// Both tags are in the output, if there is reasoning.
    Tags(&'static str, &'static str),
    /// The prompt ends with the first tag.
    Opened(&'static str, &'static str),
}

impl Call {
    /// The arguments as clients must receive them.
    pub fn json(&self) -> String {
        json(&Value::Object(self.arguments.clone()))
    }

    fn joined(&self, separator: &str, write: impl Fn(&str, &Value) -> String) -> String {
        let arguments = self.arguments.iter();
        let written: Vec<String> = arguments.map(|(key, value)| write(key, value)).collect();
        written.join(separator)
    }

    fn object(&self, key: &str) -> String {
        let name = self.name;
        format!("{{\"name\": \"{name}\", \"{key}\": {}}}", self.json())
    }

    fn python(&self) -> String {
        let write = |key: &str, value: &Value| format!("{key}={}", python(value));
        format!("{}({})", self.name, self.joined(", ", write))
    }
}

impl Reasoning {
    /// The texts around the reasoning of an answer.
    fn around(&self, answer: &Answer) -> (&'static str, &'static str) {
        match *self {
            Self::Opened(_, end) => ("", end),
            Self::Tags(start, end) if !answer.reasoning.is_empty() => (start, end),
            Self::None | Self::Tags(..) => ("", ""),
        }
    }
}

impl Family {
    /// An answer as models of this family write it.
    pub fn write(&self, answer: &Answer) -> String {
        let (start, end) = match self.form {
            Form::Tagged { ref reasoning, .. } => reasoning.around(answer),
            Form::Messages => ("", ""),
        };
        self.render(answer, start, end)
    }

    /// Like [`Self::write`], without the white space around reasoning.
    pub fn write_trimmed(&self, answer: &Answer) -> String {
        let (start, end) = match self.form {
            Form::Tagged { ref reasoning, .. } => reasoning.around(answer),
            Form::Messages => ("", ""),
        };
        self.render(answer, start.trim_start(), end.trim_end())
    }

    fn render(&self, answer: &Answer, start: &str, end: &str) -> String {
        let Form::Tagged { calls, .. } = self.form else {
            return messages(answer);
        };
        let (reasoning, content) = (answer.reasoning, answer.content);
        let (line, calls) = match (content, answer.calls.as_slice()) {
            (_, []) => ("", String::new()),
            ("", list) => ("", calls(list)),
            (_, list) => ("\n", calls(list)),
        };
        format!("{start}{reasoning}{end}{content}{line}{calls}")
    }

    /// The visible text of an output: special tokens have none.
    pub fn visible_text(&self, output: &str) -> String {
        let hidden = self.hidden().iter();
        hidden.fold(output.to_owned(), |text, tag| text.replace(tag, ""))
    }

    /// The markers that decoded text omits.
    pub fn hidden(&self) -> &'static [&'static str] {
        if self.has_special_tokens {
            self.tokens
        } else {
            &[]
        }
    }

    /// Whether a grammar that requires calls allows this answer.
    pub fn grammar_allows(&self, answer: &Answer) -> bool {
        let n_calls = answer.calls.len();
        let is_message = matches!(self.form, Form::Messages);
        self.has_grammar
            && answer.content.is_empty()
            && n_calls > 0
            && (n_calls == 1 || !is_message)
    }

    /// Whether models of this family can produce this answer.
    pub fn can_produce(&self, answer: &Answer) -> bool {
        let thinks = !matches!(
            self.form,
            Form::Tagged {
                reasoning: Reasoning::None,
                ..
            }
        );
        let has_calls = !answer.calls.is_empty();
        (thinks || answer.reasoning.is_empty())
            && (self.allows_text_before_calls || answer.content.is_empty() || !has_calls)
            && (!self.ends_after_first_call || answer.calls.len() <= 1)
    }
}

/// JSON as Python writes it.
fn json(value: &Value) -> String {
    let list = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Array(values) => format!("[{}]", list(values.iter().map(json).collect())),
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| format!("\"{key}\": {}", json(value));
            format!("{{{}}}", list(fields.iter().map(field).collect()))
        }
        other => other.to_string(),
    }
}

/// A value as a Python literal; strings are written as in JSON.
fn python(value: &Value) -> String {
    match value {
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Null => "None".to_owned(),
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(python).collect();
            format!("[{}]", values.join(", "))
        }
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| format!("\"{key}\": {}", python(value));
            let fields: Vec<String> = fields.iter().map(field).collect();
            format!("{{{}}}", fields.join(", "))
        }
        other => other.to_string(),
    }
}

/// A string without quotes, and any other value as JSON.
fn raw(value: &Value) -> String {
    value.as_str().map_or_else(|| json(value), str::to_owned)
}

fn each(calls: &[Call], separator: &str, write: impl Fn(&Call) -> String) -> String {
    let written: Vec<String> = calls.iter().map(write).collect();
    written.join(separator)
}

pub fn hermes(calls: &[Call]) -> String {
    let write = |call: &Call| format!("<tool_call>\n{}\n</tool_call>", call.object("arguments"));
    each(calls, "\n", write)
}

pub fn qwen3_coder(calls: &[Call]) -> String {
    let parameter =
        |key: &str, value: &Value| format!("<parameter={key}>\n{}\n</parameter>\n", raw(value));
    each(calls, "\n", |call| {
        let (name, parameters) = (call.name, call.joined("", parameter));
        format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
    })
}

pub fn llama3(calls: &[Call]) -> String {
    each(calls, "; ", |call| call.object("parameters"))
}

pub fn llama3_tagged(calls: &[Call]) -> String {
    format!("<|python_tag|>{}", llama3(calls))
}

pub fn pythonic(calls: &[Call]) -> String {
    format!("[{}]", each(calls, ", ", Call::python))
}

pub fn pythonic_tagged(calls: &[Call]) -> String {
    format!("<|python_start|>{}<|python_end|>", pythonic(calls))
}

pub fn lfm2(calls: &[Call]) -> String {
    format!("<|tool_call_start|>{}<|tool_call_end|>", pythonic(calls))
}

pub fn lfm2_objects(calls: &[Call]) -> String {
    let calls = each(calls, ", ", |call| call.object("arguments"));
    format!("<|tool_call_start|>[{calls}]<|tool_call_end|>")
}

pub fn granite(calls: &[Call]) -> String {
    let calls = each(calls, ", ", |call| call.object("arguments"));
    format!("<|tool_call|>[{calls}]")
}

pub fn phi4_mini(calls: &[Call]) -> String {
    format!("{}<|/tool_call|>", granite(calls))
}

pub fn mistral_list(calls: &[Call]) -> String {
    let calls = each(calls, ", ", |call| call.object("arguments"));
    format!("[TOOL_CALLS] [{calls}]")
}

pub fn mistral_named(calls: &[Call]) -> String {
    each(calls, "", |call| {
        format!("[TOOL_CALLS]{}[ARGS]{}", call.name, call.json())
    })
}

pub fn deepseek_v3(calls: &[Call]) -> String {
    let calls = each(calls, "\n", |call| {
        let (name, arguments) = (call.name, call.json());
        let body = format!("function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```");
        format!("<｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜>")
    });
    format!("<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>")
}

pub fn deepseek_v31(calls: &[Call]) -> String {
    let calls = each(calls, "", |call| {
        let body = format!("{}<｜tool▁sep｜>{}", call.name, call.json());
        format!("<｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜>")
    });
    format!("<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>")
}

fn glm(calls: &[Call], line: &str) -> String {
    each(calls, line, |call| {
        let pair = |key: &str, value: &Value| {
            let value = raw(value);
            format!("<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}")
        };
        let (name, pairs) = (call.name, call.joined("", pair));
        format!("<tool_call>{name}{line}{pairs}</tool_call>")
    })
}

pub fn glm45(calls: &[Call]) -> String {
    glm(calls, "\n")
}

pub fn glm47(calls: &[Call]) -> String {
    glm(calls, "")
}

pub fn gemma4(calls: &[Call]) -> String {
    each(calls, "", |call| {
        let pair = |key: &str, value: &Value| format!("{key}:{}", braced(value));
        let (name, pairs) = (call.name, call.joined(",", pair));
        format!("<|tool_call>call:{name}{{{pairs}}}<tool_call|>")
    })
}

fn braced(value: &Value) -> String {
    let joined = |parts: Vec<String>| parts.join(",");
    match value {
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        Value::Array(items) => format!("[{}]", joined(items.iter().map(braced).collect())),
        Value::Object(map) => {
            let pair = |(key, value): (&String, &Value)| format!("{key}:{}", braced(value));
            format!("{{{}}}", joined(map.iter().map(pair).collect()))
        }
        other => other.to_string(),
    }
}

/// An answer in the Harmony format: one message for each part. The prompt contains the start of the first message.
fn messages(answer: &Answer) -> String {
    let mut messages = Vec::new();
    if !answer.reasoning.is_empty() {
        let text = answer.reasoning;
        messages.push(format!("<|channel|>analysis<|message|>{text}<|end|>"));
    }
    if !answer.content.is_empty() {
        let (text, channel, end) = if answer.calls.is_empty() {
            (answer.content, "final", "")
        } else {
            (answer.content, "commentary", "<|end|>")
        };
        messages.push(format!("<|channel|>{channel}<|message|>{text}{end}"));
    }
    for call in &answer.calls {
        let (name, arguments) = (call.name, call.json());
        let header = format!("<|channel|>commentary to=functions.{name} <|constrain|>json");
        messages.push(format!("{header}<|message|>{arguments}<|call|>"));
    }
    messages.join("<|start|>assistant")
}
