//! Rebuilds the numbered events of a stored response.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::events::{Events, WrittenEvent};
use super::store::{StoredItem, StoredResponse};

/// Bytes of an event in addition to its texts, roughly an upper bound.
const EVENT_BYTES: usize = 256;
/// Upper bound on copies of a response's text (in deltas, in `done` events of text, part and item, in the response),
/// and on events of an item that are not deltas.
const COPIES: usize = 6;

/// The fields of an output item that a replay needs.
#[derive(Deserialize)]
struct Item<'a> {
    id: String,
    status: String,
    name: Option<String>,
    arguments: Option<String>,
    input: Option<String>,
    #[serde(borrow)]
    content: Option<[&'a RawValue; 1]>,
}

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(rename = "type")]
    kind: String,
    text: String,
    #[serde(borrow)]
    logprobs: Option<&'a RawValue>,
}

struct Replay<'a> {
    events: Events,
    lengths: std::slice::Iter<'a, u32>,
}

/// Returns an approximate upper bound of the events' bytes.
pub(super) fn bytes(stored: &StoredResponse) -> usize {
    COPIES * stored.json.len() + (stored.delta_lens.len() + COPIES) * EVENT_BYTES
}

/// Rebuilds all events that a stream of the response had, or would have had. Deltas have no log probabilities; the
/// event at the end of the text has all of them.
pub(super) fn events(stored: &StoredResponse) -> Vec<WrittenEvent> {
    let ended: Value = serde_json::from_slice(&stored.json).expect("responses are kept as JSON");
    let mut begun = ended.clone();
    begun["status"] = "in_progress".into();
    begun["output"] = json!([]);
    for name in ["completed_at", "incomplete_details", "usage"] {
        begun[name] = Value::Null;
    }
    let mut replay = Replay {
        events: Events::new(false, None),
        lengths: stored.delta_lens.iter(),
    };
    for name in ["response.created", "response.in_progress"] {
        replay.events.push(name, &json!({"response": begun}));
    }
    for (index, item) in stored.output.iter().enumerate() {
        replay.item(index, item);
    }
    let name = if ended["status"] == "incomplete" {
        "response.incomplete"
    } else {
        "response.completed"
    };
    replay.events.push(name, &json!({"response": ended}));
    replay.events.take()
}

impl Replay<'_> {
    fn item(&mut self, index: usize, item: &StoredItem) {
        let kept: Item<'_> = serde_json::from_str(&item.json).expect("items are kept as JSON");
        let done: Value = serde_json::from_str(&item.json).expect("items are kept as JSON");
        let added = added(done.clone());
        let added = json!({"output_index": index, "item": added});
        self.events.push("response.output_item.added", &added);
        let place = json!({"item_id": kept.id, "output_index": index});
        if let Some([part]) = kept.content {
            self.part(&place, part);
        }
        let is_whole = kept.status == "completed";
        if let Some(arguments) = kept.arguments {
            let kind = "response.function_call_arguments.delta";
            self.deltas(kind, &place, &arguments);
            if is_whole {
                let done = with(&place, json!({"name": kept.name, "arguments": arguments}));
                self.events
                    .push("response.function_call_arguments.done", &done);
            }
        }
        if let Some(input) = kept.input.filter(|_| is_whole) {
            let delta = with(&place, json!({"delta": input}));
            self.events
                .push("response.custom_tool_call_input.delta", &delta);
            let done = with(&place, json!({"input": input}));
            self.events
                .push("response.custom_tool_call_input.done", &done);
        }
        let done = json!({"output_index": index, "item": done});
        self.events.push("response.output_item.done", &done);
    }

    fn part(&mut self, place: &Value, raw: &RawValue) {
        let part: Part<'_> = serde_json::from_str(raw.get()).expect("parts are kept as JSON");
        let is_text = part.kind == "output_text";
        let part_place = with(place, json!({"content_index": 0}));
        let (delta, done, empty) = if is_text {
            (
                "response.output_text.delta",
                "response.output_text.done",
                json!({"type": part.kind, "text": "", "annotations": [], "logprobs": []}),
            )
        } else {
            (
                "response.reasoning_text.delta",
                "response.reasoning_text.done",
                json!({"type": part.kind, "text": ""}),
            )
        };
        let added = with(&part_place, json!({"part": empty}));
        self.events.push("response.content_part.added", &added);
        let delta_fields = if is_text {
            with(&part_place, json!({"logprobs": []}))
        } else {
            part_place.clone()
        };
        self.deltas(delta, &delta_fields, &part.text);
        let mut whole = with(&part_place, json!({"text": part.text}));
        if is_text {
            whole["logprobs"] = value(part.logprobs);
        }
        self.events.push(done, &whole);
        let part = with(&part_place, json!({"part": value(Some(raw))}));
        self.events.push("response.content_part.done", &part);
    }

    fn deltas(&mut self, name: &'static str, base: &Value, text: &str) {
        let mut rest = text;
        while !rest.is_empty() {
            let cut = self.lengths.next().map_or(rest.len(), |cut| *cut as usize);
            let (delta, later) = rest.split_at_checked(cut).unwrap_or((rest, ""));
            rest = later;
            self.events.push(name, &with(base, json!({"delta": delta})));
        }
    }
}

/// An item as it was before it had any content.
fn added(mut item: Value) -> Value {
    item["status"] = "in_progress".into();
    for (name, empty) in [
        ("content", json!([])),
        ("arguments", "".into()),
        ("input", "".into()),
        ("encrypted_content", Value::Null),
    ] {
        if let Some(field) = item.get_mut(name) {
            *field = empty;
        }
    }
    item
}

fn with(base: &Value, more: Value) -> Value {
    let mut all = base.clone();
    if let (Value::Object(all), Value::Object(more)) = (&mut all, more) {
        all.extend(more);
    }
    all
}

fn value(raw: Option<&RawValue>) -> Value {
    let parsed = raw.map(|raw| serde_json::from_str(raw.get()));
    parsed.map_or_else(|| json!([]), |parsed| parsed.expect("it was kept as JSON"))
}
