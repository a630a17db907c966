//! Every format of calls and reasoning through a whole engine and its server: a scripted model says something in the words
//! of its family, and clients must hear the meaning, whole and streamed.
//!
//! A format is a line in a test: the family's markers, its tags of reasoning, and a function that writes calls. The engine
//! learns the format from the checkpoint, as it does from real ones.

mod checkpoint;
mod family;
mod heard;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::world::World;
use family::{Call, Family, Form, Said, Thoughts};
use heard::Heard;

const THINK: Thoughts = Thoughts::Tags("<think>\n", "\n</think>\n\n");
const QWEN: &[&str] = &["<tool_call>", "</tool_call>", "<think>", "</think>"];
const GLM: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
];
const DEEPSEEK: &[&str] = &[
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<think>",
    "</think>",
];
const GPT_OSS: &[&str] = &[
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];

const PARAMETER_ENDS: &[&str] = &[
    "\\n</parameter>\\n<parameter=",
    "\\n</parameter>\\n</function>",
];

/// A family whose markers are special tokens.
const fn tagged(
    tokens: &'static [&'static str],
    thoughts: Thoughts,
    calls: fn(&[Call]) -> String,
) -> Family {
    Family {
        tokens,
        has_special_tokens: true,
        form: Form::Tagged { thoughts, calls },
        written_tags: &[],
        speaks_before_calls: true,
        calls_once: false,
        has_grammar: true,
    }
}

/// The same, with calls at the start of an answer or not at all.
const fn bare(tokens: &'static [&'static str], calls: fn(&[Call]) -> String) -> Family {
    Family {
        speaks_before_calls: false,
        ..tagged(tokens, Thoughts::None, calls)
    }
}

/// A family whose markers are tokens that texts show.
const fn shown(family: Family) -> Family {
    Family {
        has_special_tokens: false,
        ..family
    }
}

/// A family with tags that are no tokens.
const fn with_tags(written_tags: &'static [&'static str], family: Family) -> Family {
    Family {
        written_tags,
        ..family
    }
}

/// A family that writes calls in another form than grammars do.
const fn without_grammar(family: Family) -> Family {
    Family {
        has_grammar: false,
        ..family
    }
}

#[test]
fn qwen3() {
    check(&shown(tagged(QWEN, THINK, family::hermes)));
}

#[test]
fn hermes_with_special_tokens() {
    check(&tagged(QWEN, THINK, family::hermes));
}

#[test]
fn hermes_without_tokens() {
    let tags = &["<think>", "\n</think>", "<tool_call>", "\n</tool_call>"];
    check(&with_tags(tags, tagged(&[], THINK, family::hermes)));
}

#[test]
fn qwen3_coder() {
    let family = tagged(QWEN, THINK, family::qwen3_coder);
    check(&shown(with_tags(PARAMETER_ENDS, family)));
}

#[test]
fn qwen3_coder_with_special_tokens() {
    let family = tagged(QWEN, THINK, family::qwen3_coder);
    check(&with_tags(PARAMETER_ENDS, family));
}

#[test]
fn llama3() {
    check(&bare(&["<|python_tag|>"], family::llama3));
}

#[test]
fn llama3_with_its_tag() {
    let family = tagged(&["<|python_tag|>"], Thoughts::None, family::llama3_tagged);
    check(&family);
}

#[test]
fn pythonic() {
    check(&bare(&["<|python_tag|>"], family::pythonic));
}

#[test]
fn pythonic_with_its_tags() {
    let tokens = &["<|python_tag|>", "<|python_start|>", "<|python_end|>"];
    let family = tagged(tokens, Thoughts::None, family::pythonic_tagged);
    check(&without_grammar(family));
}

#[test]
fn lfm2() {
    let tokens = &[
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "<think>",
        "</think>",
    ];
    check(&tagged(tokens, THINK, family::lfm2));
}

#[test]
fn lfm2_with_objects() {
    let tokens = &["<|tool_call_start|>", "<|tool_call_end|>"];
    let family = tagged(tokens, Thoughts::None, family::lfm2_objects);
    check(&without_grammar(family));
}

#[test]
fn mistral() {
    check(&tagged(
        &["[TOOL_CALLS]"],
        Thoughts::None,
        family::mistral_list,
    ));
}

#[test]
fn mistral_that_thinks() {
    let tokens = &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"];
    let thoughts = Thoughts::Tags("[THINK]", "[/THINK]");
    check(&tagged(tokens, thoughts, family::mistral_named));
}

#[test]
fn glm45() {
    let thoughts = Thoughts::Tags("\n<think>", "</think>\n");
    check(&shown(tagged(GLM, thoughts, family::glm45)));
}

#[test]
fn glm47_with_special_tokens() {
    let thoughts = Thoughts::Opened("<think>", "</think>");
    check(&tagged(GLM, thoughts, family::glm47));
}

#[test]
fn deepseek_r1() {
    let thoughts = Thoughts::Opened("<think>\\n", "\n</think>\n\n");
    check(&tagged(DEEPSEEK, thoughts, family::deepseek_v3));
}

#[test]
fn deepseek_v31() {
    let thoughts = Thoughts::Opened("<think>", "</think>");
    check(&shown(tagged(DEEPSEEK, thoughts, family::deepseek_v31)));
}

const MESSAGES: Family = Family {
    tokens: GPT_OSS,
    has_special_tokens: true,
    form: Form::Messages,
    written_tags: &[],
    speaks_before_calls: true,
    calls_once: false,
    has_grammar: true,
};

#[test]
fn gpt_oss() {
    check(&Family {
        calls_once: true,
        ..MESSAGES
    });
}

#[test]
fn gpt_oss_that_goes_on_after_calls() {
    check(&MESSAGES);
}

fn weather(city: &str, days: u32) -> Call {
    let place = json!({"row": days, "seat": null});
    let fields =
        json!({"city": city, "days": days, "sure": true, "tags": ["a", "b c"], "place": place});
    call("weather", fields)
}

fn call(name: &'static str, arguments: Value) -> Call {
    let Value::Object(arguments) = arguments else {
        panic!("arguments are an object");
    };
    Call { name, arguments }
}

fn tools() -> Value {
    let place = json!({
        "type": "object",
        "properties": {"row": {"type": "integer"}, "seat": {"type": ["string", "null"]}},
        "required": ["row", "seat"],
        "additionalProperties": false,
    });
    let arguments = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "sure": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "place": place,
        },
        "required": ["city", "days", "sure", "tags", "place"],
        "additionalProperties": false,
    });
    json!([
        {"type": "function", "function": {"name": "weather", "parameters": arguments}},
        {"type": "function", "function": {"name": "clock"}},
    ])
}

/// Answers of all kinds; the last one has everything.
fn answers() -> Vec<Said> {
    let (reasoning, content) = (
        "Which one?\n\nBoth \"<b>\".",
        "Grüße, 観客 🎭!\n\n[1] {\"a\": 1}",
    );
    let tricky = weather("São \"Tomé\" \\ C:\\n\n{[<b>]} 🎭; </x>", 3);
    let clock = call("clock", Value::Object(Map::new()));
    let said = |reasoning, content, calls: &[&Call]| Said {
        reasoning,
        content,
        calls: calls.iter().map(|call| (*call).clone()).collect(),
    };
    let oslo = weather("Oslo", 1);
    vec![
        said("", content, &[]),
        said("", "", &[&tricky]),
        said("", "", &[&clock]),
        said("", "", &[&tricky, &oslo]),
        said("", "Well.", &[&clock, &tricky, &oslo]),
        said(reasoning, content, &[]),
        said(reasoning, "", &[&tricky]),
        said(reasoning, "Well.", &[&clock]),
        said(reasoning, "Well.", &[&tricky, &clock]),
    ]
}

fn ask(question: &str) -> Value {
    json!({"messages": [{"role": "user", "content": question}], "tools": tools()})
}

/// A family's model that says what it can.
struct Speaker<'a> {
    family: &'a Family,
    answers: Vec<Said>,
    world: World,
    _folder: TempDir,
}

/// The cue of the answer of this number.
fn answer(index: usize) -> String {
    format!("Question {index}?")
}

/// The cue of that answer as a grammar allows it.
fn tight(index: usize) -> String {
    format!("Order {index}!")
}

/// The cue of a text with this one of the markers where it means nothing.
fn stray(index: usize) -> String {
    format!("Stray {index}.")
}

impl<'a> Speaker<'a> {
    fn new(family: &'a Family) -> Self {
        let mut answers = answers();
        answers.retain(|said| family.can_say(said));
        let mut lines = Vec::new();
        for (index, said) in answers.iter().enumerate() {
            lines.push((answer(index), family.write(said)));
            lines.push((tight(index), family.write_tight(said)));
        }
        for (index, tag) in family.tokens.iter().enumerate() {
            lines.push((stray(index), format!("a{tag}b")));
        }
        let lines: Vec<(&str, &str)> = lines
            .iter()
            .map(|(cue, line)| (cue.as_str(), line.as_str()))
            .collect();
        let folder = checkpoint::of(family);
        let world = World::scripted_with(&lines, |config, _| {
            config.model_path = folder.path().to_owned();
        });
        Self {
            family,
            answers,
            world,
            _folder: folder,
        }
    }

    fn check_answers(&self) {
        for (index, said) in self.answers.iter().enumerate() {
            let line = self.family.write(said);
            Heard::ask(&self.world, &ask(&answer(index))).check(said, &line);
        }
    }

    fn check_strays(&self) {
        for index in 0..self.family.tokens.len() {
            let heard = Heard::ask(&self.world, &ask(&stray(index)));
            heard.check_without(self.family.hidden());
        }
    }

    /// Cuts the last answer after each of its tokens.
    fn check_cuts(&self) {
        let index = self.answers.len() - 1;
        let (said, mut body) = (&self.answers[index], ask(&answer(index)));
        let n_tokens = Heard::ask(&self.world, &body).completion_tokens;
        for max_tokens in 1..n_tokens {
            body["max_tokens"] = max_tokens.into();
            let heard = Heard::ask(&self.world, &body);
            assert_eq!(heard.completion_tokens, max_tokens);
            heard.check_cut(self.family, said);
            heard.check_without(self.family.hidden());
        }
    }

    /// Calls that are asked for follow a grammar, which allows what the model says anyway.
    fn check_required(&self) {
        let numbered = self.answers.iter().enumerate();
        for (index, said) in numbered.filter(|(_, said)| self.family.can_be_told(said)) {
            let line = self.family.write_tight(said);
            let mut body = ask(&tight(index));
            body["tool_choice"] = "required".into();
            Heard::ask(&self.world, &body).check(said, &line);
            if let [call] = said.calls.as_slice() {
                let function = json!({"name": call.name});
                body["tool_choice"] = json!({"type": "function", "function": function});
                Heard::ask(&self.world, &body).check(said, &line);
            }
        }
    }

    /// One call ends an answer that may have one only.
    fn check_alone(&self) {
        for (index, said) in self.answers.iter().enumerate() {
            let mut body = ask(&answer(index));
            body["parallel_tool_calls"] = false.into();
            let mut said = said.clone();
            said.calls.truncate(1);
            Heard::ask(&self.world, &body).check(&said, &self.family.write(&said));
        }
    }

    /// A conversation goes on after a call.
    fn check_results(&self) {
        let said = &self.answers[0];
        let mut body = ask("Now?");
        let function = json!({"name": "clock", "arguments": "{}"});
        let messages = body["messages"].as_array_mut().expect("a list");
        messages.extend([
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "call_1", "type": "function", "function": function}]}),
            json!({"role": "tool", "tool_call_id": "call_1", "content": answer(0)}),
        ]);
        Heard::ask(&self.world, &body).check(said, &self.family.write(said));
    }
}

/// Checks a family on every answer that it can give.
fn check(family: &Family) {
    let speaker = Speaker::new(family);
    speaker.check_answers();
    speaker.check_strays();
    speaker.check_cuts();
    speaker.check_required();
    speaker.check_alone();
    speaker.check_results();
    speaker.world.wait_until_whole();
}
