//! A client of `/v1/completions` that reads the stream and looks at the clock.

use std::time::{Duration, Instant};

use actix_web::http::header::{AUTHORIZATION, HeaderValue};
use actix_web::http::{StatusCode, Uri};
use awc::error::SendRequestError;
use awc::{Client, Connector};
use eventsource_stream::Eventsource;
use futures_util::{Stream, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};

use super::load::Request;
use crate::cli::failure::Failure;

/// Longest part of a server's own words that is shown.
const SHOWN_CHARS: usize = 300;
/// Largest answer without a stream that is read.
const BODY_BYTES: usize = 16 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The event that ends a stream.
const DONE: &str = "[DONE]";

/// A server that answered.
#[derive(Clone)]
pub struct Server {
    client: Client,
    /// Without `/v1`, and without a slash at the end.
    pub url: String,
    /// The model that requests name.
    pub model: String,
    /// Of the model, if the server says.
    pub vocab_size: Option<u32>,
    /// The `response_format` of all requests.
    pub response_format: Option<Value>,
}

/// What one request saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// When each chunk with tokens came, since the request was sent; at least one.
    pub chunks: Vec<Duration>,
    /// Prompt tokens by the server's count, if it gave one.
    pub input_tokens: Option<u32>,
    /// Output tokens by the server's count, if it gave one.
    pub output_tokens: Option<u32>,
}

impl Server {
    /// Asks the server what it serves. All requests show the key, if there is one.
    ///
    /// # Errors
    /// A URL that cannot be used; a server that does not answer, or serves nothing when no model is named.
    pub async fn find(
        base_url: &str,
        model: Option<String>,
        bearer: Option<HeaderValue>,
    ) -> Result<Self, Failure> {
        let url = checked(base_url)?;
        let connector = Connector::new().limit(0).timeout(CONNECT_TIMEOUT);
        let client = Client::builder().connector(connector).disable_timeout();
        // Another host that a redirect names must not see the key.
        let mut client = client.disable_redirects();
        if let Some(bearer) = bearer {
            client = client.add_default_header((AUTHORIZATION, bearer));
        }
        let client = client.finish();
        let models = get(&client, &format!("{url}/v1/models")).await;
        let (first, mut vocab_size) = models.as_ref().map(first_model).unwrap_or_default();
        let model = match (model.or(first), models) {
            (Some(model), _) => model,
            (None, Ok(_)) => {
                let reason = format!("{url}/v1/models lists no model: name one with --model-path");
                return Err(Failure::Failed(reason));
            }
            (None, Err(reason)) => return Err(Failure::Failed(reason)),
        };
        if vocab_size.is_none() {
            let info = get(&client, &format!("{url}/model_info")).await.ok();
            vocab_size = info.and_then(|info| size(&info["vocab_size"]));
        }
        Ok(Self {
            client,
            url,
            model,
            vocab_size,
            response_format: None,
        })
    }

    /// Sends one request and reads its stream to the end.
    ///
    /// # Errors
    /// Why there is no complete answer, in a line.
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
        let post = self.client.post(format!("{}/v1/completions", self.url));
        let post = post.force_close().content_type("application/json");
        let sent = Instant::now();
        let mut response = post.send_body(body).await.map_err(reason)?;
        if response.status() != StatusCode::OK {
            let status = response.status();
            let said = response.body().limit(BODY_BYTES).await.unwrap_or_default();
            return Err(format!("{status}: {}", shown(&said)));
        }
        read(
            response.map(|read| read.map_err(|error| error.to_string())),
            sent,
        )
        .await
    }
}

/// Reads a stream of server-sent events.
async fn read<B: AsRef<[u8]>>(
    body: impl Stream<Item = Result<B, String>> + Unpin,
    sent: Instant,
) -> Result<Answer, String> {
    let mut events = body.eventsource();
    let mut answer = Answer {
        chunks: Vec::new(),
        input_tokens: None,
        output_tokens: None,
    };
    let mut is_finished = false;
    while let Some(event) = events.next().await {
        let event = event.map_err(|error| format!("the stream broke off: {error}"))?;
        let at = sent.elapsed();
        if event.data == DONE {
            is_finished = true;
            break;
        }
        let chunk: Chunk = serde_json::from_str(&event.data)
            .map_err(|error| format!("{}: {error}", shown(event.data.as_bytes())))?;
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
    /// A token may be half a character, so text may be missing; the last chunk may be an end without a token.
    fn has_tokens(&self) -> bool {
        self.finish_reason.is_none() || self.text.as_ref().is_some_and(|text| !text.is_empty())
    }
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
}

/// The URL without what requests add to it.
fn checked(base_url: &str) -> Result<String, Failure> {
    let unusable = |reason: &str| Failure::Usage(format!("--base-url is {base_url:?}, {reason}"));
    let uri: Uri = base_url
        .parse()
        .map_err(|_| unusable("must be like http://127.0.0.1:30000"))?;
    match (uri.scheme_str(), uri.authority()) {
        (Some("http"), Some(_)) => (),
        (Some("https"), _) => {
            return Err(unusable(
                "but the bench has no TLS: give the server's http:// address",
            ));
        }
        _ => return Err(unusable("must begin with http:// and name a host")),
    }
    let url = base_url.trim_end_matches('/');
    Ok(url.strip_suffix("/v1").unwrap_or(url).to_owned())
}

async fn get(client: &Client, url: &str) -> Result<Value, String> {
    let sent = client.get(url).force_close().send().await;
    let mut response = sent.map_err(|error| format!("{url}: {}", reason(error)))?;
    let status = response.status();
    let body = response.body().limit(BODY_BYTES).await;
    let body = body.map_err(|error| format!("{url}: {error}"))?;
    if !status.is_success() {
        return Err(format!("{url}: {status}: {}", shown(&body)));
    }
    serde_json::from_slice(&body).map_err(|error| format!("{url}: {error}: {}", shown(&body)))
}

/// The first model that `/v1/models` lists, and its vocabulary as llama.cpp names it.
fn first_model(models: &Value) -> (Option<String>, Option<u32>) {
    let first = &models["data"][0];
    let id = first["id"].as_str().map(str::to_owned);
    (id, size(&first["meta"]["n_vocab"]))
}

fn size(value: &Value) -> Option<u32> {
    let size = value.as_u64().and_then(|size| u32::try_from(size).ok());
    size.filter(|size| *size > 0)
}

fn reason(error: SendRequestError) -> String {
    error.to_string()
}

/// A server's own words, in one line of bounded length.
fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
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
    async fn tokens_and_counts_are_read_whatever_the_pieces() {
        let parts = [
            ": keep-alive\n\ndata: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n",
            "\ndata: {\"choices\":[{\"text\":\"\",\"finish_reason\":null}],\"usage\":null}\r\n\r\nda",
            "ta: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}\n\n",
            "data: [DONE]\n\n",
        ];
        let answer = read_all(&parts).await.expect("it is complete");
        assert_eq!(answer.chunks.len(), 2);
        assert!(answer.chunks.is_sorted());
        assert_eq!(
            (answer.input_tokens, answer.output_tokens),
            (Some(5), Some(2))
        );
    }

    #[actix_web::test]
    async fn streams_that_end_early_or_fail_are_failures() {
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
            let error = read_all(parts).await.expect_err("it is not complete");
            assert!(error.contains(reason), "{error}");
        }
        let broken = vec![Ok(token.as_bytes()), Err("reset by peer".to_owned())];
        let error = read(stream::iter(broken), Instant::now()).await;
        assert!(error.is_err_and(|error| error.contains("reset by peer")));
    }

    #[test]
    fn base_urls_may_end_with_v1_and_must_be_http() {
        for url in [
            "http://h:1",
            "http://h:1/",
            "http://h:1/v1",
            "http://h:1/v1/",
        ] {
            assert_eq!(checked(url).ok().as_deref(), Some("http://h:1"), "{url}");
        }
        assert_eq!(checked("http://h/a/v1").ok().as_deref(), Some("http://h/a"));
        for (url, part) in [
            ("https://h:1", "no TLS"),
            ("h:1", "http://"),
            ("ftp://h", "must begin with http://"),
            ("http://", "http://"),
            ("", "http://"),
        ] {
            match checked(url) {
                Err(Failure::Usage(reason)) => assert!(reason.contains(part), "{reason}"),
                other => panic!("{url}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_first_model_and_its_vocabulary_are_found() {
        let models = json!({"data": [{"id": "m", "meta": {"n_vocab": 99}}, {"id": "n"}]});
        assert_eq!(first_model(&models), (Some("m".to_owned()), Some(99)));
        assert_eq!(first_model(&json!({"data": []})), (None, None));
        assert_eq!(shown(" a\n b ".as_bytes()), "a b");
        assert_eq!(shown(&[b'x'; 400]).chars().count(), SHOWN_CHARS + 3);
    }
}
