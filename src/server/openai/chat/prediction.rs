//! Reads `prediction`, a guess of the answer's text.

use std::sync::Arc;

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::json_values::{missing, must_be, object, text};

const NAME: &str = "prediction";
const CONTENT: &str = "prediction.content";
const WANTED: &str = "a string or a list of text parts";

/// The text of the prediction; `None` if there is none, or an empty one.
pub(super) fn read(fields: &mut Fields) -> Result<Option<Arc<str>>, ApiError> {
    let Some(raw) = fields.take_raw(NAME) else {
        return Ok(None);
    };
    let prediction = object(NAME, fields.request_tree(NAME, &raw)?)?;
    let kind = text(&prediction, NAME, "type")?;
    if kind != "content" {
        let kind = Value::from(kind);
        return Err(must_be("prediction.type", &kind, "\"content\""));
    }
    let content = match prediction.get("content") {
        None | Some(Value::Null) => return Err(missing(CONTENT.to_owned(), WANTED)),
        Some(Value::String(content)) => content.clone(),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().enumerate().map(text_of_part);
            texts.collect::<Result<String, ApiError>>()?
        }
        Some(other) => return Err(must_be(CONTENT, other, WANTED)),
    };
    Ok(Some(content)
        .filter(|content| !content.is_empty())
        .map(Arc::from))
}

fn text_of_part((index, part): (usize, &Value)) -> Result<&str, ApiError> {
    let path = format!("{CONTENT}[{index}]");
    let Value::Object(fields) = part else {
        return Err(must_be(&path, part, "an object"));
    };
    match text(fields, &path, "type")? {
        "text" => text(fields, &path, "text"),
        other => {
            let other = Value::from(other);
            Err(must_be(&format!("{path}.type"), &other, "\"text\""))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn prediction(value: Value) -> Result<Option<String>, String> {
        let read = read(&mut Fields::of(&json!({ "prediction": value })));
        read.map(|text| text.map(|text| text.to_string()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_content_is_a_text_or_a_list_of_texts() {
        let text = |content| prediction(json!({"type": "content", "content": content}));
        assert_eq!(text(json!("a b")), Ok(Some("a b".to_owned())));
        let parts = json!([{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]);
        assert_eq!(text(parts), Ok(Some("a b".to_owned())));
        for nothing in [json!(""), json!([])] {
            assert_eq!(text(nothing), Ok(None));
        }
        assert_eq!(prediction(Value::Null), Ok(None));
    }

    #[test]
    fn other_shapes_are_refused_by_their_place() {
        for (value, start) in [
            (json!("a"), "prediction is \"a\", must be an object"),
            (json!({"content": "a"}), "prediction.type is missing"),
            (
                json!({"type": "text", "content": "a"}),
                "prediction.type is \"text\", must be \"content\"",
            ),
            (json!({"type": "content"}), "prediction.content is missing"),
            (
                json!({"type": "content", "content": 5}),
                "prediction.content is 5, must be a string or a list",
            ),
            (
                json!({"type": "content", "content": ["a"]}),
                "prediction.content[0] is \"a\", must be an object",
            ),
            (
                json!({"type": "content", "content": [{"type": "image_url"}]}),
                "prediction.content[0].type is \"image_url\", must be \"text\"",
            ),
            (
                json!({"type": "content", "content": [{"type": "text"}]}),
                "prediction.content[0].text is missing",
            ),
        ] {
            let refusal = prediction(value).expect_err(start);
            assert!(refusal.starts_with(start), "{refusal}");
        }
    }
}
