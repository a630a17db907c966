//! PNG files to patches, as transformers' PIL processors make them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::png_writer::{KINDS, Source, kind_named};
use super::{digits, fixture};
use crate::{ImageError, Layout, Limits, Part, Prepared, Processor, inspect, read};

#[derive(Deserialize)]
struct Cases {
    processors: BTreeMap<String, Settings>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Settings {
    model_type: String,
    preprocessor: Option<Value>,
    processor: Option<Value>,
}

#[derive(Deserialize)]
struct Case {
    processor: String,
    size: (u32, u32),
    kind: String,
    seed: u32,
    orientation: u16,
    error: Option<String>,
    /// Width and height of each.
    #[serde(default)]
    views: Vec<(u32, u32)>,
    #[serde(default)]
    tokens: Vec<u32>,
    /// Rows and columns of tokens, or of tiles.
    rows: Option<(u32, u32)>,
    #[serde(default)]
    pixels: String,
    #[serde(default)]
    patches: String,
}

impl Settings {
    fn processor(&self) -> Processor {
        let text = |file: &Option<Value>| file.as_ref().map(Value::to_string);
        let (preprocessor, processor) = (text(&self.preprocessor), text(&self.processor));
        Processor::from_files(
            preprocessor.as_deref(),
            processor.as_deref(),
            &self.model_type,
        )
        .expect("the settings are those of released models")
    }
}

impl Case {
    fn source(&self) -> Source {
        Source {
            width: self.size.0,
            height: self.size.1,
            kind: kind_named(&self.kind),
            seed: self.seed,
            orientation: self.orientation,
            is_interlaced: false,
        }
    }

    /// The text that transformers writes around the vectors.
    fn parts(&self) -> Vec<Part> {
        let vectors = |view: usize| Part::Vectors(self.tokens[view]);
        let family = self.processor.split('-').next().unwrap_or_default();
        match (family, self.rows) {
            ("gemma3", _) => vec![
                Part::Text("\n\n"),
                Part::Begin,
                vectors(0),
                Part::End,
                Part::Text("\n\n"),
            ],
            ("gemma4", _) | ("lfm2", None) => vec![Part::Begin, vectors(0), Part::End],
            ("pixtral" | "ministral3", Some((rows, columns))) => {
                let row = [Part::Vectors(columns), Part::RowBreak];
                let mut parts = row.repeat(rows as usize);
                let last = parts.last_mut().expect("there is a row");
                *last = Part::End;
                parts
            }
            ("lfm2", Some((rows, columns))) => {
                let mut parts = vec![Part::Begin];
                for i in 0..rows * columns {
                    let (row, column) = (i / columns + 1, i % columns + 1);
                    parts.extend([Part::Tile { row, column }, vectors(i as usize)]);
                }
                let whole = vectors((rows * columns) as usize);
                parts.extend([Part::Thumbnail, whole, Part::End]);
                parts
            }
            _ => vec![vectors(0)],
        }
    }

    fn check(&self, processor: &Processor) -> Result<(), String> {
        let file = self.source().png();
        let header = inspect(&file, &Limits::default()).map_err(|error| error.to_string())?;
        let (width, height) = header.size();
        let layout = processor.layout(width, height);
        let picture = read(&file, &Limits::default()).map_err(|error| error.to_string())?;
        let prepared = processor.prepare(&picture);
        if prepared.as_ref().map(|prepared| &prepared.layout) != layout.as_ref() {
            return Err(format!("by the header: {layout:?}"));
        }
        match (prepared, &self.error) {
            (Err(error), Some(expected)) if error.code() == expected => Ok(()),
            (Ok(prepared), None) => self.compare(processor, &prepared),
            (other, _) => Err(format!("{other:?}")),
        }
    }

    fn compare(&self, processor: &Processor, prepared: &Prepared) -> Result<(), String> {
        let Layout { views, parts } = &prepared.layout;
        let sizes = views.iter().map(|view| (view.width, view.height));
        let tokens = views.iter().map(|view| view.tokens);
        if !sizes.eq(self.views.iter().copied()) || !tokens.eq(self.tokens.iter().copied()) {
            return Err(format!("views: {views:?}"));
        }
        if *parts != self.parts() {
            return Err(format!("parts: {parts:?}"));
        }
        let pixels = digits(prepared.views.iter().map(|view| view.pixels()));
        if pixels != self.pixels {
            return Err(format!("pixels: {pixels}"));
        }
        let patches = (0..views.len()).map(|view| {
            let values = in_blocks(processor, prepared, view);
            let bytes = values.iter().flat_map(|value| value.to_le_bytes());
            bytes.collect::<Vec<u8>>()
        });
        let patches = digits(patches);
        if patches != self.patches {
            return Err(format!("patches: {patches}"));
        }
        Ok(())
    }
}

/// All patches of a view, computed in blocks that are no multiple of anything.
fn in_blocks(processor: &Processor, prepared: &Prepared, view: usize) -> Vec<f32> {
    let n_patches = prepared.layout.views[view].grid.n_patches() as usize;
    let blocks = (0..n_patches).step_by(13);
    let blocks = blocks.map(|start| start..n_patches.min(start + 13));
    let blocks = blocks.flat_map(|block| processor.patches_in(prepared, view, block).values);
    let values: Vec<f32> = blocks.collect();
    assert!(values == processor.patches(prepared, view).values);
    values
}

#[test]
fn patches_equal_those_of_transformers() {
    let cases = fixture("cases.json");
    let Cases { processors, cases } = serde_json::from_str(&cases).expect("the fixture is JSON");
    let made = processors
        .iter()
        .map(|(name, settings)| (name, settings.processor()));
    let made: BTreeMap<&String, Processor> = made.collect();
    let wrong = cases.iter().filter_map(|case| {
        let error = case.check(&made[&case.processor]).err()?;
        let (name, size, kind) = (&case.processor, case.size, &case.kind);
        Some(format!(
            "{name} {size:?} {kind} {}: {error}",
            case.orientation
        ))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(cases.len() >= 300, "only {} cases", cases.len());
    let shown = &wrong[..wrong.len().min(20)];
    assert!(wrong.is_empty(), "{} are wrong: {shown:#?}", wrong.len());
}

#[test]
fn interlaced_pictures_have_the_same_pixels() {
    for (kind, ..) in KINDS {
        for (width, height) in [(1, 1), (2, 3), (5, 1), (1, 9), (13, 11), (32, 32)] {
            let picture = |is_interlaced| -> Result<_, ImageError> {
                let source = Source {
                    width,
                    height,
                    kind,
                    seed: 3,
                    orientation: 1,
                    is_interlaced,
                };
                read(&source.png(), &Limits::default())
            };
            assert_eq!(picture(true), picture(false), "{kind} {width} x {height}");
        }
    }
}
