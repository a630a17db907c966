//! llama.cpp's form of `POST /tokenize`: the tokens of `content`, on request with the text of each.

use serde::{Serialize, Serializer};

use crate::encode;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::foreign;
use crate::openapi::shape::{
    ObjectShape, Shape, any_of, flag, list, object, text, token_id, whole,
};
use crate::spelling::SpellTokens;
use souffleur_base::error::RequestError;
use souffleur_model::text::TextModel;

const NAME: &str = "content";
/// Fields of the endpoint's other forms.
const OTHER_FORMS: [&str; 2] = ["prompt", "messages"];
/// Fields of the other forms that would change the answer.
const FOREIGN: [&str; 3] = [
    "add_special_tokens",
    "return_token_strs",
    "truncate_prompt_tokens",
];

/// The body of a call.
pub(crate) struct Content {
    pub(crate) text: String,
    /// Adds the model's special tokens, such as BOS.
    adds_special: bool,
    /// Reads the names of special tokens in the text as these tokens.
    parses_special: bool,
    pub(crate) with_pieces: bool,
}

#[derive(Serialize)]
struct Answer<T> {
    tokens: T,
}

/// Tokens with their texts. A text is made when it is written, so that only the JSON takes memory.
struct Pieces<'a> {
    tokenizer: &'a TextModel,
    ids: &'a [u32],
}

#[derive(Serialize)]
struct Token {
    id: u32,
    piece: Piece,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Piece {
    Text(String),
    /// Part of a character.
    Bytes(Vec<u8>),
}

impl Content {
    /// Reads `content` and the fields that belong to it; `None` without it.
    pub(crate) fn read(fields: &mut Fields) -> Result<Option<Self>, ApiError> {
        let Some(text) = fields.string(NAME)? else {
            return Ok(None);
        };
        let mut others = OTHER_FORMS.into_iter();
        if let Some(other) = others.find(|other| fields.peek(other).is_some()) {
            let text = format!("{NAME} and {other} are both given: send one of them");
            return Err(ApiError::field(NAME, text));
        }
        let content = Self {
            text,
            adds_special: fields.flag("add_special")?,
            parses_special: fields.optional_flag("parse_special")?.unwrap_or(true),
            with_pieces: fields.flag("with_pieces")?,
        };
        foreign::refuse_these(fields, &FOREIGN)?;
        Ok(Some(content))
    }

    /// The answer as JSON.
    pub(crate) fn answer(
        &self,
        tokenizer: &TextModel,
        limit_tokens: usize,
    ) -> Result<Vec<u8>, RequestError> {
        let encode = if self.parses_special {
            encode::encode
        } else {
            encode::encode_letters
        };
        let ids = encode(tokenizer, &self.text, self.adds_special, limit_tokens)?;
        let pieces = Pieces {
            tokenizer,
            ids: &ids,
        };
        let json = if self.with_pieces {
            serde_json::to_vec(&Answer { tokens: pieces })
        } else {
            serde_json::to_vec(&Answer { tokens: &ids })
        };
        Ok(json.expect("answers have string keys only"))
    }
}

impl Serialize for Pieces<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let token = |id: &u32| Token {
            id: *id,
            piece: piece(self.tokenizer, *id),
        };
        serializer.collect_seq(self.ids.iter().map(token))
    }
}

fn piece(tokenizer: &TextModel, id: u32) -> Piece {
    match String::from_utf8(SpellTokens::bytes(tokenizer, id)) {
        Ok(text) => Piece::Text(text),
        Err(error) => Piece::Bytes(error.into_bytes()),
    }
}

/// The fields of a call.
pub(crate) fn fields() -> ObjectShape {
    let parses = "with `content`: names of special tokens in the text become these tokens";
    let pieces = "with `content`: the text of each token as well";
    object()
        .takes(
            NAME,
            text().about("llama.cpp's form: a text, instead of `prompt`"),
        )
        .takes(
            "add_special",
            flag().about(
                "with `content`, false by default: add tokens such as the one that begins a text",
            ),
        )
        .takes("parse_special", flag().or(true).about(parses))
        .takes("with_pieces", flag().or(false).about(pieces))
}

/// A token in the answer with `with_pieces`.
pub(crate) fn token() -> Shape {
    let bytes =
        list(whole().at_least(0).at_most(u8::MAX)).about("the bytes of a part of a character");
    let token = object()
        .has("id", token_id())
        .has("piece", any_of([text(), bytes]));
    token.shape()
}
