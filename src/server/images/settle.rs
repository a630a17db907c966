//! Decides on the images of a prompt, and gets their bytes.

use std::sync::Arc;

use actix_web::rt::task::spawn_blocking;
use futures_util::stream::{FuturesUnordered, TryStreamExt};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::content::{BASE64, PLACE, REFUSAL, REFUSED_FIELD, TYPE, URL};
use crate::budget::{BodyCharge, Charges};
use crate::config::{ImageFallback, ServerConfig};
use crate::error::ApiError;
use crate::state::AppState;
use souffleur_media::{
    AllowedDomains, FetchLimits, Fetcher, MediaError, MediaUrl, decode_base64, decode_data_url,
    is_data_url,
};
use souffleur_request::{ChatPrompt, GenerateRequest, ImageFile, Prompt, TextImages};

/// Takes the place of an image for a model that reads text only.
const NOTE: &str = "[image omitted: this model takes text only]";
/// The fetches of all requests that run at once.
const MAX_FETCHES: usize = 8;
/// Those of one call, which may have a thousand prompts: a slow host takes only a part of the slots from others.
const MAX_FETCHES_OF_CALL: usize = MAX_FETCHES / 2;

/// Fetches images for all requests of a server.
pub(crate) struct Media {
    fetcher: Arc<Fetcher>,
    slots: Semaphore,
}

impl Media {
    pub(crate) fn new(config: &ServerConfig) -> Self {
        // The configuration was checked.
        let domains = AllowedDomains::parse(&config.allowed_media_domains).unwrap_or_default();
        let limits = FetchLimits {
            at_once: MAX_FETCHES,
            ..FetchLimits::default()
        };
        Self {
            fetcher: Arc::new(Fetcher::new(domains, limits)),
            slots: Semaphore::new(MAX_FETCHES),
        }
    }

    async fn fetch(&self, wanted: Wanted) -> Result<(usize, Vec<u8>), ApiError> {
        let Wanted { index, url, place } = wanted;
        let limit = self.fetcher.limits().time;
        let slot = timeout(limit, self.slots.acquire()).await;
        let busy = |_| {
            let host = url.host().to_string();
            refused(&place, &MediaError::TimedOut { host, limit })
        };
        let _slot = slot.map_err(busy)?;
        let (fetcher, url) = (self.fetcher.clone(), url.clone());
        let fetched = spawn_blocking(move || fetcher.fetch(&url)).await;
        let failed = |_| ApiError::interrupted("fetching an image failed: see the server's log");
        let bytes = fetched.map_err(failed)?;
        let bytes = bytes.map_err(|error| refused(&place, &error))?;
        Ok((index, bytes))
    }
}

/// The images of a call that are still to be fetched.
#[must_use]
#[derive(Default)]
pub(crate) struct Pending(Vec<Wanted>);

/// An image that is to be fetched.
pub(crate) struct Wanted {
    /// Index in the images of the call.
    pub(crate) index: usize,
    pub(crate) url: MediaUrl,
    pub(crate) place: Arc<str>,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Fetches the images of a chat, several at once.
    pub(crate) async fn fetch(
        self,
        state: &AppState,
        prompt: &mut ChatPrompt,
        charges: &mut Charges,
    ) -> Result<(), ApiError> {
        for (index, bytes) in self.files(state.media(), &mut charges.prompt).await? {
            prompt.images[index].bytes = bytes;
        }
        Ok(())
    }

    /// Fetches the images of texts. A place names one image of all requests.
    pub(crate) async fn fetch_for_texts(
        self,
        state: &AppState,
        requests: &mut [GenerateRequest],
        charges: &mut Charges,
    ) -> Result<(), ApiError> {
        if self.is_empty() {
            return Ok(());
        }
        let places: Vec<Arc<str>> = self.0.iter().map(|it| it.place.clone()).collect();
        let files = self.files(state.media(), &mut charges.request).await?;
        let fetched = files.into_iter().filter_map(|(index, bytes)| {
            let place = places.get(index)?;
            Some((place.clone(), bytes))
        });
        put_files(requests, &fetched.collect::<FxHashMap<_, _>>());
        Ok(())
    }

    /// Fetches the files, and returns them in the order of their arrival, with their indices.
    async fn files(
        self,
        media: &Media,
        charge: &mut BodyCharge,
    ) -> Result<Vec<(usize, Arc<[u8]>)>, ApiError> {
        let mut files = Vec::with_capacity(self.0.len());
        let mut later = self.0.into_iter().map(|wanted| media.fetch(wanted));
        let first = later.by_ref().take(MAX_FETCHES_OF_CALL);
        let mut fetches: FuturesUnordered<_> = first.collect();
        while let Some((index, bytes)) = fetches.try_next().await? {
            charge.grow(bytes.len())?;
            files.push((index, bytes.into()));
            fetches.extend(later.next());
        }
        Ok(files)
    }
}

/// Puts files into the texts that have images at these places.
fn put_files(requests: &mut [GenerateRequest], files: &FxHashMap<Arc<str>, Arc<[u8]>>) {
    // The samples of a prompt share it.
    let mut last: Option<(Arc<TextImages>, Arc<TextImages>)> = None;
    for request in requests {
        let Prompt::TextImages(prompt) = &mut request.prompt else {
            continue;
        };
        let complete = match &last {
            Some((old, new)) if Arc::ptr_eq(old, prompt) => new.clone(),
            _ => {
                let images = prompt.images.iter().map(|image| ImageFile {
                    bytes: files.get(&image.field).unwrap_or(&image.bytes).clone(),
                    field: image.field.clone(),
                });
                Arc::new(TextImages {
                    text: prompt.text.clone(),
                    images: images.collect(),
                })
            }
        };
        let old = std::mem::replace(prompt, complete.clone());
        last = Some((old, complete));
    }
}

/// Takes the images out of a prompt's messages. Those of `data:` URLs and base64 are decoded; the hosts of others are
/// checked.
pub(crate) fn take(
    state: &AppState,
    prompt: &mut ChatPrompt,
    charges: &mut Charges,
) -> Result<Pending, ApiError> {
    let Value::Array(messages) = &mut prompt.messages else {
        return Ok(Pending::default());
    };
    let n_images = images_in(messages).count();
    let Some(first) = images_in(messages).next() else {
        return Ok(Pending::default());
    };
    let (engine, config) = (&state.loaded()?.engine, state.config());
    if engine.images().is_none() {
        return match config.image_fallback {
            ImageFallback::Note => {
                messages.iter_mut().for_each(leave_images_out);
                Ok(Pending::default())
            }
            ImageFallback::Refuse => {
                let refusal = text_in(first, REFUSAL);
                let model = &engine.model().served_model_name;
                let text = format!("{refusal} ({model} takes no images)");
                Err(ApiError::field(text_in(first, REFUSED_FIELD), text))
            }
        };
    }
    if n_images > config.max_images {
        let place = text_in(first, PLACE);
        let limit = config.max_images;
        let text = format!(
            "the messages have {n_images} images, the first at {place}, and the limit is {limit} per request: send \
             fewer, or start the server with a larger --max-images"
        );
        return Err(ApiError::field(place, text));
    }
    let (mut pending, mut files) = (Vec::new(), Vec::with_capacity(n_images));
    for part in images_in(messages) {
        let (file, url) = read(part, state)?;
        *part = json!({"type": TYPE});
        charges.prompt.grow(file.bytes.len())?;
        pending.extend(url.map(|url| Wanted {
            index: files.len(),
            url,
            place: file.field.clone(),
        }));
        files.push(file);
    }
    prompt.images = files;
    Ok(Pending(pending))
}

/// Checks the images of requests of texts: their number, and the hosts of those that are to be fetched. A model without a
/// tower refuses them later, and nothing is fetched for it.
pub(crate) fn check(
    state: &AppState,
    requests: &[GenerateRequest],
    wanted: Vec<Wanted>,
) -> Result<Pending, ApiError> {
    let limit = state.config().max_images;
    let mut files = requests.iter().map(|request| request.prompt.image_files());
    if let Some(files) = files.find(|files| files.len() > limit) {
        let n_images = files.len();
        let text = format!(
            "image_data has {n_images} images, and the limit is {limit} per prompt: send fewer, or start the server \
             with a larger --max-images"
        );
        return Err(ApiError::field("image_data", text));
    }
    if wanted.is_empty() || state.loaded()?.engine.images().is_none() {
        return Ok(Pending::default());
    }
    for Wanted { url, place, .. } in &wanted {
        let checked = state.media().fetcher.check(url);
        checked.map_err(|error| refused(place, &error))?;
    }
    Ok(Pending(wanted))
}

/// The image of a part: its bytes, or none and the URL that has them.
fn read(part: &Value, state: &AppState) -> Result<(ImageFile, Option<MediaUrl>), ApiError> {
    let place: Arc<str> = text_in(part, PLACE).into();
    let limit = state.config().max_body_bytes as u64;
    let wrong = |error: MediaError| refused(&place, &error);
    let (bytes, url) = match part[URL].as_str() {
        None => (decode_base64(text_in(part, BASE64), limit), None),
        Some(url) if is_data_url(url) => (decode_data_url(url, limit), None),
        Some(url) => {
            let url = MediaUrl::parse(url).map_err(wrong)?;
            state.media().fetcher.check(&url).map_err(wrong)?;
            (Ok(Vec::new()), Some(url))
        }
    };
    let file = ImageFile {
        bytes: bytes.map_err(wrong)?.into(),
        field: place.clone(),
    };
    Ok((file, url))
}

/// The parts of messages that are images.
fn images_in(messages: &mut [Value]) -> impl Iterator<Item = &mut Value> {
    let contents = messages.iter_mut();
    let parts = contents.filter_map(|message| message.get_mut("content")?.as_array_mut());
    parts.flatten().filter(|part| part["type"] == TYPE)
}

/// Makes a message's content a text, with a note in place of each image.
fn leave_images_out(message: &mut Value) {
    let Some(content) = message.get_mut("content") else {
        return;
    };
    let Some(parts) = content.as_array() else {
        return;
    };
    let texts = parts.iter().map(|part| {
        if part["type"] == TYPE {
            NOTE
        } else {
            text_in(part, "text")
        }
    });
    let text = texts.collect::<Vec<_>>().join("\n");
    *content = text.into();
}

fn text_in<'a>(part: &'a Value, name: &str) -> &'a str {
    part[name].as_str().unwrap_or_default()
}

fn refused(place: &str, error: &MediaError) -> ApiError {
    ApiError::field(place, format!("{place}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::io::{self, BufRead, BufReader, Write};
    use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
    use std::thread;
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::budget::BodyBudget;
    use souffleur_media::{Connect, Resolve};

    /// A server of the test, which every name and address leads to.
    #[derive(Debug)]
    struct Local(SocketAddr);

    impl Resolve for Local {
        fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
            Ok(vec![IpAddr::from([93, 184, 216, 34])])
        }
    }

    impl Connect for Local {
        fn connect(&self, _: SocketAddr, time: Duration) -> io::Result<TcpStream> {
            TcpStream::connect_timeout(&self.0, time)
        }
    }

    /// Answers a request with the name in its path.
    fn answer(stream: &TcpStream) {
        let (mut reader, mut head) = (BufReader::new(stream), String::new());
        while !head.ends_with("\r\n\r\n") {
            let n_bytes = reader.read_line(&mut head).expect("a line");
            assert_ne!(n_bytes, 0, "{head}");
        }
        let path = head.split(' ').nth(1).expect("a path");
        let body = path.trim_start_matches('/');
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        let mut stream = stream;
        stream.write_all(answer.as_bytes()).expect("a client");
    }

    #[actix_web::test]
    async fn files_are_fetched_with_their_indices() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let local = Arc::new(Local(listener.local_addr().expect("an address")));
        let server = thread::spawn(move || {
            for stream in listener.incoming().take(2) {
                answer(&stream.expect("a connection"));
            }
        });
        let domains = AllowedDomains::parse(&["images.example"]).expect("a host");
        let fetcher = Fetcher::with(domains, FetchLimits::default(), local.clone(), local);
        let media = Media {
            fetcher: Arc::new(fetcher),
            slots: Semaphore::new(1),
        };
        let wanted = |index: usize, name: &str| Wanted {
            index,
            url: MediaUrl::parse(&format!("http://images.example/{name}")).expect("a URL"),
            place: name.into(),
        };
        let pending = Pending(vec![wanted(9, "one"), wanted(4, "three")]);
        let mut charge = BodyBudget::new(1 << 20).open();
        let mut files = pending.files(&media, &mut charge).await.expect("files");
        files.sort();
        let expected = [(4, "three"), (9, "one")];
        let expected =
            expected.map(|(index, name)| -> (usize, Arc<[u8]>) { (index, name.as_bytes().into()) });
        assert_eq!(files, expected);
        server.join().expect("no panic");
    }

    #[actix_web::test]
    async fn one_call_leaves_slots_to_others() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let local = Arc::new(Local(listener.local_addr().expect("an address")));
        let domains = AllowedDomains::parse(&["images.example"]).expect("a host");
        let fetcher = Fetcher::with(domains, FetchLimits::default(), local.clone(), local);
        let media = Media {
            fetcher: Arc::new(fetcher),
            slots: Semaphore::new(MAX_FETCHES),
        };
        let wanted = (0..3 * MAX_FETCHES).map(|index| Wanted {
            index,
            url: MediaUrl::parse("http://images.example/a").expect("a URL"),
            place: "a".into(),
        });
        let pending = Pending(wanted.collect());
        let mut charge = BodyBudget::new(1 << 20).open();
        let mut fetching = Box::pin(pending.files(&media, &mut charge));
        assert!(fetching.as_mut().now_or_never().is_none());
        let free = MAX_FETCHES - MAX_FETCHES_OF_CALL;
        assert_eq!(media.slots.available_permits(), free);
        // The host answers none.
        drop(listener);
        assert!(fetching.await.is_err());
    }

    #[test]
    fn notes_take_the_places_of_images() {
        let image = json!({"type": "image", "at": "a", "url": "u"});
        let text = |text: &str| json!({"type": "text", "text": text});
        let mut messages = vec![
            json!({"role": "system", "content": "s"}),
            json!({"role": "user", "content": [text("a"), image, text("b"), image]}),
            json!({"role": "assistant"}),
        ];
        assert_eq!(images_in(&mut messages).count(), 2);
        messages.iter_mut().for_each(leave_images_out);
        assert_eq!(images_in(&mut messages).count(), 0);
        let noted = format!("a\n{NOTE}\nb\n{NOTE}");
        let expected = json!([
            {"role": "system", "content": "s"}, {"role": "user", "content": noted}, {"role": "assistant"},
        ]);
        assert_eq!(Value::Array(messages), expected);
    }

    #[test]
    fn fetched_files_are_put_into_all_samples_of_a_prompt() {
        let file = |place: &str, bytes: &[u8]| ImageFile {
            bytes: bytes.into(),
            field: place.into(),
        };
        let prompt = |images: Vec<ImageFile>| {
            let text = "a".into();
            GenerateRequest::new(TextImages { text, images }.into())
        };
        let first = prompt(vec![
            file("image_data[0][0]", b""),
            file("image_data[0][1]", b"x"),
        ]);
        let mut requests = vec![
            first.clone(),
            first,
            GenerateRequest::new(Prompt::Text("b".into())),
            prompt(vec![file("image_data[2]", b"")]),
        ];
        let files = [("image_data[0][0]", b"one"), ("image_data[2]", b"two")].into_iter();
        let files = files.map(|(place, bytes)| -> (Arc<str>, Arc<[u8]>) {
            (place.into(), bytes.as_slice().into())
        });
        put_files(&mut requests, &files.collect::<FxHashMap<_, _>>());
        let of = |index: usize| requests[index].prompt.image_files();
        let both = [
            file("image_data[0][0]", b"one"),
            file("image_data[0][1]", b"x"),
        ];
        assert_eq!((of(0), of(1), of(2).len()), (&both[..], &both[..], 0));
        assert_eq!(of(3), [file("image_data[2]", b"two")]);
        let (Prompt::TextImages(one), Prompt::TextImages(other)) =
            (&requests[0].prompt, &requests[1].prompt)
        else {
            panic!("texts with images");
        };
        assert!(Arc::ptr_eq(one, other));
    }
}
