//! LFM2-VL's processor: it cuts large pictures into tiles, which a reduced view of the whole picture follows.

use serde_json::Value;

use super::fields::{Fields, HALVES, SettingsError};
use super::layout::{Grid, Layout, Part, View};
use super::normalise::Normalisation;
use super::rounding::{Bounds, round_to};
use crate::limits::ImageError;
use crate::picture::Picture;
use crate::resample::{Filter, resize};

/// The settings of `Lfm2VlImageProcessor`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lfm2 {
    /// Side of a patch in pixels.
    pub patch: u32,
    /// Side of a block of patches that become one token.
    pub merge: u32,
    /// The least tokens of a whole picture.
    pub min_tokens: u32,
    /// The most tokens of a whole picture.
    pub max_tokens: u32,
    /// The most tokens of a picture with its tiles, which the rounding of sides does not exceed either; `u32::MAX` for
    /// none.
    pub most_tokens: u32,
    /// Side of a tile in pixels.
    pub tile: u32,
    /// The least tiles of a picture that is cut.
    pub min_tiles: u32,
    /// The most tiles of a picture that is cut; below 2 none is.
    pub max_tiles: u32,
    /// Whether the whole picture follows the tiles.
    pub has_thumbnail: bool,
    /// A picture is cut if it has more than this multiple of the pixels of one with the most tokens.
    pub tolerance: f64,
    /// The filter.
    pub filter: Filter,
    /// The floats.
    pub normalisation: Normalisation,
}

impl Lfm2 {
    pub(super) fn read(fields: &Fields) -> Result<Self, SettingsError> {
        // Older checkpoints have some of the keys in the file of the enclosing processor.
        let outer = Fields {
            image: fields.processor,
            processor: &Value::Null,
        };
        let number = |key, default, max| fields.number(key, outer.number(key, default, max)?, max);
        let bool = |key, default| fields.bool(key, outer.bool(key, default)?);
        let tolerance = outer.factor("max_pixels_tolerance", 2.0)?;
        let splits = bool("do_image_splitting", true)?;
        let max_tiles = number("max_tiles", 10, 32)?;
        let settings = Self {
            patch: number("encoder_patch_size", 16, 64)?,
            merge: number("downsample_factor", 2, 8)?,
            min_tokens: number("min_image_tokens", 64, 4096)?,
            max_tokens: number("max_image_tokens", 256, 4096)?,
            most_tokens: u32::MAX,
            tile: number("tile_size", 512, 1024)?,
            min_tiles: number("min_tiles", 2, 32)?,
            max_tiles: if splits { max_tiles } else { 1 },
            has_thumbnail: bool("use_thumbnail", true)?,
            tolerance: fields.factor("max_pixels_tolerance", tolerance)?,
            filter: fields.filter(Filter::Bilinear)?,
            normalisation: fields.normalisation(true, HALVES)?.fused(),
        };
        if settings.min_tokens > settings.max_tokens {
            let expected = format!("at most max_image_tokens, {}", settings.max_tokens);
            let key = "min_image_tokens";
            return Err(SettingsError::bad_value(key, settings.min_tokens, expected));
        }
        if !settings.tile.is_multiple_of(settings.unit()) {
            let expected = format!("a multiple of {}", settings.unit());
            return Err(SettingsError::bad_value(
                "tile_size",
                settings.tile,
                expected,
            ));
        }
        // A picture of a single tile would have the text of one that is not cut.
        if settings.max_tiles > 1 && !(2..=settings.max_tiles).contains(&settings.min_tiles) {
            let expected = format!("2 to max_tiles, {}", settings.max_tiles);
            return Err(SettingsError::bad_value(
                "min_tiles",
                settings.min_tiles,
                expected,
            ));
        }
        Ok(settings)
    }

    fn unit(&self) -> u32 {
        self.patch * self.merge
    }

    fn view(&self, width: u32, height: u32) -> View {
        let grid = Grid::of(width, height, self.patch);
        View {
            width,
            height,
            grid,
            tokens: grid.n_patches() / (self.merge * self.merge),
        }
    }

    /// The columns and rows of tiles whose aspect ratio is closest to the picture's. An equally
    /// close later layout replaces the one found if it has less than twice the picture's pixels.
    fn tiles(&self, width: u32, height: u32) -> (u32, u32) {
        let aspect_ratio = f64::from(width) / f64::from(height);
        let area = f64::from(width) * f64::from(height);
        let mut best = (1, 1);
        let mut least = f64::INFINITY;
        for n_tiles in self.min_tiles..=self.max_tiles {
            for columns in (1..=n_tiles).filter(|columns| n_tiles.is_multiple_of(*columns)) {
                let rows = n_tiles / columns;
                let difference = (aspect_ratio - f64::from(columns) / f64::from(rows)).abs();
                let pixels = f64::from(self.tile) * f64::from(self.tile) * f64::from(n_tiles);
                if difference < least || (difference == least && area > 0.5 * pixels) {
                    (least, best) = (difference, (columns, rows));
                }
            }
        }
        best
    }

    /// The whole picture as one view of at most `most_tokens`, which are at least 1.
    fn whole(&self, width: u32, height: u32, most_tokens: u32) -> Result<View, ImageError> {
        let unit = self.unit();
        let pixels_of_token = unit * unit;
        let bounds = Bounds {
            unit,
            min_pixels: self.min_tokens * pixels_of_token,
            max_pixels: self.max_tokens * pixels_of_token,
        };
        let rounded = (
            round_to(width, unit).max(unit),
            round_to(height, unit).max(unit),
        );
        let (scaled_width, scaled_height) =
            bounds.fit_tokens((width, height), rounded, most_tokens);
        // A long strip exceeds the bounds, which round up to whole tokens; the tower has room for a tile's.
        let limit = u64::from(bounds.max_pixels).max(u64::from(self.tile) * u64::from(self.tile));
        let pixels = u64::from(scaled_width) * u64::from(scaled_height);
        if pixels > limit {
            return Err(ImageError::ScaledTooLarge {
                width: scaled_width,
                height: scaled_height,
                pixels,
                limit,
            });
        }
        Ok(self.view(scaled_width, scaled_height))
    }

    fn is_cut(&self, width: u32, height: u32) -> bool {
        let unit = self.unit();
        let side = |side| u64::from(round_to(side, unit).max(self.patch));
        let pixels = (side(width) * side(height)) as f64;
        let most = u64::from(self.max_tokens) * u64::from(unit) * u64::from(unit);
        self.max_tiles > 1 && pixels > most as f64 * self.tolerance
    }

    pub(super) fn layout(&self, width: u32, height: u32) -> Result<Layout, ImageError> {
        if !self.is_cut(width, height) {
            let whole = self.whole(width, height, self.most_tokens)?;
            return Ok(Layout::single(whole, &[Part::Begin], &[Part::End]));
        }
        let (columns, rows) = self.tiles(width, height);
        let tile = self.view(self.tile, self.tile);
        // The bound has room for the tiles and `max_tokens`.
        let left = self
            .most_tokens
            .saturating_sub(columns * rows * tile.tokens);
        let whole = self.whole(width, height, left.max(1))?;
        let mut views = vec![tile; (columns * rows) as usize];
        let mut parts = vec![Part::Begin];
        for row in 1..=rows {
            for column in 1..=columns {
                parts.extend([Part::Tile { row, column }, Part::Vectors(tile.tokens)]);
            }
        }
        if self.has_thumbnail {
            views.push(whole);
            parts.extend([Part::Thumbnail, Part::Vectors(whole.tokens)]);
        }
        parts.push(Part::End);
        Ok(Layout { views, parts })
    }

    /// The pixels of each view of `layout`.
    pub(super) fn cut(&self, picture: &Picture, layout: &Layout) -> Vec<Picture> {
        let places = layout.parts.iter().filter_map(|part| match part {
            Part::Tile { row, column } => Some((row - 1, column - 1)),
            _ => None,
        });
        let places: Vec<(u32, u32)> = places.collect();
        let mut pictures = Vec::with_capacity(layout.views.len());
        if let Some((last_row, last_column)) = places.last() {
            let (width, height) = (self.tile * (last_column + 1), self.tile * (last_row + 1));
            let large = resize(picture, width, height, self.filter);
            let tiles = places.iter().map(|(row, column)| {
                let corner = (column * self.tile, row * self.tile);
                large.part(corner, (self.tile, self.tile))
            });
            pictures.extend(tiles);
        }
        let whole = layout.views[places.len()..].iter();
        pictures.extend(whole.map(|view| resize(picture, view.width, view.height, self.filter)));
        pictures
    }

    pub(super) fn limit_tokens(&mut self, max_tokens: u32) -> Result<(), SettingsError> {
        if max_tokens == 0 {
            let expected = "at least 1";
            return Err(SettingsError::bad_value("tokens", max_tokens, expected));
        }
        self.most_tokens = self.most_tokens.min(max_tokens);
        self.max_tokens = self.max_tokens.min(max_tokens);
        self.min_tokens = self.min_tokens.min(self.max_tokens);
        let tile = (self.tile / self.unit()).pow(2);
        let thumbnail = if self.has_thumbnail {
            self.max_tokens
        } else {
            0
        };
        let room = (max_tokens - thumbnail.min(max_tokens)) / tile;
        if room < self.min_tiles {
            self.max_tiles = 1;
        } else {
            self.max_tiles = self.max_tiles.min(room);
        }
        Ok(())
    }
}
