//! The 32 mixed requests: endpoints, ways to sample, constraints and outputs.

use serde_json::{Value, json};

use crate::full_kills;

/// The tokens of the shortest output, in the test command.
const SHORT_TOKENS: usize = 64;
/// The same in full.
const LONG_TOKENS: usize = 150;
/// Each output is longer than the one before it, so that few end at once.
const STAGGER_TOKENS: usize = 2;

const STORY: &str = "Once upon a time a small boat lay at the shore of a lake. Every morning a girl came down the \
                     hill, untied the rope and rowed to the island, where an old man kept bees. He told her stories \
                     about the wind, and she told him about the town. One day the boat was gone, and the girl asked \
                     everyone at the shore about it.";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    Native,
    Completion,
    Chat,
    Responses,
    /// The native WebSocket.
    Socket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Greedy,
    /// Seeded, with all penalties.
    Penalties,
    /// JSON by a schema.
    Schema,
    Stops,
    Logprobs,
    /// Two samples.
    Two,
    /// A required call of a tool.
    Tools,
}

use Door::{Chat, Completion, Native, Responses, Socket};
use Kind::{Greedy, Logprobs, Penalties, Schema, Stops, Tools, Two};

const LOAD: [(Door, Kind); 32] = [
    (Native, Greedy),
    (Completion, Greedy),
    (Chat, Greedy),
    (Responses, Greedy),
    (Socket, Greedy),
    (Native, Penalties),
    (Completion, Penalties),
    (Chat, Penalties),
    (Responses, Penalties),
    (Socket, Penalties),
    (Native, Schema),
    (Chat, Schema),
    (Responses, Schema),
    (Native, Stops),
    (Completion, Stops),
    (Chat, Stops),
    (Native, Logprobs),
    (Completion, Logprobs),
    (Chat, Logprobs),
    (Socket, Logprobs),
    (Native, Two),
    (Chat, Two),
    (Chat, Tools),
    (Responses, Tools),
    (Native, Greedy),
    (Completion, Penalties),
    (Chat, Schema),
    (Native, Stops),
    (Socket, Penalties),
    (Native, Logprobs),
    (Responses, Greedy),
    (Native, Penalties),
];

pub struct Call {
    pub name: String,
    pub door: Door,
    pub body: Value,
}

pub fn calls() -> Vec<Call> {
    let calls = LOAD.iter().enumerate();
    calls.map(|(number, load)| call(number, *load)).collect()
}

fn call(number: usize, (door, kind): (Door, Kind)) -> Call {
    let body = match door {
        Native | Socket => native(number, door, kind),
        Completion | Chat | Responses => openai(number, door, kind),
    };
    Call {
        name: format!("{number} ({door:?}, {kind:?})"),
        door,
        body,
    }
}

impl Door {
    pub fn path(self) -> &'static str {
        match self {
            Native => "/generate",
            Completion => "/v1/completions",
            Chat => "/v1/chat/completions",
            Responses => "/v1/responses",
            Socket => "/v1/ws/generate",
        }
    }
}

/// A short request, for the gap after a death.
pub fn short() -> Value {
    json!({"prompt": STORY, "max_tokens": 8, "temperature": 0, "ignore_eos": true})
}

/// Four prompts have a longer common prefix than the others.
fn prompt(number: usize) -> String {
    format!("Story {}. {STORY} Part {number}:", number / 4)
}

fn base() -> usize {
    match full_kills() {
        Some(_) => LONG_TOKENS,
        None => SHORT_TOKENS,
    }
}

fn max_tokens(number: usize, kind: Kind) -> usize {
    match kind {
        // The grammar ends the output.
        Schema | Tools => base() * 6,
        _ => base() + STAGGER_TOKENS * number,
    }
}

/// An object with a list of numbers, whose text has about as many tokens as the other outputs.
fn schema() -> Value {
    let n = base() / 4;
    json!({
        "type": "object",
        "properties": {"seats": {
            "type": "array", "minItems": n, "maxItems": n,
            "items": {"type": "integer", "minimum": 100, "maximum": 999},
        }},
        "required": ["seats"],
        "additionalProperties": false,
    })
}

fn stops(number: usize) -> Value {
    match number % 2 {
        0 => json!(["\n\n\n\n", "zebra and", " the wind again"]),
        _ => json!([" and then", "zebra and"]),
    }
}

/// Sets the fields that all endpoints name alike.
fn add_sampling(body: &mut Value, number: usize, kind: Kind) {
    let mut set = |key: &str, value: Value| body[key] = value;
    match kind {
        Greedy | Stops | Logprobs => set("temperature", json!(0)),
        Schema | Tools | Two => set("temperature", json!(1)),
        Penalties => {
            set("temperature", json!(0.8));
            set("top_p", json!(0.9));
            set("frequency_penalty", json!(0.3));
            set("presence_penalty", json!(0.2));
            set("repetition_penalty", json!(1.1));
        }
    }
    if !matches!(kind, Schema | Tools) {
        set("ignore_eos", json!(true));
    }
    match kind {
        Stops => set("stop", stops(number)),
        Two => set("n", json!(2)),
        _ => (),
    }
}

fn native(number: usize, door: Door, kind: Kind) -> Value {
    let mut sampling = json!({
        "max_new_tokens": max_tokens(number, kind), "sampling_seed": number,
    });
    add_sampling(&mut sampling, number, kind);
    if kind == Schema {
        sampling["json_schema"] = schema().to_string().into();
    }
    let mut body = json!({"text": prompt(number), "sampling_params": sampling});
    if kind == Logprobs {
        body["return_logprob"] = true.into();
        body["logprob_start_len"] = 0.into();
        body["top_logprobs_num"] = 2.into();
    }
    if door == Socket {
        body["op"] = "generate".into();
        body["rid"] = format!("socket-{number}").into();
    } else {
        body["stream"] = true.into();
    }
    body
}

fn openai(number: usize, door: Door, kind: Kind) -> Value {
    let mut body = json!({"stream": true, "seed": number});
    add_sampling(&mut body, number, kind);
    let limit = max_tokens(number, kind).into();
    let prompt = prompt(number);
    match door {
        Chat => {
            body["messages"] = json!([{"role": "user", "content": prompt}]);
            body["max_completion_tokens"] = limit;
        }
        Responses => {
            body["input"] = prompt.into();
            body["max_output_tokens"] = limit;
        }
        Native | Completion | Socket => {
            body["prompt"] = prompt.into();
            body["max_tokens"] = limit;
        }
    }
    if door != Responses {
        body["stream_options"] = json!({"include_usage": true});
    }
    match (door, kind) {
        (Responses, Schema) => {
            let format = json!({"type": "json_schema", "name": "seats", "schema": schema()});
            body["text"] = json!({ "format": format });
        }
        (_, Schema) => {
            let named = json!({"name": "seats", "schema": schema()});
            body["response_format"] = json!({"type": "json_schema", "json_schema": named});
        }
        (Chat, Logprobs) => {
            body["logprobs"] = true.into();
            body["top_logprobs"] = 2.into();
        }
        (_, Logprobs) => body["logprobs"] = 2.into(),
        (_, Tools) => add_tool(&mut body, door),
        _ => (),
    }
    body
}

fn add_tool(body: &mut Value, door: Door) {
    let mut function = json!({"name": "reserve", "parameters": schema()});
    let tool = match door {
        Responses => {
            function["type"] = "function".into();
            function
        }
        _ => json!({"type": "function", "function": function}),
    };
    body["tools"] = json!([tool]);
    body["tool_choice"] = "required".into();
    body["parallel_tool_calls"] = false.into();
}
