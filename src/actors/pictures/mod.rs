//! Reads the images of chats for one model: from files to positions in the prompt, digests and pixels.
//!
//! Counting tokens needs only the headers of the files. Decoding takes time that grows with the pixels, so it belongs to
//! the Tokenizer's lanes, or to threads for blocking work.

mod input;
mod names;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use souffleur_base::error::{FieldError, PromptTokens, RequestError};
use souffleur_images::{ImageError, Layout, Limits, Processor};
use souffleur_model::text::{self, ImageMarks, ImagePart, ImageTokens, RenderedImages, TextModel};
use souffleur_request::{
    ChatPrompt, ImageDigest, ImageFile, ImageGrid, ImagePrompt, PromptImage, TextImages,
};

use input::Pixels;
use names::LayoutNames;

/// Pixels that take as long to decode and to scale as a byte of text takes to encode.
const PIXELS_PER_BYTE: u64 = 8;

/// The image processor of a model, and the tokens of its images.
pub struct ImageReader {
    processor: Arc<Processor>,
    names: LayoutNames,
    marks: ImageMarks,
    /// All that the vectors depend on in addition to the pixels: the weights of the tower, its settings.
    tower: Box<[u8]>,
    limits: Limits,
}

/// A chat with images, encoded.
#[derive(Debug)]
pub struct ReadChat {
    /// The text that the template has rendered.
    pub text: String,
    /// True token ids; the vectors of the images are to be computed from their pixels.
    pub prompt: ImagePrompt,
}

impl ImageReader {
    /// A reader for a model with this vocabulary. `tower` is the fingerprint of the tower that encodes the images.
    ///
    /// # Errors
    /// The reason why the vocabulary does not fit the processor.
    pub fn new(
        text: &TextModel,
        processor: Processor,
        tower: &[u8],
        limits: Limits,
    ) -> Result<Self, String> {
        let names = LayoutNames::of(&processor);
        Ok(Self {
            marks: ImageMarks::find(text, &names.of_vocabulary())?,
            processor: Arc::new(processor),
            names,
            tower: tower.into(),
            limits,
        })
    }

    /// Renders a chat with the placeholder's name for each image. Reads no images.
    ///
    /// # Errors
    /// Those of the template, and another number of placeholders than images.
    pub fn render(&self, text: &TextModel, chat: &ChatPrompt) -> Result<String, RequestError> {
        let rendered = text.render_images(&self.marks, &for_template(chat))?;
        self.marks.check_number(&rendered, chat.images.len())?;
        Ok(rendered.text)
    }

    /// Renders and encodes a chat with pad tokens at the positions of vectors. Reads only the headers of the images.
    ///
    /// # Errors
    /// [`FieldError`] with an image's place in the request, [`RequestError::PromptTooLong`], and the errors of the
    /// template and the vocabulary.
    pub fn count(
        &self,
        text: &TextModel,
        chat: &ChatPrompt,
        limit_tokens: usize,
    ) -> Result<ImageTokens, RequestError> {
        let layouts = self.layouts(&chat.images)?;
        let rendered = text.render_images(&self.marks, &for_template(chat))?;
        self.encode(text, &rendered, &layouts, limit_tokens)
    }

    /// As [`count`](Self::count), and decodes, scales and names the images.
    ///
    /// # Errors
    /// Those of [`count`](Self::count), before any pixels are decoded, and damaged files. Ends early if `is_cancelled`.
    pub fn read(
        &self,
        text: &TextModel,
        chat: &ChatPrompt,
        limit_tokens: usize,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<ReadChat, RequestError> {
        let layouts = self.layouts(&chat.images)?;
        let rendered = text.render_images(&self.marks, &for_template(chat))?;
        let encoded = self.encode(text, &rendered, &layouts, limit_tokens)?;
        Ok(ReadChat {
            text: rendered.text,
            prompt: self.with_images(&chat.images, encoded, is_cancelled)?,
        })
    }

    /// As [`read`](Self::read), for a text in which the placeholder's name stands for an image.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), and another number of placeholders than images.
    pub fn read_text(
        &self,
        text: &TextModel,
        given: &TextImages,
        limit_tokens: usize,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<ReadChat, RequestError> {
        let layouts = self.layouts(&given.images)?;
        let written = self.marks.written_in(&given.text);
        let (n_written, n_images) = (self.marks.n_placeholders(&written), layouts.len());
        if n_written != n_images {
            let name = self.marks.placeholder();
            return Err(RequestError::Invalid(format!(
                "the text contains {name} {n_written} times, and there are {n_images} images: write it once for each \
                 image"
            )));
        }
        let before = text.tokens_before(&given.text)?;
        let left = limit_tokens.saturating_sub(before.len());
        let mut encoded = self.encode(text, &written, &layouts, left)?;
        let n_before = before.len() as u32;
        for positions in &mut encoded.images {
            *positions = positions.start + n_before..positions.end + n_before;
        }
        drop(encoded.tokens.splice(0..0, before));
        Ok(ReadChat {
            text: written.text,
            prompt: self.with_images(&given.images, encoded, is_cancelled)?,
        })
    }

    fn with_images(
        &self,
        files: &[ImageFile],
        encoded: ImageTokens,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<ImagePrompt, RequestError> {
        let mut images = Vec::with_capacity(files.len());
        for (file, positions) in files.iter().zip(encoded.images) {
            if is_cancelled() {
                let text = "the request was cancelled".to_owned();
                return Err(RequestError::Invalid(text));
            }
            images.push(self.image(file, positions)?);
        }
        Ok(ImagePrompt {
            tokens: encoded.tokens.into(),
            images,
        })
    }

    fn layouts(&self, files: &[ImageFile]) -> Result<Vec<Layout>, RequestError> {
        files.iter().map(|file| self.layout(file)).collect()
    }

    /// The views and positions of an image, by its header.
    fn layout(&self, file: &ImageFile) -> Result<Layout, RequestError> {
        let header = souffleur_images::inspect(&file.bytes, &self.limits);
        let layout = header.and_then(|header| {
            let (width, height) = header.size();
            self.processor.layout(width, height)
        });
        layout.map_err(|error| refused(file, &error))
    }

    fn image(&self, file: &ImageFile, positions: Range<u32>) -> Result<PromptImage, RequestError> {
        let picture = souffleur_images::read(&file.bytes, &self.limits);
        let prepared = picture.and_then(|picture| self.processor.prepare(&picture));
        let prepared = prepared.map_err(|error| refused(file, &error))?;
        Ok(PromptImage {
            positions,
            pad: self.marks.pad_id(),
            digest: ImageDigest(self.processor.digest(&prepared, &self.tower)),
            grid: grid_of(&prepared.layout),
            vectors: None,
            input: Some(Arc::new(Pixels::new(self.processor.clone(), prepared))),
        })
    }

    fn encode(
        &self,
        text: &TextModel,
        rendered: &RenderedImages,
        layouts: &[Layout],
        limit_tokens: usize,
    ) -> Result<ImageTokens, RequestError> {
        let n_positions = layouts.iter().map(|it| u64::from(it.n_positions()));
        let n_positions = usize::try_from(n_positions.sum::<u64>()).unwrap_or(usize::MAX);
        check_length(text, rendered, n_positions, limit_tokens)?;
        let parts = layouts.iter().map(|layout| self.names.parts(layout));
        let parts: Vec<Vec<NamedPart>> = parts.collect();
        let parts: Vec<Vec<ImagePart<'_>>> = parts
            .iter()
            .map(|parts| parts.iter().map(NamedPart::as_part).collect())
            .collect();
        text.encode_images(&self.marks, rendered, &parts)
    }
}

impl fmt::Debug for ImageReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageReader")
            .field("processor", &self.processor)
            .finish_non_exhaustive()
    }
}

/// A chat that the template has rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenderedChat {
    /// The tokens of a chat with images, or with names of their tokens as letters.
    Tokens(Vec<u32>),
    /// The text of another chat, which is encoded as it is.
    Text(String),
}

/// Renders a chat, and encodes it if that needs care. Of images only the headers are read. `reader` is that of a model
/// with a tower.
///
/// # Errors
/// Those of [`ImageReader::count`].
pub fn render(
    reader: Option<&ImageReader>,
    text: &TextModel,
    chat: &ChatPrompt,
    limit_tokens: usize,
) -> Result<RenderedChat, RequestError> {
    if let Some(reader) = reader.filter(|_| !chat.images.is_empty()) {
        let counted = reader.count(text, chat, limit_tokens)?;
        return Ok(RenderedChat::Tokens(counted.tokens));
    }
    let rendered = text.render_chat(&for_template(chat))?;
    let names = read_names(reader, text, (chat, &rendered), limit_tokens)?;
    Ok(match names {
        Some(tokens) => RenderedChat::Tokens(tokens),
        None => RenderedChat::Text(rendered),
    })
}

/// The tokens of a chat without images, in whose text names of images' tokens are letters. `None` if the text has no such
/// name, or only those that the template writes: then the vocabulary reads it as it is.
pub(crate) fn read_names(
    reader: Option<&ImageReader>,
    text: &TextModel,
    (chat, rendered): (&ChatPrompt, &str),
    limit_tokens: usize,
) -> Result<Option<Vec<u32>>, RequestError> {
    let marks = match reader {
        Some(reader) => Some(&reader.marks),
        None => text.media_names(),
    };
    let Some(marks) = marks.filter(|marks| marks.are_in(rendered)) else {
        return Ok(None);
    };
    let rendered = text.render_images(marks, &for_template(chat))?;
    if !marks.are_letters_in(&rendered) {
        return Ok(None);
    }
    check_length(text, &rendered, 0, limit_tokens)?;
    let encoded = text.encode_images(marks, &rendered, &[])?;
    Ok(Some(encoded.tokens))
}

/// Refuses a text that is too long with the positions of its images.
fn check_length(
    text: &TextModel,
    rendered: &RenderedImages,
    n_positions: usize,
    limit_tokens: usize,
) -> Result<(), RequestError> {
    let too_long = |prompt_tokens| RequestError::PromptTooLong {
        prompt_tokens,
        limit_tokens,
    };
    let Some(left) = limit_tokens.checked_sub(n_positions) else {
        return Err(too_long(PromptTokens::AtLeast(n_positions)));
    };
    match text.count_chat_above(&rendered.text, left)? {
        Some(PromptTokens::Exactly(n)) => Err(too_long(PromptTokens::Exactly(n + n_positions))),
        Some(PromptTokens::AtLeast(n)) => Err(too_long(PromptTokens::AtLeast(n + n_positions))),
        None => Ok(()),
    }
}

/// A part of a layout with the name of its token.
enum NamedPart {
    Text(&'static str),
    Mark(String),
    Vectors(u32),
}

impl NamedPart {
    fn as_part(&self) -> ImagePart<'_> {
        match self {
            Self::Text(text) => ImagePart::Text(text),
            Self::Mark(name) => ImagePart::Mark(name),
            Self::Vectors(n) => ImagePart::Vectors(*n),
        }
    }
}

/// The cost of reading a chat's images, in bytes of text that take as long. Reads their headers.
pub(crate) fn weight(images: &[ImageFile]) -> usize {
    let pixels = images.iter().map(|image| {
        let header = souffleur_images::inspect(&image.bytes, &Limits::default());
        // A file that is refused takes no time.
        let (width, height) = header.map_or((0, 0), |header| header.size());
        u64::from(width) * u64::from(height)
    });
    usize::try_from(pixels.sum::<u64>() / PIXELS_PER_BYTE).unwrap_or(usize::MAX)
}

/// A chat as the template takes it.
pub fn for_template(chat: &ChatPrompt) -> text::ChatPrompt<'_> {
    text::ChatPrompt {
        messages: &chat.messages,
        tools: chat.tools.as_deref(),
        add_generation_prompt: chat.add_generation_prompt,
        continue_final_message: chat.continue_final_message,
        template_kwargs: Some(&chat.template_kwargs),
    }
}

fn refused(file: &ImageFile, error: &ImageError) -> RequestError {
    let field = &*file.field;
    FieldError::new(field, format!("{field}: {error}")).into()
}

/// The grid of an image's vectors: the view's grid if there is only one view, else a single row.
fn grid_of(layout: &Layout) -> ImageGrid {
    let columns = layout.n_vectors();
    let row = ImageGrid { rows: 1, columns };
    let [view] = layout.views[..] else {
        return row;
    };
    // The side of the block of patches that makes a vector.
    let block = (1..=16_u32).find(|side| side * side * view.tokens >= view.grid.n_patches());
    let side = block.unwrap_or(1);
    let (rows, columns) = (view.grid.h / side, view.grid.w / side);
    if u64::from(rows) * u64::from(columns) == u64::from(view.tokens) {
        ImageGrid { rows, columns }
    } else {
        row
    }
}

#[cfg(test)]
mod tests;
