//! The content of a message: texts and images in order.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::openai::json_values::{missing, must_be, text};

pub(super) const TYPE: &str = "image";
/// The fields of a part: its place, its source, and the error by which the API refuses it.
pub(super) const PLACE: &str = "at";
pub(super) const URL: &str = "url";
pub(super) const BASE64: &str = "data";
pub(super) const REFUSED_FIELD: &str = "param";
pub(super) const REFUSAL: &str = "refusal";

/// How an image is sent.
pub(crate) enum Encoding {
    Url(String),
    Base64(String),
}

/// A part for an image at `place`. `refusal` names the field and has the text by which the API refuses images.
pub(crate) fn image_part(
    place: &str,
    encoding: Encoding,
    (field, refusal): (String, String),
) -> Value {
    let (name, source) = match encoding {
        Encoding::Url(url) => (URL, url),
        Encoding::Base64(data) => (BASE64, data),
    };
    let mut part = json!({"type": TYPE, PLACE: place, REFUSED_FIELD: field, REFUSAL: refusal});
    part[name] = source.into();
    part
}

/// Takes `image_url` out of a part: a URL, or an object with `url`. Other fields, such as `detail`, change nothing.
pub(crate) fn url_of(part: &mut Map<String, Value>, path: &str) -> Result<String, ApiError> {
    let path = format!("{path}.image_url");
    match part.get_mut("image_url").map(Value::take) {
        None | Some(Value::Null) => Err(missing(path, "a URL, or an object with url")),
        Some(Value::String(url)) => Ok(url),
        Some(Value::Object(mut object)) => {
            text(&object, &path, "url")?;
            match object.get_mut("url").map(Value::take) {
                Some(Value::String(url)) => Ok(url),
                _ => Ok(String::new()),
            }
        }
        Some(other) => Err(must_be(&path, &other, "a URL, or an object with url")),
    }
}

/// A message's texts and images, in order.
#[derive(Debug, Default)]
pub(crate) struct Content {
    parts: Vec<Part>,
    has_images: bool,
}

#[derive(Debug)]
enum Part {
    Text(String),
    Image(Value),
}

impl Content {
    pub(crate) fn push_text(&mut self, text: String) {
        self.parts.push(Part::Text(text));
    }

    pub(crate) fn push_image(&mut self, part: Value) {
        self.parts.push(Part::Image(part));
        self.has_images = true;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// A text if there are no images, else a list of parts. Texts without an image between are joined with `gap`.
    pub(crate) fn into_value(self, gap: &str) -> Value {
        let mut joined: Vec<Value> = Vec::with_capacity(self.parts.len());
        let mut open: Option<String> = None;
        let close = |open: Option<String>, joined: &mut Vec<Value>| {
            joined.extend(open.map(|text| json!({"type": "text", "text": text})));
        };
        for part in self.parts {
            match part {
                Part::Text(text) => match &mut open {
                    Some(before) => {
                        before.push_str(gap);
                        before.push_str(&text);
                    }
                    None => open = Some(text),
                },
                Part::Image(image) => {
                    close(open.take(), &mut joined);
                    joined.push(image);
                }
            }
        }
        if !self.has_images {
            return Value::String(open.unwrap_or_default());
        }
        close(open, &mut joined);
        Value::Array(joined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_joined_and_images_stay_in_place() {
        let image = |url: &str| {
            let refusal = ("a".to_owned(), "b".to_owned());
            image_part("c", Encoding::Url(url.to_owned()), refusal)
        };
        let mut content = Content::default();
        assert!(content.is_empty());
        content.push_text("a".to_owned());
        content.push_text("b".to_owned());
        content.push_image(image("x"));
        content.push_image(image("y"));
        content.push_text("c".to_owned());
        let text = |text: &str| json!({"type": "text", "text": text});
        let expected = json!([text("a\nb"), image("x"), image("y"), text("c")]);
        assert_eq!(content.into_value("\n"), expected);
        let mut texts = Content::default();
        texts.push_text("a".to_owned());
        texts.push_text("b".to_owned());
        assert_eq!(texts.into_value(" "), json!("a b"));
        assert_eq!(Content::default().into_value(" "), json!(""));
    }

    #[test]
    fn urls_are_texts_or_in_objects() {
        let read = |value: Value| {
            let mut part = json!({"type": "image_url", "image_url": value});
            let part = part.as_object_mut().expect("an object");
            url_of(part, "p").map_err(|error| error.to_string())
        };
        assert_eq!(read(json!("u")), Ok("u".to_owned()));
        assert_eq!(
            read(json!({"url": "u", "detail": "low"})),
            Ok("u".to_owned())
        );
        for (value, expected) in [
            (
                json!(null),
                "p.image_url is missing: send a URL, or an object with url",
            ),
            (
                json!(5),
                "p.image_url is 5, must be a URL, or an object with url",
            ),
            (json!({}), "p.image_url.url is missing: send a string"),
            (json!({"url": 5}), "p.image_url.url is 5, must be a string"),
        ] {
            assert_eq!(read(value), Err(expected.to_owned()));
        }
    }
}
