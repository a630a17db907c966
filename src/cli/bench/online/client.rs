//! A client of `/v1/completions` that records the time of each chunk of the streamed answer.

use std::time::{Duration, Instant};

use eventsource_stream::Eventsource;
use futures_util::{Stream, StreamExt};
use hyper::header::HeaderValue;
use serde::Deserialize;
use serde_json::{Value, json};

use super::load::Request;
use crate::cli::failure::Failure;
use crate::cli::remote::{DONE, Remote, shown, size};

#[derive(Clone)]
pub struct Server {
    remote: Remote,
    pub model: String,
    /// The size of the model's vocabulary, if the server reports it.
    pub vocab_size: Option<u32>,
    pub response_format: Option<Value>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Time from sending the request to each chunk with tokens; at least one.
    pub chunks: Vec<Duration>,
    pub input_tokens: Option<u32>,
    pub output_tokens: Option<u32>,
}

impl Server {
    /// Asks the server for its model, unless `model` is given. Fails if the URL is invalid, if the server does not
    /// answer, or if it lists no model.
    pub async fn find(
        base_url: &str,
        model: Option<String>,
        bearer: Option<HeaderValue>,
    ) -> Result<Self, Failure> {
        let remote = Remote::new("--base-url", base_url, bearer)?;
        let (model, mut vocab_size) = remote.model(model).await?;
        if vocab_size.is_none() {
            let info = remote.get("/model_info").await.ok();
            vocab_size = info.and_then(|info| size(&info["vocab_size"]));
        }
        Ok(Self {
            remote,
            model,
            vocab_size,
            response_format: None,
        })
    }

    pub fn url(&self) -> &str {
        &self.remote.url
    }

    /// Sends one request and reads its stream to the end. The error is one line with the reason.
    pub async fn complete(&self, request: &Request) -> Result<Answer, String> {
        let mut body = json!({
            "model": self.model,
            "prompt": request.prompt,
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if request.ignore_eos {
            body["ignore_eos"] = true.into();
        }
        if let Some(format) = &self.response_format {
            body["response_format"] = format.clone();
        }
        let body = body.to_string();
        let sent_at = Instant::now();
        read(self.remote.post("/v1/completions", body).await?, sent_at).await
    }
}

async fn read<B: AsRef<[u8]>>(
    body: impl Stream<Item = Result<B, String>> + Unpin,
    sent_at: Instant,
) -> Result<Answer, String> {
    let mut events = body.eventsource();
    let mut answer = Answer {
        chunks: Vec::new(),
        input_tokens: None,
        output_tokens: None,
    };
    let mut is_finished = false;
    while let Some(event) = events.next().await {
        let event = event.map_err(|error| format!("the stream was interrupted: {error}"))?;
        let at = sent_at.elapsed();
        if event.data == DONE {
            is_finished = true;
            break;
        }
        let chunk: Chunk = serde_json::from_str(&event.data).map_err(|error| {
            let data = shown(event.data.as_bytes());
            format!("the server sent an event that cannot be parsed: {error}: {data}")
        })?;
        if chunk.error.is_some() {
            return Err(shown(event.data.as_bytes()));
        }
        is_finished |= chunk
            .choices
            .iter()
            .any(|choice| choice.finish_reason.is_some());
        if chunk.choices.iter().any(Choice::has_tokens) {
            answer.chunks.push(at);
        }
        if let Some(usage) = chunk.usage {
            answer.input_tokens = usage.prompt_tokens;
            answer.output_tokens = usage.completion_tokens;
        }
    }
    match (is_finished, answer.chunks.is_empty()) {
        (true, false) => Ok(answer),
        (true, true) => Err("the stream ended without a token".to_owned()),
        (false, _) => Err(format!("the stream ended before {DONE}")),
    }
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
    finish_reason: Option<Value>,
}

impl Choice {
    /// True unless the chunk has only a finish reason. The text may be empty: a token may be a part of a character.
    fn has_tokens(&self) -> bool {
        self.finish_reason.is_none() || self.text.as_ref().is_some_and(|text| !text.is_empty())
    }
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    async fn read_all(parts: &[&str]) -> Result<Answer, String> {
        let parts: Vec<Result<Vec<u8>, String>> = parts
            .iter()
            .map(|part| Ok(part.as_bytes().to_vec()))
            .collect();
        read(stream::iter(parts), Instant::now()).await
    }

    #[actix_web::test]
    async fn tokens_and_counts_are_read_however_the_stream_is_split() {
        let parts = [
            ": keep-alive\n\ndata: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n",
            "\ndata: {\"choices\":[{\"text\":\"\",\"finish_reason\":null}],\"usage\":null}\r\n\r\nda",
            "ta: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}\n\n",
            "data: [DONE]\n\n",
        ];
        let answer = read_all(&parts).await.expect("the stream is complete");
        assert_eq!(answer.chunks.len(), 2);
        assert!(answer.chunks.is_sorted());
        assert_eq!(
            (answer.input_tokens, answer.output_tokens),
            (Some(5), Some(2))
        );
    }

    #[actix_web::test]
    async fn incomplete_and_failed_streams_are_errors() {
        let token = "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\n";
        for (parts, reason) in [
            (&[token][..], "the stream ended before [DONE]"),
            (
                &[token, "data: {\"error\":{\"message\":\"lost\"}}\n\n"],
                "lost",
            ),
            (&["data: nonsense\n\n"], "nonsense"),
            (&["data: [DONE]\n\n"], "without a token"),
        ] {
            let error = read_all(parts).await.expect_err("the stream is incomplete");
            assert!(error.contains(reason), "{error}");
        }
        let broken = vec![Ok(token.as_bytes()), Err("reset by peer".to_owned())];
        let error = read(stream::iter(broken), Instant::now()).await;
        assert!(error.is_err_and(|error| error.contains("reset by peer")));
    }
}
