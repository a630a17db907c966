//! A scripted model that produces all kinds of outputs of its family, and checks of the answers that clients receive.

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::checkpoint;
use super::family::{Call, Family, Said};
use super::heard::Heard;
use crate::world::World;

fn weather(city: &str, days: u32) -> Call {
    let place = json!({"row": days, "seat": null});
    let fields =
        json!({"city": city, "days": days, "sure": true, "tags": ["a", "b c"], "place": place});
    call("weather", fields)
}

/// A call with these arguments.
pub fn call(name: &'static str, arguments: Value) -> Call {
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

/// Answers of all kinds; the last one has reasoning, text and several calls.
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

/// A request with this question and tools to call.
pub fn ask(question: &str) -> Value {
    json!({"messages": [{"role": "user", "content": question}], "tools": tools()})
}

/// A server with a scripted model that produces all kinds of outputs of a family.
pub struct Speaker<'a> {
    family: &'a Family,
    answers: Vec<Said>,
    pub world: World,
    _folder: TempDir,
}

/// The cue of the answer with this index.
fn answer(index: usize) -> String {
    format!("Question {index}?")
}

/// The cue of the answer with this index in the form that a grammar allows.
fn tight(index: usize) -> String {
    format!("Order {index}!")
}

/// The cue of a text that contains the marker with this index where it has no meaning.
fn stray(index: usize) -> String {
    format!("Stray {index}.")
}

impl<'a> Speaker<'a> {
    pub fn new(family: &'a Family) -> Self {
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

    pub fn check_answers(&self) {
        for (index, said) in self.answers.iter().enumerate() {
            let line = self.family.write(said);
            Heard::ask(&self.world, &ask(&answer(index))).check(said, &line);
        }
    }

    pub fn check_strays(&self) {
        for index in 0..self.family.tokens.len() {
            let heard = Heard::ask(&self.world, &ask(&stray(index)));
            heard.check_without(self.family.hidden());
        }
    }

    /// Cuts the last answer after each of its tokens.
    pub fn check_cuts(&self) {
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

    /// Checks required calls, which follow a grammar that allows the model's output.
    pub fn check_required(&self) {
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

    /// Checks that the first call ends the answer if parallel calls are disabled.
    pub fn check_alone(&self) {
        for (index, said) in self.answers.iter().enumerate() {
            let mut body = ask(&answer(index));
            body["parallel_tool_calls"] = false.into();
            let mut said = said.clone();
            said.calls.truncate(1);
            Heard::ask(&self.world, &body).check(&said, &self.family.write(&said));
        }
    }

    /// Checks that a conversation continues after a call.
    pub fn check_results(&self) {
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
