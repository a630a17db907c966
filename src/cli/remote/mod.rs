//! A client of servers with OpenAI's API, for the commands `chat` and `bench`.

mod connection;
pub mod secret;

use std::pin::Pin;

use futures_util::{Stream, TryStreamExt};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode, Uri};
use serde_json::Value;

use super::failure::Failure;
use connection::{Connector, ResponseBody, explained};

/// The largest number of characters shown of a server's error text.
const SHOWN_CHARS: usize = 300;
const BODY_BYTES: usize = 16 << 20;
const AGENT: &str = concat!("souffleur/", env!("CARGO_PKG_VERSION"));
/// The event that ends a stream.
pub const DONE: &str = "[DONE]";

pub type Body = Pin<Box<dyn Stream<Item = Result<Bytes, String>>>>;

/// A server. Redirects are not followed, so that no other host gets the API key.
#[derive(Clone)]
pub struct Remote {
    connector: Connector,
    bearer: Option<HeaderValue>,
    /// The base URL, without `/v1` and without a trailing slash.
    pub url: String,
}

impl Remote {
    /// Parses the address given by the flag `flag`. All requests send the API key, if there is one.
    pub fn new(flag: &str, url: &str, bearer: Option<HeaderValue>) -> Result<Self, Failure> {
        let (url, uri) = checked(flag, url)?;
        let connector = Connector::new(&uri).map_err(Failure::Failed)?;
        Ok(Self {
            connector,
            bearer,
            url,
        })
    }

    /// Returns the given model, else the first one that the server lists, and the vocabulary size of the first listed
    /// model, if the server reports it. Fails if no model is given, and the server lists no model or does not answer.
    pub async fn model(&self, named: Option<String>) -> Result<(String, Option<u32>), Failure> {
        let models = self.get("/v1/models").await;
        let (first, vocab_size) = models.as_ref().map(first_model).unwrap_or_default();
        match (named.or(first), models) {
            (Some(model), _) => Ok((model, vocab_size)),
            (None, Ok(_)) => Err(Failure::Failed(format!(
                "{}/v1/models lists no model: set --model-path to the name of a model",
                self.url
            ))),
            (None, Err(reason)) => Err(Failure::Failed(reason)),
        }
    }

    pub async fn get(&self, path: &str) -> Result<Value, String> {
        let url = format!("{}{path}", self.url);
        let read = self.read(path).await;
        let (status, body) = read.map_err(|reason| format!("{url}: {reason}"))?;
        if !status.is_success() {
            return Err(format!("{url}: {status}: {}", shown(&body)));
        }
        serde_json::from_slice(&body).map_err(|error| {
            let answer = shown(&body);
            format!("{url}: the server's answer is not valid JSON: {error}: {answer}")
        })
    }

    async fn read(&self, path: &str) -> Result<(StatusCode, Bytes), String> {
        let response = self.send(Method::GET, path, String::new()).await?;
        let status = response.status();
        Ok((status, response.into_body().read(BODY_BYTES).await?))
    }

    /// Sends a JSON body, and streams the response's body. The error of a refused request quotes the response.
    pub async fn post(&self, path: &str, body: String) -> Result<Body, String> {
        let response = self.send(Method::POST, path, body).await?;
        let (status, body) = (response.status(), response.into_body());
        if status != StatusCode::OK {
            let refusal = body.read(BODY_BYTES).await.unwrap_or_default();
            return Err(format!("{status}: {}", shown(&refusal)));
        }
        let bytes = body.into_data_stream();
        Ok(Box::pin(bytes.map_err(|error| explained(&error))))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<Response<ResponseBody>, String> {
        let mut request = Request::builder()
            .method(&method)
            .uri(format!("{}{path}", self.url))
            .header(USER_AGENT, AGENT);
        if method == Method::POST {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(bearer) = &self.bearer {
            request = request.header(AUTHORIZATION, bearer);
        }
        let request = request.body(Full::from(body));
        let request = request.map_err(|error| explained(&error))?;
        self.connector.send(request).await
    }
}

/// Checks a URL. Returns the base to which requests add a path, and the parsed URL.
fn checked(flag: &str, url: &str) -> Result<(String, Uri), Failure> {
    let unusable = |reason: &str| Failure::Usage(format!("{flag} is {url:?}, {reason}"));
    let uri: Uri = url
        .parse()
        .map_err(|_| unusable("must be like http://127.0.0.1:30000"))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() => (),
        _ => {
            return Err(unusable(
                "must begin with http:// or https:// and have a host",
            ));
        }
    }
    let url = url.trim_end_matches('/');
    Ok((url.strip_suffix("/v1").unwrap_or(url).to_owned(), uri))
}

/// The first model that `/v1/models` lists, and its vocabulary size, which only llama.cpp reports.
fn first_model(models: &Value) -> (Option<String>, Option<u32>) {
    let first = &models["data"][0];
    let id = first["id"].as_str().map(str::to_owned);
    (id, size(&first["meta"]["n_vocab"]))
}

pub fn size(value: &Value) -> Option<u32> {
    let size = value.as_u64().and_then(|size| u32::try_from(size).ok());
    size.filter(|size| *size > 0)
}

/// A server's error text as one line of bounded length, without control characters.
pub fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ").replace(char::is_control, "");
    match line.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(url: &str) -> Result<String, Failure> {
        super::checked("--url", url).map(|(url, _)| url)
    }

    #[test]
    fn urls_may_end_with_v1_and_must_be_http() {
        for url in [
            "http://h:1",
            "http://h:1/",
            "http://h:1/v1",
            "http://h:1/v1/",
        ] {
            assert_eq!(checked(url).ok().as_deref(), Some("http://h:1"), "{url}");
        }
        for url in ["http://h/a", "https://h/a"] {
            let with_v1 = format!("{url}/v1");
            assert_eq!(checked(&with_v1).ok().as_deref(), Some(url));
        }
        for (url, part) in [
            ("h:1", "http://"),
            ("ftp://h", "must begin with http://"),
            ("http://", "http://"),
            ("", "--url is \"\""),
        ] {
            match checked(url) {
                Err(Failure::Usage(reason)) => assert!(reason.contains(part), "{reason}"),
                other => panic!("{url}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_first_model_and_its_vocabulary_size_are_found() {
        let models = json!({"data": [{"id": "m", "meta": {"n_vocab": 99}}, {"id": "n"}]});
        assert_eq!(first_model(&models), (Some("m".to_owned()), Some(99)));
        assert_eq!(first_model(&json!({"data": []})), (None, None));
        assert_eq!(shown(" a\n b ".as_bytes()), "a b");
        assert_eq!(shown(b"a\x1b[2Jb"), "a[2Jb");
        assert_eq!(shown(&[b'x'; 400]).chars().count(), SHOWN_CHARS + 3);
    }
}
