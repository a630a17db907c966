//! Answers as clients receive them, whole and streamed.

use serde_json::{Value, json};

use super::family::{Call, Family, Said};
use crate::http::{post, stream};
use crate::world::World;

const PATH: &str = "/v1/chat/completions";

#[derive(Debug, Default, PartialEq)]
pub struct Heard {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<HeardCall>,
    pub finish_reason: String,
    pub completion_tokens: u64,
    /// Name and arguments of a call that a stream began but did not end.
    pub half: Option<(String, String)>,
}

/// A call that a client has assembled.
#[derive(Debug, PartialEq)]
pub struct HeardCall {
    pub id: String,
    pub name: String,
    pub arguments: String,
}

impl Heard {
    /// The answer to a request, which must be the same whole and streamed, except for a truncated call: the stream has
    /// sent its beginning.
    #[track_caller]
    pub fn ask(world: &World, body: &Value) -> Self {
        let mut body = body.clone();
        body["rid"] = "asked-twice".into();
        let whole = Self::whole(&post(world.addr, PATH, &body).ok());
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        let events = stream(world.addr, PATH, &body).rest();
        let mut streamed = Self::streamed(&events);
        let half = streamed.calls.get(whole.calls.len()).map(|call| {
            assert_eq!(whole.finish_reason, "length", "{body}");
            (call.name.clone(), call.arguments.clone())
        });
        assert!(streamed.calls.len() <= whole.calls.len() + 1, "{body}");
        streamed.calls.truncate(whole.calls.len());
        assert_eq!(streamed, whole, "{body}");
        Self { half, ..whole }
    }

    fn whole(answer: &Value) -> Self {
        let (choice, message) = (&answer["choices"][0], &answer["choices"][0]["message"]);
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        let call = |call: &Value| {
            assert_eq!(call["type"], "function");
            HeardCall {
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
            half: None,
        }
    }

    fn streamed(events: &[Value]) -> Self {
        let mut heard = Self::default();
        let (usage, chunks) = events.split_last().expect("events");
        heard.completion_tokens = tokens(usage);
        for choice in chunks.iter().map(|chunk| &chunk["choices"][0]) {
            let delta = &choice["delta"];
            assert_eq!(heard.finish_reason, "", "a chunk follows the finish reason");
            heard.reasoning += &text(&delta["reasoning_content"]);
            heard.content += &text(&delta["content"]);
            heard.finish_reason = text(&choice["finish_reason"]);
            for part in delta["tool_calls"].as_array().into_iter().flatten() {
                heard.add_call(part);
            }
        }
        heard
    }

    /// Takes id and name from the first part of a call, and the arguments from all later ones.
    fn add_call(&mut self, part: &Value) {
        let (id, function) = (text(&part["id"]), &part["function"]);
        let arguments = text(&function["arguments"]);
        if !id.is_empty() {
            assert_eq!(part["index"], self.calls.len());
            let name = text(&function["name"]);
            self.calls.push(HeardCall {
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

    /// Checks that this is the intended answer.
    #[track_caller]
    pub fn check(&self, said: &Said, line: &str) {
        assert_eq!(self.reasoning, said.reasoning, "{line:?}");
        assert_eq!(self.content, said.content, "{line:?}");
        let heard = self
            .calls
            .iter()
            .map(|call| (call.name.as_str(), call.arguments.clone()));
        let meant = said
            .calls
            .iter()
            .map(|call: &Call| (call.name, call.json()));
        let (heard, meant): (Vec<_>, Vec<_>) = (heard.collect(), meant.collect());
        assert_eq!(heard, meant, "{line:?}");
        let reason = if said.calls.is_empty() {
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

    /// Checks that this is a prefix of the intended answer. A truncated opening of a call yields nothing, and a
    /// truncated tag that is no token is text. Whole answers have whole calls only.
    #[track_caller]
    pub fn check_cut(&self, family: &Family, said: &Said) {
        let line = family.write(said);
        let place = format!("{} tokens of {line:?}: {self:?}", self.completion_tokens);
        let openings = family.shown(&family.write(&Said {
            reasoning: "",
            content: "",
            ..said.clone()
        }));
        let is_tag = |rest: &str| {
            let is_part = |tag: &str| tag.len() > rest.len() && tag.starts_with(rest);
            family.written_tags.iter().any(|tag| is_part(tag))
        };
        let is_opening = |rest: &str| is_tag(rest) || is_part_of_tag(&openings, rest.trim());
        let check = |meant: &str, heard: &str, may_follow: &dyn Fn(&str) -> bool| {
            let rest = rest_of(heard, meant);
            assert!(rest.is_empty() || may_follow(rest), "{rest:?} in {place}");
        };
        assert_eq!(self.finish_reason, "length", "{place}");
        check(said.reasoning, &self.reasoning, &is_tag);
        check(said.content, &self.content, &is_opening);
        assert!(self.calls.len() <= said.calls.len(), "{place}");
        for (heard, meant) in self.calls.iter().zip(&said.calls) {
            assert_eq!(heard.name, meant.name, "{place}");
            assert_eq!(heard.arguments, meant.json(), "{place}");
        }
        if let Some((name, arguments)) = &self.half {
            let meant = &said.calls[self.calls.len()];
            assert_eq!(name, meant.name, "{place}");
            check(&meant.json(), arguments, &is_tag);
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

/// Whether a text is a proper prefix of the first tag of an opening or, without a tag, of the part that names
/// the tool.
fn is_part_of_tag(opening: &str, rest: &str) -> bool {
    let opening = opening.trim_start();
    let end = match opening.chars().next() {
        Some('{') => opening.find("\","),
        Some('[') => opening.find([']', '(']),
        _ => opening.find('>'),
    };
    end.is_some_and(|end| rest.len() <= end && opening.starts_with(rest))
}

/// The rest of a truncated text after its common prefix with the intended text. An incomplete character at the
/// end is ignored.
fn rest_of<'a>(heard: &'a str, meant: &str) -> &'a str {
    let heard = heard.trim_end_matches('\u{fffd}');
    let pairs = heard.char_indices().zip(meant.chars());
    let n_common = pairs
        .take_while(|((_, heard), meant)| heard == meant)
        .count();
    let end = heard.char_indices().nth(n_common);
    end.map_or("", |(end, _)| &heard[end..])
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn tokens(answer: &Value) -> u64 {
    let tokens = &answer["usage"]["completion_tokens"];
    tokens.as_u64().expect("a number")
}
