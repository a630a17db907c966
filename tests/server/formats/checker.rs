//! Checks the answers that clients receive from a scripted model, for every kind of output of a model family.

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::checkpoint;
use super::family::{Answer, Call, Family};
use super::received::Reply;
use crate::world::World;

fn weather(city: &str, days: u32) -> Call {
    let place = json!({"row": days, "seat": null});
    let fields =
        json!({"city": city, "days": days, "sure": true, "tags": ["a", "b c"], "place": place});
    call("weather", fields)
}

pub fn call(name: &'static str, arguments: Value) -> Call {
    let Value::Object(arguments) = arguments else {
        panic!("the arguments must be an object");
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
fn answers() -> Vec<Answer> {
    let (reasoning, content) = (
        "Which one?\n\nBoth \"<b>\".",
        "Grüße, 観客 🎭!\n\n[1] {\"a\": 1}",
    );
    let tricky = weather("São \"Tomé\" \\ C:\\n\n{[<b>]} 🎭; </x>", 3);
    let clock = call("clock", Value::Object(Map::new()));
    let answer = |reasoning, content, calls: &[&Call]| Answer {
        reasoning,
        content,
        calls: calls.iter().map(|call| (*call).clone()).collect(),
    };
    let oslo = weather("Oslo", 1);
    vec![
        answer("", content, &[]),
        answer("", "", &[&tricky]),
        answer("", "", &[&clock]),
        answer("", "", &[&tricky, &oslo]),
        answer("", "Well.", &[&clock, &tricky, &oslo]),
        answer(reasoning, content, &[]),
        answer(reasoning, "", &[&tricky]),
        answer(reasoning, "Well.", &[&clock]),
        answer(reasoning, "Well.", &[&tricky, &clock]),
    ]
}

/// A request with this question and tools to call.
pub fn ask(question: &str) -> Value {
    json!({"messages": [{"role": "user", "content": question}], "tools": tools()})
}

/// A server with a scripted model that produces all kinds of outputs of a family.
pub struct Checker<'a> {
    family: &'a Family,
    answers: Vec<Answer>,
    pub world: World,
    _folder: TempDir,
}

/// The cue of the answer with this index: the scripted model replies to it with the answer.
fn answer_cue(index: usize) -> String {
    format!("Question {index}?")
}

/// The cue of the answer with this index in the form that a grammar allows.
fn grammar_cue(index: usize) -> String {
    format!("Order {index}!")
}

/// The cue of a text that contains the marker with this index where it has no meaning.
fn stray_cue(index: usize) -> String {
    format!("Stray {index}.")
}

impl<'a> Checker<'a> {
    pub fn new(family: &'a Family) -> Self {
        let mut answers = answers();
        answers.retain(|wanted| family.can_produce(wanted));
        let mut lines = Vec::new();
        for (index, wanted) in answers.iter().enumerate() {
            lines.push((answer_cue(index), family.write(wanted)));
            lines.push((grammar_cue(index), family.write_trimmed(wanted)));
        }
        for (index, tag) in family.tokens.iter().enumerate() {
            lines.push((stray_cue(index), format!("a{tag}b")));
        }
        let lines: Vec<(&str, &str)> = lines
            .iter()
            .map(|(cue, line)| (cue.as_str(), line.as_str()))
            .collect();
        let folder = checkpoint::create(family);
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
        for (index, wanted) in self.answers.iter().enumerate() {
            let line = self.family.write(wanted);
            Reply::ask(&self.world, &ask(&answer_cue(index))).check(wanted, &line);
        }
    }

    pub fn check_stray_markers(&self) {
        for index in 0..self.family.tokens.len() {
            let received = Reply::ask(&self.world, &ask(&stray_cue(index)));
            received.check_without(self.family.hidden());
        }
    }

    /// Cuts the last answer after each of its tokens.
    pub fn check_truncated(&self) {
        let index = self.answers.len() - 1;
        let (wanted, mut body) = (&self.answers[index], ask(&answer_cue(index)));
        let n_tokens = Reply::ask(&self.world, &body).completion_tokens;
        for max_tokens in 1..n_tokens {
            body["max_tokens"] = max_tokens.into();
            let received = Reply::ask(&self.world, &body);
            assert_eq!(received.completion_tokens, max_tokens);
            received.check_prefix(self.family, wanted);
            received.check_without(self.family.hidden());
        }
    }

    /// Checks calls that `tool_choice` requires, for outputs that the grammar of required calls allows.
    pub fn check_required(&self) {
        let numbered = self.answers.iter().enumerate();
        for (index, wanted) in numbered.filter(|(_, wanted)| self.family.grammar_allows(wanted)) {
            let line = self.family.write_trimmed(wanted);
            let mut body = ask(&grammar_cue(index));
            body["tool_choice"] = "required".into();
            Reply::ask(&self.world, &body).check(wanted, &line);
            if let [call] = wanted.calls.as_slice() {
                let function = json!({"name": call.name});
                body["tool_choice"] = json!({"type": "function", "function": function});
                Reply::ask(&self.world, &body).check(wanted, &line);
            }
        }
    }

    /// Checks that the first call ends the answer if parallel calls are disabled.
    pub fn check_single_call(&self) {
        for (index, wanted) in self.answers.iter().enumerate() {
            let mut body = ask(&answer_cue(index));
            body["parallel_tool_calls"] = false.into();
            let mut wanted = wanted.clone();
            wanted.calls.truncate(1);
            Reply::ask(&self.world, &body).check(&wanted, &self.family.write(&wanted));
        }
    }

    /// Checks that a conversation continues after a call.
    pub fn check_tool_results(&self) {
        let wanted = &self.answers[0];
        let mut body = ask("Now?");
        let function = json!({"name": "clock", "arguments": "{}"});
        let messages = body["messages"].as_array_mut().expect("a list");
        messages.extend([
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "call_1", "type": "function", "function": function}]}),
            json!({"role": "tool", "tool_call_id": "call_1", "content": answer_cue(0)}),
        ]);
        Reply::ask(&self.world, &body).check(wanted, &self.family.write(wanted));
    }
}
