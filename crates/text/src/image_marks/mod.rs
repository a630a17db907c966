//! Images in chats: where a template has them, and which tokens they become.
//!
//! A template writes the name of a token for each image, such as `<|image_pad|>`. The same letters in a message are
//! text: they neither take an image's place nor become the token. So names in messages are replaced by nonces before the
//! template is rendered, which tells the names that the template wrote from all others. The others are then encoded by
//! a vocabulary that lacks these tokens, and has stand-ins for those of the template.

mod encode;
mod hide;
mod media;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use aho_corasick::{AhoCorasick, MatchKind};
use rustc_hash::FxHashMap;
use tokenizers::tokenizer::Model;
use tokenizers::{AddedToken, AddedVocabulary};

use super::TextModel;
use crate::chat::ChatPrompt;
pub use encode::ImageTokens;
use hide::Hidden;
use souffleur_base::error::RequestError;

/// The names of the tokens of a model's images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageNames {
    /// The placeholder that templates write for an image.
    pub placeholder: String,
    /// The token at the position of a vector.
    pub pad: String,
    /// The begin and end tokens of an image (its marks), which the template or the layout of the image writes.
    pub begin: Option<String>,
    pub end: Option<String>,
    /// Further marks of layouts, and tokens that no message may write. Those that the vocabulary lacks are ignored.
    pub others: Vec<String>,
}

/// A part of the text in place of an image's placeholder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImagePart<'a> {
    /// Text, which is encoded with its neighbours.
    Text(&'a str),
    /// A token, by its name.
    Mark(&'a str),
    /// The number of pad tokens.
    Vectors(u32),
}

/// Finds images in rendered chats, and keeps names in messages from being images.
#[derive(Debug)]
pub struct ImageMarks {
    names: Vec<String>,
    ids: Vec<u32>,
    of_images: OfImages,
    /// The nonce that replaces each name in messages; the last nonce separates a part of a name from its rest.
    nonces: Vec<String>,
    /// Finds the names, and then the nonces, in their order.
    in_rendered: AhoCorasick,
    in_messages: AhoCorasick,
    longest_name: usize,
    /// For each name, the stand-in that replaces it in the text that `plain` encodes.
    stand_ins: Vec<String>,
    /// The added tokens without `names`, and with `stand_ins`.
    plain: AddedVocabulary,
    /// The index in `names` of each stand-in's id in `plain`.
    of_stand_in: FxHashMap<u32, usize>,
    /// The model's ids of the tokens whose ids in `plain` are different.
    others: FxHashMap<u32, u32>,
}

/// The names of an image's tokens, by their indices.
#[derive(Clone, Copy, Debug)]
struct OfImages {
    /// `None` for a model that takes text only.
    placeholder: Option<usize>,
    pad: usize,
    begin: Option<usize>,
    end: Option<usize>,
}

/// Some added tokens of a vocabulary.
#[derive(Default)]
struct Found {
    names: Vec<String>,
    ids: Vec<u32>,
}

impl Found {
    /// The index of a name, which is added once.
    fn add(&mut self, text: &TextModel, name: &str) -> Result<usize, String> {
        if let Some(index) = self.names.iter().position(|known| known == name) {
            return Ok(index);
        }
        let id = text.added_token_id(name);
        let id = id.ok_or_else(|| format!("the vocabulary has no added token {name}"))?;
        self.ids.push(id);
        self.names.push(name.to_owned());
        Ok(self.names.len() - 1)
    }
}

/// A rendered chat with images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedImages {
    /// The text, with the names of tokens.
    pub text: String,
    /// The names that the template wrote: first byte, and index in the names.
    written: Vec<(usize, usize)>,
}

/// Random words that replace names. No client can guess them, and no answer contains them.
fn secret_word() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

impl ImageMarks {
    /// Finds the tokens in a vocabulary.
    ///
    /// # Errors
    /// Names the token that the vocabulary lacks, or that cannot be kept out of texts.
    pub fn find(text: &TextModel, given: &ImageNames) -> Result<Self, String> {
        let mut found = Found::default();
        let placeholder = found.add(text, &given.placeholder)?;
        let pad = found.add(text, &given.pad)?;
        let mut add = |name: &Option<String>| -> Result<Option<usize>, String> {
            let name = name.as_deref();
            name.map(|name| found.add(text, name)).transpose()
        };
        let (begin, end) = (add(&given.begin)?, add(&given.end)?);
        for name in &given.others {
            // Vocabularies have only some of them.
            drop(found.add(text, name));
        }
        let of_images = OfImages {
            placeholder: Some(placeholder),
            pad,
            begin,
            end,
        };
        Self::of(text, found, of_images)
    }

    /// The names of media that the vocabulary of a model without a tower has: no message may write their tokens, which
    /// such a model cannot read. `None` if there are none, or if they cannot be kept out of texts.
    fn of_text_only(text: &TextModel) -> Option<Self> {
        let mut found = Found::default();
        for name in media::names() {
            drop(found.add(text, &name));
        }
        let of_images = OfImages {
            placeholder: None,
            pad: 0,
            begin: None,
            end: None,
        };
        let has_names = !found.names.is_empty();
        has_names
            .then(|| Self::of(text, found, of_images).ok())
            .flatten()
    }

    fn of(text: &TextModel, found: Found, of_images: OfImages) -> Result<Self, String> {
        let Found { names, ids } = found;
        let (hiding, standing) = (secret_word(), secret_word());
        let numbered = |word: &str, n: usize| format!("x{word}{n:03}z");
        let nonces: Vec<String> = (0..=names.len()).map(|n| numbered(&hiding, n)).collect();
        let stand_ins: Vec<String> = (0..names.len()).map(|n| numbered(&standing, n)).collect();
        let plain = without(text, &names, &ids, &stand_ins)?;
        let failed = |error: aho_corasick::BuildError| error.to_string();
        let marks = Self {
            in_rendered: matcher(names.iter().chain(&nonces)).map_err(failed)?,
            in_messages: matcher(names.iter()).map_err(failed)?,
            longest_name: names.iter().map(String::len).max().unwrap_or(0),
            of_stand_in: ids_of_stand_ins(&plain, &stand_ins),
            others: moved_ids(text, &plain)?,
            names,
            ids,
            of_images,
            nonces,
            stand_ins,
            plain,
        };
        marks.check(text)?;
        Ok(marks)
    }

    /// Checks that names in a text do not become their tokens, as SentencePiece's user-defined pieces would.
    fn check(&self, text: &TextModel) -> Result<(), String> {
        for name in &self.names {
            let encoding = text.encode_matching(&self.plain, name);
            let encoding = encoding.map_err(|error| error.to_string())?;
            let becomes = |id: &u32| {
                let of_model = self.others.get(id).unwrap_or(id);
                self.ids.contains(of_model) || self.of_stand_in.contains_key(id)
            };
            if encoding.get_ids().iter().any(becomes) {
                return Err(format!(
                    "the tokenizer turns the plain text {name} into the image token, so a client's text could pose as \
                     an image: use another conversion of this model, or send text only"
                ));
            }
        }
        Ok(())
    }

    /// Whether messages, tools or template arguments have one of the names as text, so that the chat must be rendered
    /// and encoded here even if it has no images.
    pub fn are_in(&self, prompt: &ChatPrompt<'_>) -> bool {
        Hidden::is_needed(self, prompt)
    }

    /// The token id at the positions of vectors.
    pub fn pad_id(&self) -> u32 {
        self.ids[self.of_images.pad]
    }

    /// The name that stands for an image.
    pub fn placeholder(&self) -> &str {
        let index = self.of_images.placeholder;
        index.map_or("", |index| &self.names[index])
    }

    /// Finds the names in a text that no template has rendered: all of them are tokens.
    pub fn written_in(&self, text: &str) -> RenderedImages {
        self.read(text)
    }

    /// The number of images that the text has places for.
    pub fn n_placeholders(&self, rendered: &RenderedImages) -> usize {
        let written = rendered.written.iter();
        let placeholder = self.of_images.placeholder;
        written.filter(|it| Some(it.1) == placeholder).count()
    }

    fn index_of(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }

    /// Finds the names that the template wrote, and puts the others back into the text.
    fn read(&self, rendered: &str) -> RenderedImages {
        let (mut text, mut written) = (String::with_capacity(rendered.len()), Vec::new());
        let mut done = 0;
        for found in self.in_rendered.find_iter(rendered) {
            text.push_str(&rendered[done..found.start()]);
            let pattern = found.pattern().as_usize();
            match pattern.checked_sub(self.names.len()) {
                None => {
                    written.push((text.len(), pattern));
                    text.push_str(&self.names[pattern]);
                }
                // The last nonce hides nothing.
                Some(nonce) => text.push_str(self.names.get(nonce).map_or("", String::as_str)),
            }
            done = found.end();
        }
        text.push_str(&rendered[done..]);
        RenderedImages { text, written }
    }
}

impl TextModel {
    /// The names of media in the vocabulary of a model that takes text only; `None` if it has none.
    pub fn media_names(&self) -> Option<&ImageMarks> {
        let names = &self.media_names;
        let names = names.get_or_init(|| ImageMarks::of_text_only(self).map(Box::new));
        names.as_deref()
    }

    /// The tokens that [`encode`](Self::encode) puts before a text, such as BOS.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    pub fn tokens_before(&self, text: &str) -> Result<Vec<u32>, RequestError> {
        let bos = self.special.bos.as_deref().unwrap_or_default();
        if !bos.is_empty() && text.starts_with(bos) {
            return Ok(Vec::new());
        }
        let added = self.encode("")?;
        let is_bos = |id: &u32| Some(*id) == self.bos_id();
        Ok(added.into_iter().take_while(is_bos).collect())
    }

    /// Renders messages, of which parts of the form `{"type": "image"}` are images.
    ///
    /// # Errors
    /// Those of [`render_chat`](Self::render_chat), and [`RequestError::Invalid`] if there are images and the template
    /// takes text only.
    pub fn render_images(
        &self,
        marks: &ImageMarks,
        prompt: &ChatPrompt<'_>,
    ) -> Result<RenderedImages, RequestError> {
        let Some(template) = &self.template else {
            // Refuses the chat.
            return self.render_chat(prompt).map(|text| marks.read(&text));
        };
        let hidden = Hidden::of(marks, prompt)?;
        let rendered = template.render_with_images(&hidden.prompt(prompt))?;
        Ok(marks.read(&rendered))
    }
}

fn matcher<'a>(
    patterns: impl Iterator<Item = &'a String>,
) -> Result<AhoCorasick, aho_corasick::BuildError> {
    let mut builder = AhoCorasick::builder();
    builder
        .match_kind(MatchKind::LeftmostLongest)
        .build(patterns)
}

/// A model's added tokens, of which some are replaced by stand-ins. Their ids may differ from the model's.
fn without(
    text: &TextModel,
    names: &[String],
    ids: &[u32],
    stand_ins: &[String],
) -> Result<AddedVocabulary, String> {
    let added = text.tokenizer.get_added_vocabulary();
    let known = added.get_added_tokens_decoder();
    let mut kept: Vec<(&u32, &AddedToken)> = known
        .iter()
        .filter(|(_, token)| !names.contains(&token.content))
        .collect();
    kept.sort_unstable_by_key(|(id, _)| **id);
    let kept = kept.into_iter().map(|(_, token)| token.clone());
    let standing = ids.iter().zip(stand_ins).map(|(id, stand_in)| {
        let token = known.get(id).cloned();
        let token = token.unwrap_or_else(|| AddedToken::from(stand_in.as_str(), true));
        AddedToken {
            content: stand_in.clone(),
            ..token
        }
    });
    let mut plain = AddedVocabulary::new();
    let (model, normalizer) = (text.tokenizer.get_model(), text.tokenizer.get_normalizer());
    let set = plain.add_tokens(kept.chain(standing), model, normalizer);
    set.map_err(|error| error.to_string())?;
    Ok(plain)
}

fn ids_of_stand_ins(plain: &AddedVocabulary, stand_ins: &[String]) -> FxHashMap<u32, usize> {
    let numbered = stand_ins.iter().enumerate();
    let ids = numbered.filter_map(|(n, stand_in)| Some((*plain.get_vocab().get(stand_in)?, n)));
    ids.collect()
}

/// Maps ids in `plain` to the model's ids where the two differ.
fn moved_ids(text: &TextModel, plain: &AddedVocabulary) -> Result<FxHashMap<u32, u32>, String> {
    let model = text.tokenizer.get_model();
    let ids = text.tokenizer.get_added_vocabulary().get_vocab();
    let mut moved = FxHashMap::default();
    for (name, id) in plain.get_vocab() {
        if model.id_to_token(*id).is_some_and(|other| other != *name) {
            return Err(format!(
                "the vocabulary has two tokens with the id {id}, one of which is {name}"
            ));
        }
        if let Some(of_model) = ids.get(name).filter(|of_model| *of_model != id) {
            moved.insert(*id, *of_model);
        }
    }
    Ok(moved)
}
