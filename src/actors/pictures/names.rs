//! The names of the tokens of images, by the family of the image processor.

use souffleur_images::{Layout, Part, Processor};
use souffleur_model::text::ImageNames;

use super::NamedPart;

/// The most rows or columns of tiles for which vocabularies have a token.
const MAX_TILES: u32 = 10;

/// The names of a family's tokens. A part of a layout that the family lacks has no name.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayoutNames {
    /// Written by templates.
    placeholder: &'static str,
    pad: &'static str,
    begin: &'static str,
    end: &'static str,
    row_break: &'static str,
    thumbnail: &'static str,
    has_tiles: bool,
    /// Tokens of other media, which no message may write either.
    others: &'static [&'static str],
}

const QWEN: LayoutNames = LayoutNames {
    placeholder: "<|image_pad|>",
    pad: "<|image_pad|>",
    begin: "<|vision_start|>",
    end: "<|vision_end|>",
    row_break: "",
    thumbnail: "",
    has_tiles: false,
    others: &["<|video_pad|>", "<|vision_pad|>"],
};
const GEMMA3: LayoutNames = LayoutNames {
    placeholder: "<start_of_image>",
    pad: "<image_soft_token>",
    begin: "<start_of_image>",
    end: "<end_of_image>",
    row_break: "",
    thumbnail: "",
    has_tiles: false,
    others: &[],
};
const GEMMA4: LayoutNames = LayoutNames {
    placeholder: "<|image|>",
    pad: "<|image|>",
    begin: "<|image>",
    end: "<image|>",
    row_break: "",
    thumbnail: "",
    has_tiles: false,
    others: &["<|video|>", "<|audio|>", "<|audio>", "<audio|>"],
};
const PIXTRAL: LayoutNames = LayoutNames {
    placeholder: "[IMG]",
    pad: "[IMG]",
    begin: "",
    end: "[IMG_END]",
    row_break: "[IMG_BREAK]",
    thumbnail: "",
    has_tiles: false,
    others: &[],
};
const LFM2: LayoutNames = LayoutNames {
    placeholder: "<image>",
    pad: "<image>",
    begin: "<|image_start|>",
    end: "<|image_end|>",
    row_break: "",
    thumbnail: "<|img_thumbnail|>",
    has_tiles: true,
    others: &["<|image_split|>"],
};

impl LayoutNames {
    pub(super) fn of(processor: &Processor) -> Self {
        match processor {
            Processor::Qwen(_) => QWEN,
            Processor::Gemma3(_) => GEMMA3,
            Processor::Gemma4(_) => GEMMA4,
            Processor::Pixtral(_) => PIXTRAL,
            Processor::Lfm2(_) => LFM2,
        }
    }

    /// The names that the vocabulary must have, and those that it may have.
    pub(super) fn of_vocabulary(&self) -> ImageNames {
        let given = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        let tiles = if self.has_tiles { MAX_TILES } else { 0 };
        let tiles = (1..=tiles).flat_map(|row| (1..=tiles).map(move |column| tile(row, column)));
        let others = self.others.iter().map(|name| (*name).to_owned());
        let marks = [self.row_break, self.thumbnail];
        let marks = marks.into_iter().filter_map(given);
        ImageNames {
            placeholder: self.placeholder.to_owned(),
            pad: self.pad.to_owned(),
            begin: given(self.begin),
            end: given(self.end),
            others: marks.chain(others).chain(tiles).collect(),
        }
    }

    pub(super) fn parts(&self, layout: &Layout) -> Vec<NamedPart> {
        let mark = |name: &str| NamedPart::Mark(name.to_owned());
        let parts = layout.parts.iter().map(|part| match part {
            Part::Text(text) => NamedPart::Text(text),
            Part::Vectors(n) => NamedPart::Vectors(*n),
            Part::Begin => mark(self.begin),
            Part::RowBreak => mark(self.row_break),
            Part::Tile { row, column } => NamedPart::Mark(tile(*row, *column)),
            Part::Thumbnail => mark(self.thumbnail),
            Part::End => mark(self.end),
        });
        parts.collect()
    }
}

fn tile(row: u32, column: u32) -> String {
    format!("<|img_row_{row}_col_{column}|>")
}
