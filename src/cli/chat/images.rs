//! Images of a conversation: files that the first message shows.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use souffleur::request::ImageFile;

use crate::cli::failure::Failure;

/// The server's limit of a request's body.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Reads the files that flags name.
///
/// # Errors
/// A file that cannot be read, or is too large.
pub(super) fn read(paths: &[PathBuf]) -> Result<Vec<ImageFile>, Failure> {
    paths.iter().map(|path| read_one(path)).collect()
}

fn read_one(path: &Path) -> Result<ImageFile, Failure> {
    let shown = path.display();
    let refused = |reason: String| Failure::Usage(format!("--image {shown}: {reason}"));
    let size = fs::metadata(path).map_err(|error| refused(error.to_string()))?;
    if size.len() > MAX_FILE_BYTES {
        let bytes = size.len();
        return Err(refused(format!(
            "the file has {bytes} bytes, and the limit is {MAX_FILE_BYTES}: name a smaller one"
        )));
    }
    let bytes = fs::read(path).map_err(|error| refused(error.to_string()))?;
    Ok(ImageFile {
        bytes: bytes.into(),
        field: format!("--image {shown}").into(),
    })
}

/// A question that shows images, with parts as templates take them.
pub(super) fn question(text: String, n_images: usize) -> Value {
    let images = std::iter::repeat_n(json!({"type": "image"}), n_images);
    let parts = images.chain([json!({"type": "text", "text": text})]);
    json!({"role": "user", "content": parts.collect::<Vec<Value>>()})
}

/// The messages in OpenAI's form, in which each image is a `data:` URL.
pub(super) fn with_urls(messages: &[Value], images: &[ImageFile]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    let mut images = images.iter();
    let contents = messages.iter_mut();
    let parts = contents.filter_map(|message| message.get_mut("content")?.as_array_mut());
    for part in parts.flatten().filter(|part| part["type"] == "image") {
        if let Some(image) = images.next() {
            let (kind, data) = (media_type(&image.bytes), STANDARD.encode(&image.bytes));
            let url = format!("data:{kind};base64,{data}");
            *part = json!({"type": "image_url", "image_url": {"url": url}});
        }
    }
    messages
}

fn media_type(bytes: &[u8]) -> &'static str {
    match bytes {
        [0xff, 0xd8, ..] => "image/jpeg",
        [b'R', b'I', b'F', b'F', ..] => "image/webp",
        [b'G', b'I', b'F', ..] => "image/gif",
        _ => "image/png",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_get_images_as_urls() {
        let image = ImageFile {
            bytes: b"GIF8"[..].into(),
            field: "a".into(),
        };
        let messages = [
            json!({"role": "system", "content": "s"}),
            question("q".to_owned(), 1),
        ];
        let sent = with_urls(&messages, &[image]);
        assert_eq!(sent[0], messages[0]);
        let url = json!({"url": "data:image/gif;base64,R0lGOA=="});
        let expected = json!({"role": "user", "content": [
            {"type": "image_url", "image_url": url}, {"type": "text", "text": "q"},
        ]});
        assert_eq!(sent[1], expected);
    }
}
