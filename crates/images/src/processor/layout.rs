//! The views of a picture that a tower sees, and their place in the prompt.

/// Patches of a view: time, height, width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Always 1 for pictures.
    pub t: u32,
    /// Rows of patches.
    pub h: u32,
    /// Columns of patches.
    pub w: u32,
}

impl Grid {
    /// The grid of a view whose patches are squares of `patch` pixels.
    pub(super) fn of(width: u32, height: u32, patch: u32) -> Self {
        Self {
            t: 1,
            h: height / patch,
            w: width / patch,
        }
    }

    /// The number of patches.
    pub fn n_patches(&self) -> u32 {
        self.t * self.h * self.w
    }
}

/// A picture, or a tile of one, as a tower sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct View {
    /// In pixels, after scaling.
    pub width: u32,
    /// In pixels, after scaling.
    pub height: u32,
    /// Its patches.
    pub grid: Grid,
    /// The number of vectors that the tower makes of the view. Each takes a position of the prompt.
    pub tokens: u32,
}

/// A part of the text that replaces an image's placeholder, in order. Marks are special tokens such as those at an
/// image's begin and end; the caller knows their ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// Text, to be tokenized with its neighbours.
    Text(&'static str),
    /// The mark before an image.
    Begin,
    /// The number of positions for a view's vectors; views are used in order, and rows of a view in order.
    Vectors(u32),
    /// The mark after each row but the last.
    RowBreak,
    /// The mark before a tile, by row and column from 1.
    Tile {
        /// From 1.
        row: u32,
        /// From 1.
        column: u32,
    },
    /// The mark before the view of the whole picture that follows tiles.
    Thumbnail,
    /// The mark after an image.
    End,
}

/// The views of a picture, and the text that has them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The views, in the order of their vectors in the prompt.
    pub views: Vec<View>,
    /// The text and tokens that replace the template's placeholder.
    pub parts: Vec<Part>,
}

impl Layout {
    /// The layout of a single view, between `before` and `after`.
    pub(super) fn single(view: View, before: &[Part], after: &[Part]) -> Self {
        let vectors = [Part::Vectors(view.tokens)];
        Self {
            views: vec![view],
            parts: [before, &vectors, after].concat(),
        }
    }

    /// The positions that hold vectors.
    pub fn n_vectors(&self) -> u32 {
        self.views.iter().map(|view| view.tokens).sum()
    }

    /// The positions of vectors and marks, without texts.
    pub fn n_positions(&self) -> u32 {
        let positions = self.parts.iter().map(|part| match part {
            Part::Text(_) => 0,
            Part::Vectors(n) => *n,
            _ => 1,
        });
        positions.sum()
    }
}
