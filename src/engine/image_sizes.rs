//! The most tokens of an image, and whether a model's image processor cuts images as its vision tower takes them.

use souffleur_base::error::ConfigError;
use souffleur_config::EngineConfig;
use souffleur_images::{Processor, SettingsError};
use souffleur_model::vision::{TowerConfig, TowerFamily};

/// Tokens to which an image is scaled down if the configuration has no number.
const USUAL_TOKENS: u32 = 256;
/// As [`USUAL_TOKENS`], for Gemma 4: the budget of its checkpoints. The next smaller one that it was trained with is 140.
const GEMMA4_TOKENS: u32 = 280;

/// The most vectors of an image.
pub(super) fn max_vectors(tower: &TowerConfig, config: &EngineConfig) -> usize {
    let usual = match tower.family {
        TowerFamily::Gemma3 => return square_tokens(tower),
        TowerFamily::Gemma4 => GEMMA4_TOKENS,
        TowerFamily::Qwen | TowerFamily::Pixtral | TowerFamily::Lfm2 => USUAL_TOKENS,
    };
    config.image_max_tokens.unwrap_or(usual) as usize
}

/// The vectors of each image of Gemma 3.
fn square_tokens(tower: &TowerConfig) -> usize {
    (tower.positions / tower.merge).pow(2)
}

/// Bounds the tokens of an image as configured, or else as usual for the family.
///
/// # Errors
/// If images of the model cannot have as few tokens as configured.
pub(super) fn limit(processor: &mut Processor, config: &EngineConfig) -> Result<(), ConfigError> {
    let max_tokens = match (config.image_max_tokens, &*processor) {
        (Some(max_tokens), _) => max_tokens,
        // It has no smaller images.
        (None, Processor::Gemma3(_)) => return Ok(()),
        (None, Processor::Gemma4(_)) => GEMMA4_TOKENS,
        (None, Processor::Qwen(_) | Processor::Pixtral(_) | Processor::Lfm2(_)) => USUAL_TOKENS,
    };
    let limited = processor.limit_tokens(max_tokens);
    limited.map_err(|error| ConfigError {
        key: "image_max_tokens".to_owned(),
        reason: match error {
            SettingsError::BadValue { expected, .. } => {
                format!("is {max_tokens}, and for this model has to be {expected}")
            }
            other => format!("is {max_tokens}: {other}"),
        },
    })
}

/// Gives Gemma 3's processor the side of the tower's patches, which its files do not have, and compares all sizes that a
/// processor and a tower share.
///
/// # Errors
/// The reason, with both values: no image that the processor cuts could be encoded.
pub(super) fn fit(processor: &mut Processor, tower: &TowerConfig) -> Result<(), String> {
    if let Processor::Gemma3(settings) = &mut *processor {
        // The limits of towers fit 32 bits.
        settings.patch = tower.patch as u32;
    }
    let (own, of_tower) = (
        family(processor).projector_type(),
        tower.family.projector_type(),
    );
    if own != of_tower {
        return Err(format!(
            "the image processor cuts images for the projector {own}, the vision tower has {of_tower}: use the files of \
             one model"
        ));
    }
    let wrong = sizes(processor, tower)
        .into_iter()
        .find(|(_, own, of_tower)| *own as usize != *of_tower);
    match wrong {
        None => Ok(()),
        Some((size, own, of_tower)) => Err(format!(
            "the {size} is {own} in the image processor's settings and {of_tower} in the vision tower's: use the files of \
             one model"
        )),
    }
}

fn family(processor: &Processor) -> TowerFamily {
    match processor {
        Processor::Qwen(_) => TowerFamily::Qwen,
        Processor::Gemma3(_) => TowerFamily::Gemma3,
        Processor::Gemma4(_) => TowerFamily::Gemma4,
        Processor::Pixtral(_) => TowerFamily::Pixtral,
        Processor::Lfm2(_) => TowerFamily::Lfm2,
    }
}

/// The names of the sizes that both have, with those of the processor and of the tower.
fn sizes(processor: &Processor, tower: &TowerConfig) -> Vec<(&'static str, u32, usize)> {
    const BLOCK: &str = "side of a block of patches";
    let mut sizes = vec![("side of a patch in pixels", processor.patch(), tower.patch)];
    match processor {
        Processor::Qwen(settings) => {
            sizes.push((BLOCK, settings.merge, tower.merge));
            sizes.push(("number of frames of a patch", settings.frames, tower.frames));
        }
        Processor::Gemma3(settings) => {
            let patches = |side: u32| side / settings.patch;
            sizes.extend([
                (
                    "width of an image in patches",
                    patches(settings.width),
                    tower.positions,
                ),
                (
                    "height of an image in patches",
                    patches(settings.height),
                    tower.positions,
                ),
                (
                    "number of tokens of an image",
                    settings.tokens,
                    square_tokens(tower),
                ),
            ]);
        }
        Processor::Gemma4(settings) => sizes.push((BLOCK, settings.pool, tower.merge)),
        Processor::Pixtral(settings) => sizes.push((BLOCK, settings.merge, tower.merge)),
        Processor::Lfm2(settings) => sizes.push((BLOCK, settings.merge, tower.merge)),
    }
    sizes
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use souffleur_model::vision::TowerGrid;

    use super::*;

    /// The processor's files and the model's type, for each tower of the fixtures.
    const FILES: [(&str, &str, &str, &str); 5] = [
        (
            "qwen",
            r#"{"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2}"#,
            "{}",
            "qwen3_5",
        ),
        (
            "gemma3",
            r#"{"size": {"height": 24, "width": 24}}"#,
            r#"{"image_seq_length": 4}"#,
            "gemma3",
        ),
        (
            "gemma4",
            r#"{"patch_size": 4, "pooling_kernel_size": 3}"#,
            "{}",
            "gemma4",
        ),
        (
            "pixtral",
            r#"{"patch_size": 4}"#,
            r#"{"patch_size": 4, "spatial_merge_size": 2}"#,
            "mistral3",
        ),
        (
            "lfm2",
            r#"{"encoder_patch_size": 4, "downsample_factor": 2}"#,
            "{}",
            "lfm2_vl",
        ),
    ];

    fn tower(name: &str) -> TowerConfig {
        let towers = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/towers");
        let read = TowerConfig::read(&Path::new(towers).join(name));
        read.expect("supported").expect("the model has a tower")
    }

    fn processor(image: &str, outer: &str, model_type: &str) -> Processor {
        let made = Processor::from_files(Some(image), Some(outer), model_type);
        made.expect("supported settings")
    }

    fn of(name: &str) -> Processor {
        let files = FILES.iter().find(|(known, ..)| *known == name);
        let (_, image, outer, model_type) = files.expect("a known tower");
        processor(image, outer, model_type)
    }

    #[test]
    fn a_processor_cuts_images_that_the_tower_of_its_files_takes() {
        for (name, ..) in FILES {
            let (mut processor, tower) = (of(name), tower(name));
            assert_eq!(fit(&mut processor, &tower), Ok(()), "{name}");
            assert_eq!(processor.patch() as usize, tower.patch, "{name}");
        }
        let (mut gemma3, tower) = (of("gemma3"), tower("gemma3"));
        fit(&mut gemma3, &tower).expect("they fit");
        let view = gemma3.layout(640, 480).expect("it has one size").views[0];
        assert_eq!((view.grid.h, view.grid.w, view.tokens), (6, 6, 4));
        assert_eq!(tower.n_vectors(TowerGrid { h: 6, w: 6 }).ok(), Some(4));
    }

    #[test]
    fn sizes_that_differ_from_the_towers_are_named_with_both_values() {
        for (name, image, outer, expected) in [
            (
                "qwen",
                r#"{"patch_size": 8}"#,
                "{}",
                "the side of a patch in pixels is 8 in the image processor's settings and 4 in",
            ),
            (
                "qwen",
                r#"{"patch_size": 4, "merge_size": 3}"#,
                "{}",
                "the side of a block of patches is 3 in the image processor's settings and 2 in",
            ),
            (
                "qwen",
                r#"{"patch_size": 4, "temporal_patch_size": 1}"#,
                "{}",
                "the number of frames of a patch is 1 in the image processor's settings and 2 in",
            ),
            (
                "gemma3",
                r#"{"size": {"height": 24, "width": 28}, "image_seq_length": 4}"#,
                "{}",
                "the width of an image in patches is 7 in the image processor's settings and 6 in",
            ),
            (
                "gemma3",
                r#"{"size": {"height": 24, "width": 24}}"#,
                "{}",
                "the number of tokens of an image is 256 in the image processor's settings and 4 in",
            ),
            (
                "gemma4",
                r#"{"patch_size": 4, "pooling_kernel_size": 2}"#,
                "{}",
                "the side of a block of patches is 2 in the image processor's settings and 3 in",
            ),
            (
                "pixtral",
                r#"{"patch_size": 4}"#,
                "{}",
                "the side of a block of patches is 1 in the image processor's settings and 2 in",
            ),
            (
                "lfm2",
                "{}",
                "{}",
                "the side of a patch in pixels is 16 in the image processor's settings and 4 in",
            ),
        ] {
            let files = FILES.iter().find(|(known, ..)| *known == name);
            let (_, _, _, model_type) = files.expect("a known tower");
            let mut processor = processor(image, outer, model_type);
            let refused = fit(&mut processor, &tower(name)).expect_err("they differ");
            assert!(refused.starts_with(expected), "{refused}");
        }
        let refused = fit(&mut of("lfm2"), &tower("pixtral")).expect_err("another family");
        assert!(
            refused.contains("for the projector lfm2, the vision tower has pixtral"),
            "{refused}"
        );
    }

    fn config(image_max_tokens: Option<u32>) -> EngineConfig {
        EngineConfig {
            image_max_tokens,
            ..EngineConfig::default()
        }
    }

    /// The tokens of the largest of some images.
    fn largest(mut processor: Processor, config: &EngineConfig) -> u32 {
        limit(&mut processor, config).expect("there is room");
        let sizes = [(4000, 3000), (3000, 3000), (900, 2000), (2048, 2048)];
        let counts = sizes.map(|(width, height)| {
            let layout = processor.layout(width, height).expect("the image fits");
            layout.n_vectors()
        });
        counts.into_iter().max().unwrap_or_default()
    }

    #[test]
    fn without_a_configured_number_images_have_the_tokens_that_are_usual_for_the_family() {
        for (name, model_type, most) in [
            ("qwen", "qwen3_5", 256),
            ("gemma4", "gemma4", 280),
            ("pixtral", "mistral3", 256),
            ("lfm2", "lfm2_vl", 256),
        ] {
            let largest = largest(processor("{}", "{}", model_type), &config(None));
            assert!(largest <= most, "{name}: {largest}");
            assert!(largest > most * 3 / 4, "{name}: {largest}");
            assert_eq!(max_vectors(&tower(name), &config(None)), most as usize);
            assert_eq!(max_vectors(&tower(name), &config(Some(70))), 70);
        }
        let small = processor(r#"{"max_soft_tokens": 70}"#, "{}", "gemma4");
        assert!(
            largest(small, &config(None)) <= 70,
            "a smaller budget is kept"
        );
        // Whatever the configuration says.
        let many = r#"{"image_seq_length": 1024}"#;
        assert_eq!(
            largest(processor("{}", many, "gemma3"), &config(None)),
            1024
        );
        assert_eq!(max_vectors(&tower("gemma3"), &config(Some(70))), 4);
    }

    #[test]
    fn a_number_below_the_least_of_a_model_is_refused_with_the_least() {
        for (model_type, max_tokens, expected) in [
            (
                "gemma3",
                255,
                "image_max_tokens is 255, and for this model has to be at least 256, the tokens of each picture",
            ),
            (
                "gemma4",
                69,
                "image_max_tokens is 69, and for this model has to be at least 70",
            ),
        ] {
            let mut processor = processor("{}", "{}", model_type);
            let refused = limit(&mut processor, &config(Some(max_tokens)));
            assert_eq!(refused.expect_err("too few").to_string(), expected);
        }
    }
}
