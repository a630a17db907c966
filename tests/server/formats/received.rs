//! Answers as clients receive them, whole and streamed.

use serde_json::{Value, json};

use super::family::{Answer, Call, Family};
use crate::http::{post, stream};
use crate::world::World;

const PATH: &str = "/v1/chat/completions";

/// An answer that a client has received.
#[derive(Debug, Default, PartialEq)]
pub struct Reply {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<ReceivedCall>,
    pub finish_reason: String,
    pub completion_tokens: u64,
    /// The name and the arguments so far of a call that the stream did not complete.
    pub partial: Option<(String, String)>,
}

/// A call that a client has assembled.
#[derive(Debug, PartialEq)]
pub struct ReceivedCall {
    pub id: String,
    pub name: String,
    pub arguments: String,
}

impl Reply {
    /// Sends a request with and without streaming, and returns the answer. Both answers must be equal, except that the
    /// stream may contain the start of a truncated call.
    #[track_caller]
    pub fn ask(world: &World, body: &Value) -> Self {
        let mut body = body.clone();
        body["rid"] = "asked-twice".into();
        let whole = Self::whole(&post(world.addr, PATH, &body).ok());
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        let events = stream(world.addr, PATH, &body).rest();
        let mut streamed = Self::streamed(&events);
        let partial = streamed.calls.get(whole.calls.len()).map(|call| {
            assert_eq!(whole.finish_reason, "length", "{body}");
            (call.name.clone(), call.arguments.clone())
        });
        assert!(streamed.calls.len() <= whole.calls.len() + 1, "{body}");
        streamed.calls.truncate(whole.calls.len());
        assert_eq!(streamed, whole, "{body}");
        Self { partial, ..whole }
    }

    fn whole(answer: &Value) -> Self {
        let (choice, message) = (&answer["choices"][0], &answer["choices"][0]["message"]);
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        let call = |call: &Value| {
            assert_eq!(call["type"], "function");
            ReceivedCall {
                id: text(&call["id"]),
                name: text(&call["function"]["name"]),
                arguments: text(&call["function"]["arguments"]),
            }
        };
        Self {
            reasoning: text(&message["reasoning_content"]),
            content: text(&message["content"]),
            calls: calls.map(call).collect(),
            finish_reason: text(&choice["finish_reason"]),
            completion_tokens: tokens(answer),
            partial: None,
        }
    }

    fn streamed(events: &[Value]) -> Self {
        let mut received = Self::default();
        let (usage, chunks) = events.split_last().expect("events");
        received.completion_tokens = tokens(usage);
        for choice in chunks.iter().map(|chunk| &chunk["choices"][0]) {
            let delta = &choice["delta"];
            assert_eq!(received.finish_reason, "", "chunk after the finish reason");
            received.reasoning += &text(&delta["reasoning_content"]);
            received.content += &text(&delta["content"]);
            received.finish_reason = text(&choice["finish_reason"]);
            for part in delta["tool_calls"].as_array().into_iter().flatten() {
                received.add_call(part);
            }
        }
        received
    }

    /// Adds a delta of a call. The first delta has the id and the name; later deltas have only arguments.
    fn add_call(&mut self, part: &Value) {
        let (id, function) = (text(&part["id"]), &part["function"]);
        let arguments = text(&function["arguments"]);
        if !id.is_empty() {
            assert_eq!(part["index"], self.calls.len());
            let name = text(&function["name"]);
            self.calls.push(ReceivedCall {
                id,
                name,
                arguments,
            });
            return;
        }
        assert_eq!(part["index"], self.calls.len() - 1);
        assert!(function["name"].is_null(), "{part}");
        self.calls.last_mut().expect("a call with an id").arguments += &arguments;
    }

    /// Checks that this is the wanted answer, with valid and distinct call ids.
    #[track_caller]
    pub fn check(&self, wanted: &Answer, line: &str) {
        assert_eq!(self.reasoning, wanted.reasoning, "{line:?}");
        assert_eq!(self.content, wanted.content, "{line:?}");
        let received = self
            .calls
            .iter()
            .map(|call| (call.name.as_str(), call.arguments.clone()));
        let expected = wanted
            .calls
            .iter()
            .map(|call: &Call| (call.name, call.json()));
        let (received, expected): (Vec<_>, Vec<_>) = (received.collect(), expected.collect());
        assert_eq!(received, expected, "{line:?}");
        let reason = if wanted.calls.is_empty() {
            "stop"
        } else {
            "tool_calls"
        };
        assert_eq!(self.finish_reason, reason, "{line:?}");
        let mut ids: Vec<&str> = self.calls.iter().map(|call| call.id.as_str()).collect();
        assert!(
            ids.iter()
                .all(|id| id.len() == 29 && id.starts_with("call_")),
            "{ids:?}"
        );
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), self.calls.len());
    }

    /// Checks that this is a prefix of the wanted answer. Each part may end with the start of a tag that is plain text,
    /// and the content with the start of a call. An answer that is not streamed has complete calls only.
    #[track_caller]
    pub fn check_prefix(&self, family: &Family, wanted: &Answer) {
        let line = family.write(wanted);
        let context = format!("{} tokens of {line:?}: {self:?}", self.completion_tokens);
        let openings = family.visible_text(&family.write(&Answer {
            reasoning: "",
            content: "",
            ..wanted.clone()
        }));
        let is_tag = |rest: &str| {
            let is_part = |tag: &str| tag.len() > rest.len() && tag.starts_with(rest);
            family.text_tags.iter().any(|tag| is_part(tag))
        };
        let is_opening = |rest: &str| is_tag(rest) || is_part_of_tag(&openings, rest.trim());
        let check = |expected: &str, received: &str, may_follow: &dyn Fn(&str) -> bool| {
            let rest = rest_of(received, expected);
            assert!(rest.is_empty() || may_follow(rest), "{rest:?} in {context}");
        };
        assert_eq!(self.finish_reason, "length", "{context}");
        check(wanted.reasoning, &self.reasoning, &is_tag);
        check(wanted.content, &self.content, &is_opening);
        assert!(self.calls.len() <= wanted.calls.len(), "{context}");
        for (received, expected) in self.calls.iter().zip(&wanted.calls) {
            assert_eq!(received.name, expected.name, "{context}");
            assert_eq!(received.arguments, expected.json(), "{context}");
        }
        if let Some((name, arguments)) = &self.partial {
            let expected = &wanted.calls[self.calls.len()];
            assert_eq!(name, expected.name, "{context}");
            check(&expected.json(), arguments, &is_tag);
        }
    }

    /// Checks that none of these tags is in the text that a client shows.
    #[track_caller]
    pub fn check_without(&self, tags: &[&str]) {
        for tag in tags {
            assert!(!self.reasoning.contains(tag), "{tag} in {self:?}");
            assert!(!self.content.contains(tag), "{tag} in {self:?}");
        }
    }
}

/// Whether `rest` is a start of the calls in `opening` that is too short to be recognised: it ends within the first tag
/// or, in formats without a tag, before the end of the tool's name.
fn is_part_of_tag(opening: &str, rest: &str) -> bool {
    let opening = opening.trim_start();
    let end = match opening.chars().next() {
        Some('{') => opening.find("\","),
        Some('[') => opening.find([']', '(']),
        _ => opening.find('>'),
    };
    end.is_some_and(|end| rest.len() <= end && opening.starts_with(rest))
}

/// The rest of a truncated text after its common prefix with the wanted text. An incomplete character at the
/// end is ignored.
fn rest_of<'a>(received: &'a str, expected: &str) -> &'a str {
    let received = received.trim_end_matches('\u{fffd}');
    let pairs = received.char_indices().zip(expected.chars());
    let n_common = pairs
        .take_while(|((_, received), expected)| received == expected)
        .count();
    let end = received.char_indices().nth(n_common);
    end.map_or("", |(end, _)| &received[end..])
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn tokens(answer: &Value) -> u64 {
    let tokens = &answer["usage"]["completion_tokens"];
    tokens.as_u64().expect("a number")
}
