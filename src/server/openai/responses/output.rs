//! Converts the pieces of an answer to items of a response, and writes their events.
//!
//! One item is open at a time: it is closed before the next one begins. Clients refuse a delta before its item or its
//! part, and a response with an item that was not closed.

use std::sync::Arc;

use serde::Serialize;

use super::events::Events;
use super::ids::{ItemKind, ResponseId};
use super::items::{ItemStatus, OutputItem, Part};
use super::reasoning;
use super::tools::{ClientTool, ToolNames};
use crate::openai::chat::pieces::call_id;
use crate::openai::logprobs::ChatToken;
use souffleur_base::ids::RequestId;
use souffleur_request::OutputPiece;

pub(super) struct OutputSettings {
    pub(super) id: ResponseId,
    pub(super) rid: RequestId,
    pub(super) names: Arc<ToolNames>,
    pub(super) hides_reasoning: bool,
    /// Reasoning is also sent as a blob, in `encrypted_content`.
    pub(super) wants_encrypted: bool,
}

pub(super) struct Output {
    settings: OutputSettings,
    closed: Vec<OutputItem>,
    open: Option<OpenItem>,
    n_calls: usize,
    delta_lens: Vec<u32>,
    /// Log probabilities of tokens whose text is still held back.
    held_logprobs: Vec<ChatToken>,
}

enum OpenItem {
    Reasoning {
        id: String,
        text: String,
    },
    Message {
        id: String,
        text: String,
        logprobs: Vec<ChatToken>,
    },
    Call {
        id: String,
        call_id: String,
        tool: ClientTool,
        arguments: String,
    },
}

#[derive(Serialize)]
struct ItemEvent<'a> {
    output_index: usize,
    item: &'a OutputItem,
}

#[derive(Serialize)]
struct PartEvent<'a> {
    item_id: &'a str,
    output_index: usize,
    content_index: usize,
    part: &'a Part,
}

#[derive(Serialize)]
struct ContentEvent<'a, T> {
    item_id: &'a str,
    output_index: usize,
    content_index: usize,
    #[serde(flatten)]
    data: T,
}

#[derive(Serialize)]
struct CallEvent<'a, T> {
    item_id: &'a str,
    output_index: usize,
    #[serde(flatten)]
    data: T,
}

#[derive(Serialize)]
struct Delta<'a> {
    delta: &'a str,
}

#[derive(Serialize)]
struct TextDelta<'a> {
    delta: &'a str,
    logprobs: &'a [ChatToken],
}

#[derive(Serialize)]
struct Done<'a> {
    text: &'a str,
}

#[derive(Serialize)]
struct TextDone<'a> {
    text: &'a str,
    logprobs: &'a [ChatToken],
}

#[derive(Serialize)]
struct ArgumentsDone<'a> {
    name: &'a str,
    arguments: &'a str,
}

#[derive(Serialize)]
struct InputDone<'a> {
    input: &'a str,
}

impl Output {
    pub(super) fn new(settings: OutputSettings) -> Self {
        Self {
            settings,
            closed: Vec::new(),
            open: None,
            n_calls: 0,
            delta_lens: Vec::new(),
            held_logprobs: Vec::new(),
        }
    }

    pub(super) fn items(&self) -> &[OutputItem] {
        &self.closed
    }

    /// Takes the lengths of the deltas so far, from which the events can be replayed.
    pub(super) fn take_delta_lens(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.delta_lens)
    }

    /// Adds `text` of an answer that is not parsed, otherwise `pieces`, and the log probabilities of their tokens.
    pub(super) fn push(
        &mut self,
        text: String,
        pieces: Vec<OutputPiece>,
        logprobs: Vec<ChatToken>,
        events: &mut Events,
    ) {
        let is_text = |piece: &OutputPiece| matches!(piece, OutputPiece::Text(_));
        // Reasoning and calls have no field for log probabilities.
        if !pieces.is_empty() && !pieces.iter().any(is_text) {
            self.held_logprobs.clear();
        } else {
            self.held_logprobs.extend(logprobs);
        }
        self.add_text(text, events);
        for piece in pieces {
            match piece {
                OutputPiece::Text(text) => self.add_text(text, events),
                OutputPiece::Reasoning(text) => self.add_reasoning(&text, events),
                OutputPiece::CallStart { name } => self.start_call(&name, events),
                OutputPiece::CallArguments(text) => self.add_arguments(&text, events),
                OutputPiece::CallEnd => self.end(ItemStatus::Completed, events),
                OutputPiece::CallBroken { text } => self.break_call(text, events),
            }
        }
    }

    /// Closes the item that is open. An open call is incomplete, regardless of `status`.
    pub(super) fn close(&mut self, status: ItemStatus, events: &mut Events) {
        let status = match self.open {
            Some(OpenItem::Call { .. }) => ItemStatus::Incomplete,
            _ => status,
        };
        self.end(status, events);
    }

    fn end(&mut self, status: ItemStatus, events: &mut Events) {
        let Some(open) = self.open.take() else {
            return;
        };
        let item = self.closed_item(open, status, events);
        let output_index = self.closed.len();
        let event = ItemEvent {
            output_index,
            item: &item,
        };
        events.push("response.output_item.done", &event);
        self.closed.push(item);
    }

    /// Ends a malformed call. It becomes text in an answer that is sent whole, and an incomplete item in a stream.
    fn break_call(&mut self, text: String, events: &mut Events) {
        if !matches!(self.open, Some(OpenItem::Call { .. })) {
            return;
        }
        if events.is_silent() {
            self.open = None;
            self.add_text(text, events);
        } else {
            self.end(ItemStatus::Incomplete, events)
        }
    }

    fn add_text(&mut self, more: String, events: &mut Events) {
        if more.is_empty() {
            return;
        }
        if !matches!(self.open, Some(OpenItem::Message { .. })) {
            self.open_message(events);
        }
        let new = std::mem::take(&mut self.held_logprobs);
        if let Some(OpenItem::Message { id, text, logprobs }) = &mut self.open {
            let data = TextDelta {
                delta: &more,
                logprobs: &new,
            };
            let delta = of_content(id, self.closed.len(), data);
            events.push("response.output_text.delta", &delta);
            self.delta_lens.push(more.len() as u32);
            text.push_str(&more);
            logprobs.extend(new);
        }
    }

    fn add_reasoning(&mut self, more: &str, events: &mut Events) {
        if more.is_empty() || self.settings.hides_reasoning {
            return;
        }
        if !matches!(self.open, Some(OpenItem::Reasoning { .. })) {
            self.open_reasoning(events);
        }
        if let Some(OpenItem::Reasoning { id, text }) = &mut self.open {
            let delta = of_content(id, self.closed.len(), Delta { delta: more });
            events.push("response.reasoning_text.delta", &delta);
            self.delta_lens.push(more.len() as u32);
            text.push_str(more);
        }
    }

    fn add_arguments(&mut self, more: &str, events: &mut Events) {
        let Some(OpenItem::Call {
            id,
            tool,
            arguments,
            ..
        }) = &mut self.open
        else {
            return;
        };
        if more.is_empty() {
            return;
        }
        arguments.push_str(more);
        // The input of a custom tool is parsed once its JSON is complete.
        if !tool.is_custom {
            let delta = of_call(id, self.closed.len(), Delta { delta: more });
            events.push("response.function_call_arguments.delta", &delta);
            self.delta_lens.push(more.len() as u32);
        }
    }

    fn open_message(&mut self, events: &mut Events) {
        let id = self.begin(ItemKind::Message, events);
        let item = OutputItem::Message {
            id: id.clone(),
            status: ItemStatus::InProgress,
            role: "assistant",
            content: Vec::new(),
        };
        self.announce(&item, events);
        self.announce_part(&id, &Part::text(String::new(), Vec::new()), events);
        let (text, logprobs) = (String::new(), Vec::new());
        self.open = Some(OpenItem::Message { id, text, logprobs });
    }

    fn open_reasoning(&mut self, events: &mut Events) {
        let id = self.begin(ItemKind::Reasoning, events);
        let item = OutputItem::Reasoning {
            id: id.clone(),
            status: ItemStatus::InProgress,
            summary: [],
            content: Vec::new(),
            encrypted_content: None,
        };
        self.announce(&item, events);
        self.announce_part(&id, &Part::reasoning(String::new()), events);
        let text = String::new();
        self.open = Some(OpenItem::Reasoning { id, text });
    }

    fn start_call(&mut self, name: &str, events: &mut Events) {
        let tool = self.settings.names.client_tool(name);
        let kind = if tool.is_custom {
            ItemKind::CustomCall
        } else {
            ItemKind::FunctionCall
        };
        let id = self.begin(kind, events);
        let call_id = call_id(&self.settings.rid, self.n_calls);
        self.n_calls += 1;
        let status = ItemStatus::InProgress;
        let item = call_item(&id, &call_id, &tool, String::new(), status);
        self.announce(&item, events);
        self.open = Some(OpenItem::Call {
            id,
            call_id,
            tool,
            arguments: String::new(),
        });
    }

    /// Closes the open item, and returns the id of the next one.
    fn begin(&mut self, kind: ItemKind, events: &mut Events) -> String {
        self.close(ItemStatus::Completed, events);
        self.settings.id.item(kind, self.closed.len())
    }

    fn announce(&self, item: &OutputItem, events: &mut Events) {
        let output_index = self.closed.len();
        events.push(
            "response.output_item.added",
            &ItemEvent { output_index, item },
        );
    }

    fn announce_part(&self, item_id: &str, part: &Part, events: &mut Events) {
        events.push("response.content_part.added", &self.of_part(item_id, part));
    }

    fn of_part<'a>(&self, item_id: &'a str, part: &'a Part) -> PartEvent<'a> {
        PartEvent {
            item_id,
            output_index: self.closed.len(),
            content_index: 0,
            part,
        }
    }

    fn closed_item(&self, open: OpenItem, status: ItemStatus, events: &mut Events) -> OutputItem {
        let index = self.closed.len();
        match open {
            OpenItem::Reasoning { id, text } => {
                let done = of_content(&id, index, Done { text: &text });
                events.push("response.reasoning_text.done", &done);
                let wants_encrypted = self.settings.wants_encrypted;
                let encrypted_content = wants_encrypted.then(|| reasoning::encode(&text));
                let part = Part::reasoning(text);
                events.push("response.content_part.done", &self.of_part(&id, &part));
                OutputItem::Reasoning {
                    id,
                    status,
                    summary: [],
                    content: vec![part],
                    encrypted_content,
                }
            }
            OpenItem::Message { id, text, logprobs } => {
                let data = TextDone {
                    text: &text,
                    logprobs: &logprobs,
                };
                events.push("response.output_text.done", &of_content(&id, index, data));
                let part = Part::text(text, logprobs);
                events.push("response.content_part.done", &self.of_part(&id, &part));
                OutputItem::Message {
                    id,
                    status,
                    role: "assistant",
                    content: vec![part],
                }
            }
            OpenItem::Call {
                id,
                call_id,
                tool,
                arguments,
            } => {
                let final_text = match (tool.is_custom, status) {
                    (true, ItemStatus::Completed) => custom_input(arguments),
                    // An incomplete input is left out, because clients would execute it.
                    (true, _) => String::new(),
                    (false, _) => arguments,
                };
                if status == ItemStatus::Completed {
                    push_call_done(&id, index, &tool, &final_text, events);
                }
                call_item(&id, &call_id, &tool, final_text, status)
            }
        }
    }
}

fn push_call_done(
    id: &str,
    index: usize,
    tool: &ClientTool,
    final_text: &str,
    events: &mut Events,
) {
    if tool.is_custom {
        let delta = of_call(id, index, Delta { delta: final_text });
        events.push("response.custom_tool_call_input.delta", &delta);
        let done = of_call(id, index, InputDone { input: final_text });
        events.push("response.custom_tool_call_input.done", &done);
        return;
    }
    let data = ArgumentsDone {
        name: &tool.name,
        arguments: final_text,
    };
    let done = of_call(id, index, data);
    events.push("response.function_call_arguments.done", &done);
}

fn call_item(
    id: &str,
    call_id: &str,
    tool: &ClientTool,
    final_text: String,
    status: ItemStatus,
) -> OutputItem {
    let (id, call_id) = (id.to_owned(), call_id.to_owned());
    let (name, namespace) = (tool.name.clone(), tool.namespace.clone());
    if tool.is_custom {
        OutputItem::CustomToolCall {
            id,
            status,
            call_id,
            name,
            namespace,
            input: final_text,
        }
    } else {
        OutputItem::FunctionCall {
            id,
            status,
            call_id,
            name,
            namespace,
            arguments: final_text,
        }
    }
}

/// The argument `input` of a custom tool's call. Arguments in another form are used as the input.
fn custom_input(arguments: String) -> String {
    #[derive(serde::Deserialize)]
    struct Arguments {
        input: String,
    }
    match serde_json::from_str::<Arguments>(&arguments) {
        Ok(Arguments { input }) => input,
        Err(_) => arguments,
    }
}

fn of_content<T>(item_id: &str, output_index: usize, data: T) -> ContentEvent<'_, T> {
    ContentEvent {
        item_id,
        output_index,
        content_index: 0,
        data,
    }
}

fn of_call<T>(item_id: &str, output_index: usize, data: T) -> CallEvent<'_, T> {
    CallEvent {
        item_id,
        output_index,
        data,
    }
}
