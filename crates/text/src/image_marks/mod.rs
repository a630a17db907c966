//! Images in chats: where a template has them, and which tokens they become.
//!
//! A template writes the name of a token for each image, such as `<|image_pad|>`. The same letters in a message are
//! text: they neither take an image's place nor become the token. So a copy of the template has secret stand-ins in the
//! places of the names: every name in a text that the copy has rendered came from a message, as a whole or in part. The
//! text is then encoded by a vocabulary that lacks these names, and has the stand-ins as tokens.
//!
//! Only a chat with images, or with a name in its rendered text, needs the copy.

mod encode;
mod in_texts;
mod media;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use aho_corasick::{AhoCorasick, MatchKind};
use rustc_hash::FxHashMap;
use tokenizers::tokenizer::Model;
use tokenizers::{AddedToken, AddedVocabulary};

use super::TextModel;
use crate::chat::ChatPrompt;
use crate::refusal::invalid;
use crate::template::ChatTemplate;
pub use encode::ImageTokens;
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
///
/// Made for one [`TextModel`].
#[derive(Debug)]
pub struct ImageMarks {
    names: Vec<String>,
    ids: Vec<u32>,
    of_images: OfImages,
    /// Finds the names, in their order.
    of_names: AhoCorasick,
    /// Written for each name of the template in the text that `plain` encodes.
    stand_ins: Vec<String>,
    /// Finds the stand-ins, in their order.
    of_stand_ins: AhoCorasick,
    /// The chat template with stand-ins in the places of names.
    template: Option<ChatTemplate>,
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
        let word = secret_word();
        let numbered = |n: usize| format!("x{word}{n:03}z");
        let stand_ins: Vec<String> = (0..names.len()).map(numbered).collect();
        let plain = without(text, &names, &ids, &stand_ins)?;
        let failed = |error: aho_corasick::BuildError| error.to_string();
        let of_names = matcher(&names).map_err(failed)?;
        let marked = |source: &str| of_names.replace_all(source, &stand_ins);
        let template = text.template.as_ref();
        let template = template.map(|template| template.rewritten(marked));
        let marks = Self {
            template,
            of_names,
            of_stand_ins: matcher(&stand_ins).map_err(failed)?,
            of_stand_in: ids_of_stand_ins(&plain, &stand_ins),
            others: moved_ids(text, &plain)?,
            names,
            ids,
            of_images,
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

    /// Whether a text that the model's own template has rendered has one of the names, which a message may have brought
    /// in.
    pub fn are_in(&self, rendered: &str) -> bool {
        self.of_names.is_match(rendered)
    }

    /// Whether a chat has names that the template did not write, or not alone: they are letters.
    pub fn are_letters_in(&self, rendered: &RenderedImages) -> bool {
        let mut names = self.of_names.find_iter(&*rendered.text);
        names.any(|name| {
            let place = (name.start(), name.pattern().as_usize());
            rendered.written.binary_search(&place).is_err()
        })
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
        let names = self.of_names.find_iter(text);
        let written = names.map(|name| (name.start(), name.pattern().as_usize()));
        RenderedImages {
            text: text.to_owned(),
            written: written.collect(),
        }
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

    /// Puts the names into the places of the stand-ins that the template wrote.
    fn read(&self, rendered: &str) -> RenderedImages {
        let (mut text, mut written) = (String::with_capacity(rendered.len()), Vec::new());
        let mut done = 0;
        for found in self.of_stand_ins.find_iter(rendered) {
            text.push_str(&rendered[done..found.start()]);
            let name = found.pattern().as_usize();
            written.push((text.len(), name));
            text.push_str(&self.names[name]);
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

    /// Renders messages, of which parts of the form `{"type": "image"}` are images. If the template leaves out or
    /// refuses the images of some roles, these roles' messages with images become texts with placeholders.
    ///
    /// # Errors
    /// Those of [`render_chat`](Self::render_chat), and [`RequestError::Invalid`] if there are images and the template
    /// takes text only.
    pub fn render_images(
        &self,
        marks: &ImageMarks,
        prompt: &ChatPrompt<'_>,
    ) -> Result<RenderedImages, RequestError> {
        let (Some(own), Some(marked)) = (&self.template, &marks.template) else {
            // Refuses the chat.
            return self.render_chat(prompt).map(|text| marks.read(&text));
        };
        let as_given = marked.render_with_images(prompt).ok();
        let as_given = as_given.map(|rendered| marks.read(&rendered));
        if let Some(rendered) = marks.render_in_texts(marked, prompt, as_given.as_ref()) {
            return Ok(rendered);
        }
        if let Some(rendered) = as_given {
            return Ok(rendered);
        }
        // Errors may quote the template, and no client may see a stand-in.
        own.render_with_images(prompt)?;
        invalid(
            "the chat template exceeds its limits once its images are marked: send shorter messages"
                .to_owned(),
        )
    }
}

fn matcher(patterns: &[String]) -> Result<AhoCorasick, aho_corasick::BuildError> {
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
