//! Requests that came together: each of their prompts is here once, however many samples are wanted of it.
//!
//! It is made where the requests come from: to look at a large prompt takes time that the Tokenizer has not.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde_json::{Map, Value};

use crate::request::{CancelFlag, GenerateRequest, Prompt};
use crate::sink::EventSink;

/// One request and the way back to its client.
#[derive(Debug)]
pub struct Asked {
    /// The request.
    pub request: GenerateRequest,
    /// Where the events go. It holds the admission permit, or takes one when the Tokenizer reads the request.
    pub sink: EventSink,
    /// Raised by the client to cancel, before it sends `CancelRequest`.
    pub cancel: CancelFlag,
}

/// The distinct prompts of some requests.
#[derive(Debug, Default)]
pub(crate) struct Prompts {
    distinct: Vec<Weighed>,
    of_request: Vec<usize>,
}

/// A prompt and what it takes to encode it.
#[derive(Debug)]
pub(crate) struct Weighed {
    pub(crate) prompt: Prompt,
    /// Bytes of text and values of JSON that are read to encode it; none for token ids.
    pub(crate) weight: usize,
    estimated_tokens: usize,
}

impl Prompts {
    /// Requests have one prompt if they share its memory.
    pub(crate) fn of<'a>(requests: impl Iterator<Item = &'a GenerateRequest>) -> Self {
        let mut prompts = Self::default();
        let mut known = FxHashMap::default();
        for request in requests {
            let index = *known.entry(address(&request.prompt)).or_insert_with(|| {
                prompts.distinct.push(Weighed::new(&request.prompt));
                prompts.distinct.len() - 1
            });
            prompts.of_request.push(index);
        }
        prompts
    }

    /// About how many tokens the prompt of a request has.
    pub(crate) fn estimated_tokens(&self, request: usize) -> usize {
        self.distinct[self.of_request[request]].estimated_tokens
    }

    /// Which of the distinct prompts is that of a request.
    pub(crate) fn index_of(&self, request: usize) -> usize {
        self.of_request[request]
    }

    /// The prompts, each once.
    pub(crate) fn into_distinct(self) -> Vec<Weighed> {
        self.distinct
    }
}

impl Weighed {
    fn new(prompt: &Prompt) -> Self {
        let values = match prompt {
            Prompt::Text(_) | Prompt::Tokens(_) => 0,
            Prompt::Chat(chat) => {
                let tools = chat.tools.as_ref().map_or(0, values_of);
                values_of(&chat.messages) + tools + values_of_fields(&chat.template_kwargs)
            }
        };
        Self {
            prompt: prompt.clone(),
            weight: prompt.text_bytes() + values,
            estimated_tokens: prompt.estimated_tokens(),
        }
    }
}

fn address(prompt: &Prompt) -> *const () {
    match prompt {
        Prompt::Text(text) => Arc::as_ptr(text).cast(),
        Prompt::Tokens(tokens) => Arc::as_ptr(tokens).cast(),
        Prompt::Chat(chat) => Arc::as_ptr(chat).cast(),
    }
}

/// Empty lists have no text, and take time to render all the same.
fn values_of(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(values_of).sum::<usize>(),
        Value::Object(fields) => 1 + values_of_fields(fields),
        _ => 1,
    }
}

fn values_of_fields(fields: &Map<String, Value>) -> usize {
    fields.values().map(values_of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_share_a_prompt_are_one_prompt() {
        let prompt = |text: &str| GenerateRequest::new(Prompt::Text(text.into()));
        let (one, other) = (prompt("one"), prompt("one"));
        let requests = [one.clone(), other.clone(), one];
        let prompts = Prompts::of(requests.iter());
        assert_eq!(
            [0, 1, 2].map(|request| prompts.index_of(request)),
            [0, 1, 0]
        );
        assert_eq!(prompts.into_distinct().len(), 2);
    }

    #[test]
    fn empty_lists_weigh_something() {
        let mut template_kwargs = Map::new();
        template_kwargs.insert("a".to_owned(), serde_json::json!([[], [], {}]));
        let request = GenerateRequest::new(Prompt::Chat(Arc::new(crate::request::ChatPrompt {
            messages: serde_json::json!([]),
            tools: None,
            template_kwargs,
            add_generation_prompt: true,
            continue_final_message: false,
        })));
        let distinct = Prompts::of([&request].into_iter()).into_distinct();
        assert!(distinct[0].weight >= 5, "{}", distinct[0].weight);
    }
}
