//! Encodes a rendered chat with images.

use std::ops::Range;

use super::{ImageMarks, ImagePart, RenderedImages};
use crate::TextModel;
use crate::not_tokenized;
use crate::refusal::invalid;
use souffleur_base::error::RequestError;

/// The tokens of a chat with images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageTokens {
    pub tokens: Vec<u32>,
    /// The positions of each image, including its marks (tokens without a vector, as at begin and end).
    pub images: Vec<Range<u32>>,
}

/// A stand-in in the text that is encoded.
struct StandIn {
    /// Index in the names.
    name: usize,
    /// The image to which it belongs; `None` for a mark of the template.
    image: Option<usize>,
    /// The number of tokens that take its place.
    count: u32,
}

/// The text that the vocabulary without names encodes, and its stand-ins in order.
#[derive(Default)]
struct Prepared {
    text: String,
    stand_ins: Vec<StandIn>,
}

impl Prepared {
    fn push(&mut self, marks: &ImageMarks, stand_in: StandIn) {
        self.text.push_str(&marks.stand_ins[stand_in.name]);
        self.stand_ins.push(stand_in);
    }
}

impl TextModel {
    /// Encodes a rendered chat. Each placeholder that the template wrote is replaced by the parts of an image, in order.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode); [`RequestError::Invalid`] if the template wrote another number of images, or a
    /// part's mark is none of the model's.
    pub fn encode_images(
        &self,
        marks: &ImageMarks,
        rendered: &RenderedImages,
        images: &[Vec<ImagePart<'_>>],
    ) -> Result<ImageTokens, RequestError> {
        marks.check_number(rendered, images.len())?;
        let prepared = marks.prepare(rendered, images)?;
        let encoding = self.encode_matching(&marks.plain, &prepared.text);
        let encoding = encoding.map_err(|error| not_tokenized(&*error))?;
        marks.expand(encoding.get_ids(), &prepared.stand_ins, images.len())
    }
}

impl ImageMarks {
    /// Checks that a template has written this number of images.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] for another number.
    pub fn check_number(
        &self,
        rendered: &RenderedImages,
        n_images: usize,
    ) -> Result<(), RequestError> {
        let n_written = self.n_placeholders(rendered);
        if n_written != n_images {
            return invalid(format!(
                "the chat template writes {n_written} images, and the messages have {n_images}: send images in messages \
                 of a role for which the template takes them, such as user"
            ));
        }
        Ok(())
    }

    fn prepare(
        &self,
        rendered: &RenderedImages,
        images: &[Vec<ImagePart<'_>>],
    ) -> Result<Prepared, RequestError> {
        let mut prepared = Prepared::default();
        let (mut done, mut images) = (0, images.iter().enumerate());
        for (start, name) in &rendered.written {
            prepared.text.push_str(&rendered.text[done..*start]);
            done = start + self.names[*name].len();
            let is_image = Some(*name) == self.of_images.placeholder;
            let image = is_image.then(|| images.next()).flatten();
            let Some((index, parts)) = image else {
                let stand_in = StandIn {
                    name: *name,
                    image: None,
                    count: 1,
                };
                prepared.push(self, stand_in);
                continue;
            };
            for part in parts {
                let (name, count) = match part {
                    ImagePart::Text(text) => {
                        prepared.text.push_str(text);
                        continue;
                    }
                    ImagePart::Vectors(count) => (self.of_images.pad, *count),
                    ImagePart::Mark(name) => match self.index_of(name) {
                        Some(index) => (index, 1),
                        None => {
                            return invalid(format!(
                                "an image of this size needs the token {name}, which the model's vocabulary lacks: send \
                                 text alone, or use another conversion of this model"
                            ));
                        }
                    },
                };
                let stand_in = StandIn {
                    name,
                    image: Some(index),
                    count,
                };
                prepared.push(self, stand_in);
            }
        }
        prepared.text.push_str(&rendered.text[done..]);
        Ok(prepared)
    }

    /// Replaces stand-ins by their tokens.
    fn expand(
        &self,
        ids: &[u32],
        stand_ins: &[StandIn],
        n_images: usize,
    ) -> Result<ImageTokens, RequestError> {
        let n_tokens: usize = stand_ins.iter().map(|it| it.count as usize).sum();
        let mut tokens = Vec::with_capacity(ids.len() + n_tokens);
        let mut places: Vec<Range<u32>> = Vec::with_capacity(stand_ins.len());
        let mut expected = stand_ins.iter();
        for id in ids {
            let Some(name) = self.of_stand_in.get(id) else {
                tokens.push(self.others.get(id).copied().unwrap_or(*id));
                continue;
            };
            let next = expected.next().filter(|it| it.name == *name);
            let Some(stand_in) = next else {
                return invalid("the messages hold a reserved word: send other text".to_owned());
            };
            let start = tokens.len();
            let count = stand_in.count as usize;
            tokens.extend(std::iter::repeat_n(self.ids[*name], count));
            places.push(start as u32..(start + count) as u32);
        }
        if expected.next().is_some() {
            return invalid("the tokenizer leaves out tokens of images".to_owned());
        }
        let images = (0..n_images).map(|image| self.span(image, stand_ins, &places));
        let images = images.collect();
        Ok(ImageTokens { tokens, images })
    }

    /// The positions of an image: its parts, and the marks that the template wrote around them.
    fn span(&self, image: usize, stand_ins: &[StandIn], places: &[Range<u32>]) -> Range<u32> {
        let is_of_image = |it: &StandIn| it.image == Some(image);
        let first = stand_ins.iter().position(is_of_image);
        let last = stand_ins.iter().rposition(is_of_image);
        let (Some(first), Some(last)) = (first, last) else {
            return 0..0;
        };
        let (start, end) = (places[first].start, places[last].end);
        let is = |index: usize, name: Option<usize>| {
            let stand_in = stand_ins.get(index);
            stand_in.is_some_and(|it| it.image.is_none() && Some(it.name) == name)
        };
        let before = first
            .checked_sub(1)
            .filter(|it| is(*it, self.of_images.begin));
        let before = before.filter(|it| places[*it].end == start);
        let after = Some(last + 1).filter(|it| is(*it, self.of_images.end));
        let after = after.filter(|it| places[*it].start == end);
        match (before, after) {
            (Some(before), Some(after)) => places[before].start..places[after].end,
            _ => start..end,
        }
    }
}
