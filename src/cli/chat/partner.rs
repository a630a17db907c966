//! Gets the answers of a chat from an engine in this process, or from a server.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use eventsource_stream::Eventsource;
use futures_util::{Stream, StreamExt};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use souffleur::engine::{EngineHandle, Generation};
use souffleur::request::{
    ChatPrompt, Delta, Event, FinishReason, GenerateRequest, ImageFile, OutputParsing, OutputPiece,
    Prompt,
};

use super::images::with_urls;
use super::sampling::AnswerFlags;
use crate::cli::remote::{DONE, Remote, shown};

#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    Thought(String),
    End {
        /// The token limit truncated the answer.
        is_cut: bool,
    },
}

pub enum Partner {
    Engine(EngineHandle),
    Server { remote: Remote, model: String },
}

pub enum Answer {
    Engine(EngineAnswer),
    Server(ServerAnswer),
}

impl Partner {
    pub fn name(&self) -> &str {
        match self {
            Self::Engine(engine) => &engine.model().served_model_name,
            Self::Server { model, .. } => model,
        }
    }

    /// Asks for the answer to messages, in which each part `{"type": "image"}` stands for an image.
    pub async fn ask(
        &self,
        messages: &[Value],
        images: &[ImageFile],
        flags: &AnswerFlags,
    ) -> Result<Answer, String> {
        match self {
            Self::Engine(engine) => {
                EngineAnswer::ask(engine, messages, images, flags).map(Answer::Engine)
            }
            Self::Server { remote, model } => {
                let messages = with_urls(messages, images);
                let answer = ServerAnswer::ask(remote, model, &messages, flags).await;
                let answer = answer.map_err(|reason| format!("{}: {reason}", remote.url));
                Ok(Answer::Server(answer?))
            }
        }
    }
}

impl Answer {
    pub async fn next(&mut self) -> Result<Option<Piece>, String> {
        match self {
            Self::Engine(answer) => answer.next().await,
            Self::Server(answer) => answer.next().await,
        }
    }
}

pub struct EngineAnswer {
    generation: Generation,
    pieces: VecDeque<Piece>,
}

impl EngineAnswer {
    fn ask(
        engine: &EngineHandle,
        messages: &[Value],
        images: &[ImageFile],
        flags: &AnswerFlags,
    ) -> Result<Self, String> {
        let prompt = Prompt::Chat(Arc::new(ChatPrompt {
            messages: messages.into(),
            tools: None,
            template_kwargs: Map::new(),
            add_generation_prompt: true,
            continue_final_message: false,
            known: None,
            images: images.to_vec(),
        }));
        let request = GenerateRequest {
            sampling: flags.params(&engine.model().generation),
            parsing: Some(OutputParsing {
                tools: None,
                separates_reasoning: true,
            }),
            ..GenerateRequest::new(prompt)
        };
        let generation = engine.generate(request);
        Ok(Self {
            generation: generation.map_err(|error| error.to_string())?,
            pieces: VecDeque::new(),
        })
    }

    async fn next(&mut self) -> Result<Option<Piece>, String> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Ok(Some(piece));
            }
            match self.generation.next().await {
                None => return Ok(None),
                Some(Event::Failed(error)) => return Err(error.to_string()),
                Some(Event::Delta(delta)) => self.take(delta),
                Some(Event::Finished(end) | Event::Cancelled(end)) => {
                    let is_cut = matches!(end.reason, FinishReason::Length { .. });
                    self.take(end.delta);
                    self.pieces.push_back(Piece::End { is_cut });
                }
            }
        }
    }

    fn take(&mut self, delta: Delta) {
        let pieces = delta.pieces.into_iter().filter_map(|piece| match piece {
            OutputPiece::Text(text) => Some(Piece::Text(text)),
            OutputPiece::Reasoning(text) => Some(Piece::Thought(text)),
            // The request has no tools.
            OutputPiece::CallStart { .. }
            | OutputPiece::CallArguments(_)
            | OutputPiece::CallEnd
            | OutputPiece::CallBroken { .. } => None,
        });
        self.pieces.extend(pieces);
    }
}

type Events = Pin<Box<dyn Stream<Item = Result<String, String>>>>;

pub struct ServerAnswer {
    events: Events,
    pieces: VecDeque<Piece>,
    has_ended: bool,
}

impl ServerAnswer {
    async fn ask(
        remote: &Remote,
        model: &str,
        messages: &[Value],
        flags: &AnswerFlags,
    ) -> Result<Self, String> {
        let mut body = flags.fields();
        body.insert("model".to_owned(), json!(model));
        body.insert("messages".to_owned(), json!(messages));
        body.insert("stream".to_owned(), json!(true));
        let body = Value::from(body).to_string();
        let answer = remote.post("/v1/chat/completions", body).await?;
        Ok(Self::of(answer))
    }

    fn of<B>(body: impl Stream<Item = Result<B, String>> + Unpin + 'static) -> Self
    where
        B: AsRef<[u8]> + 'static,
    {
        let data = body.eventsource().map(|event| match event {
            Ok(event) => Ok(event.data),
            Err(error) => Err(format!("the stream was interrupted: {error}")),
        });
        Self {
            events: Box::pin(data),
            pieces: VecDeque::new(),
            has_ended: false,
        }
    }

    async fn next(&mut self) -> Result<Option<Piece>, String> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Ok(Some(piece));
            }
            if self.has_ended {
                return Ok(None);
            }
            let Some(data) = self.events.next().await.transpose()? else {
                return Err("the stream ended before the answer was complete".to_owned());
            };
            if data == DONE {
                self.has_ended = true;
                continue;
            }
            self.take(&data)?;
        }
    }

    fn take(&mut self, data: &str) -> Result<(), String> {
        let chunk: Chunk = serde_json::from_str(data).map_err(|error| {
            let data = shown(data.as_bytes());
            format!("the server sent an event that cannot be parsed: {error}: {data}")
        })?;
        if chunk.error.is_some() {
            return Err(shown(data.as_bytes()));
        }
        let Some(choice) = chunk.choices.into_iter().next() else {
            return Ok(());
        };
        let ChatDelta {
            content,
            reasoning_content,
            reasoning,
        } = choice.delta.unwrap_or_default();
        let non_empty = |text: Option<String>| text.filter(|text| !text.is_empty());
        let thought = non_empty(reasoning_content).or(non_empty(reasoning));
        self.pieces.extend(thought.map(Piece::Thought));
        self.pieces.extend(non_empty(content).map(Piece::Text));
        if let Some(reason) = choice.finish_reason {
            let is_cut = reason == "length";
            self.pieces.push_back(Piece::End { is_cut });
            self.has_ended = true;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<ChatDelta>,
    finish_reason: Option<String>,
}

/// A delta; servers use one of two names for reasoning.
#[derive(Default, Deserialize)]
struct ChatDelta {
    content: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    async fn read_all(parts: &[&str]) -> Result<Vec<Piece>, String> {
        let parts: Vec<Result<Vec<u8>, String>> = parts
            .iter()
            .map(|part| Ok(part.as_bytes().to_vec()))
            .collect();
        let mut answer = ServerAnswer::of(stream::iter(parts));
        let mut pieces = Vec::new();
        while let Some(piece) = answer.next().await? {
            pieces.push(piece);
        }
        Ok(pieces)
    }

    #[actix_web::test]
    async fn text_and_thoughts_are_read_however_the_stream_is_split() {
        let parts = [
            ": hello\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\nda",
            "ta: {\"choices\":[{\"delta\":{\"reasoning_content\":\"so\"},\"finish_reason\":null}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"reasoning\":\"then\"}}]}\r\n\r\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"yes\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n",
        ];
        let expected = vec![
            Piece::Thought("so".to_owned()),
            Piece::Thought("then".to_owned()),
            Piece::Text("yes".to_owned()),
            Piece::End { is_cut: true },
        ];
        assert_eq!(read_all(&parts).await, Ok(expected));
    }

    #[actix_web::test]
    async fn incomplete_and_failed_streams_are_errors() {
        let text = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
        for (parts, reason) in [
            (&[text][..], "before the answer was complete"),
            (
                &[text, "data: {\"error\":{\"message\":\"lost\"}}\n\n"],
                "lost",
            ),
            (&["data: nonsense\n\n"], "nonsense"),
        ] {
            let error = read_all(parts).await.expect_err("the stream is incomplete");
            assert!(error.contains(reason), "{error}");
        }
    }
}
