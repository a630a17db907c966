//! Numbers and serialises the events of a response.

use std::sync::Arc;

use serde::Serialize;

pub(crate) struct WrittenEvent {
    pub(crate) name: &'static str,
    pub(crate) json: Vec<u8>,
}

pub(super) struct Events {
    is_silent: bool,
    next_number: u64,
    lane: Option<Arc<str>>,
    written: Vec<WrittenEvent>,
}

#[derive(Serialize)]
struct Numbered<'a, E> {
    #[serde(rename = "type")]
    name: &'static str,
    sequence_number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_id: Option<&'a str>,
    #[serde(flatten)]
    event: &'a E,
}

impl Events {
    /// If `is_silent`, events are dropped, as the answer is sent whole. Events of a named WebSocket lane have its name.
    pub(super) fn new(is_silent: bool, lane: Option<Arc<str>>) -> Self {
        Self {
            is_silent,
            next_number: 0,
            lane,
            written: Vec::new(),
        }
    }

    pub(super) fn is_silent(&self) -> bool {
        self.is_silent
    }

    pub(super) fn push(&mut self, name: &'static str, event: &impl Serialize) {
        if self.is_silent {
            return;
        }
        let numbered = Numbered {
            name,
            sequence_number: self.next_number,
            stream_id: self.lane.as_deref(),
            event,
        };
        let json = serde_json::to_vec(&numbered).expect("events have string keys only");
        self.next_number += 1;
        self.written.push(WrittenEvent { name, json });
    }

    pub(super) fn take(&mut self) -> Vec<WrittenEvent> {
        std::mem::take(&mut self.written)
    }
}
