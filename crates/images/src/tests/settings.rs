//! Processors' files: defaults, bounds, and settings that are refused.

use crate::{Picture, Processor, SettingsError, resize};

/// A preprocessor's file, the model's type, and the error.
const REFUSED: [(&str, &str, &str); 11] = [
    (
        r#"{"do_resize": false}"#,
        "qwen3_vl",
        "the image processor's do_resize is false, and has to be true",
    ),
    (
        r#"{"do_pan_and_scan": true}"#,
        "gemma3",
        "the image processor's do_pan_and_scan is true, and has to be false",
    ),
    (
        r#"{"patch_size": 0}"#,
        "qwen3_vl",
        "the image processor's patch_size is 0, and has to be a whole number from 1 to 256",
    ),
    (
        r#"{"patch_size": {"height": 16, "width": 14}}"#,
        "pixtral",
        r#"the image processor's patch_size is {"height":16,"width":14}, and has to be a square"#,
    ),
    (
        r#"{"resample": 0}"#,
        "gemma4",
        "the image processor's resample is 0, and has to be 1 (Lanczos), 2 (bilinear) or 3 (bicubic)",
    ),
    (
        r#"{"image_std": [0.5, 0, 0.5]}"#,
        "gemma3",
        "the image processor's image_std is [0.5, 0.0, 0.5], and has to be above 0",
    ),
    (
        r#"{"image_mean": [0.5, 0.5]}"#,
        "gemma3",
        "the image processor's image_mean is [0.5,0.5], and has to be three numbers",
    ),
    (
        r#"{"max_soft_tokens": 100}"#,
        "gemma4",
        "the image processor's max_soft_tokens is 100, and has to be one of [70, 140, 280, 560, 1120]",
    ),
    (
        r#"{"size": {"shortest_edge": 5000, "longest_edge": 4000}}"#,
        "qwen3_vl",
        "the image processor's shortest_edge is 5000, and has to be at most longest_edge, 4000",
    ),
    (
        r#"{"tile_size": 500}"#,
        "lfm2_vl",
        "the image processor's tile_size is 500, and has to be a multiple of 32",
    ),
    (
        r#"{"min_tiles": 1}"#,
        "lfm2_vl",
        "the image processor's min_tiles is 1, and has to be 2 to max_tiles, 10",
    ),
];

fn refused(preprocessor: &str, model_type: &str) -> SettingsError {
    let made = Processor::from_files(Some(preprocessor), None, model_type);
    made.expect_err("the settings are refused")
}

#[test]
fn settings_that_change_the_result_are_refused_by_name() {
    for (settings, model_type, message) in REFUSED {
        assert_eq!(refused(settings, model_type).to_string(), message);
    }
    assert!(matches!(
        refused("{", "qwen3_vl"),
        SettingsError::NotJson { .. }
    ));
    for (settings, model_type) in [
        ("{}", "llama"),
        (
            r#"{"image_processor_type": "CLIPImageProcessor"}"#,
            "qwen3_vl",
        ),
    ] {
        let error = refused(settings, model_type);
        assert!(matches!(error, SettingsError::UnknownProcessor { .. }));
    }
}

#[test]
fn tokens_can_be_bounded() {
    for (model_type, most, expected) in [
        ("qwen3_5", 256, 256),
        ("gemma3", 256, 256),
        ("gemma4", 256, 140),
        ("mistral3", 256, 256),
        ("lfm2_vl", 256, 256),
        ("lfm2_vl", 1000, 768),
    ] {
        let processor = Processor::from_files(None, None, model_type);
        let mut processor = processor.expect("the defaults are valid");
        processor.limit_tokens(most).expect("there is room");
        let large = [(4000, 3000), (3000, 3000), (900, 2000), (2048, 2048)];
        let counts = large.map(|(width, height)| {
            let layout = processor.layout(width, height).expect("the picture fits");
            layout.n_vectors()
        });
        let largest = counts.into_iter().max().unwrap_or_default();
        assert!(largest <= most, "{model_type}: {counts:?}");
        assert!(largest > expected / 2, "{model_type}: {counts:?}");
    }
    let mut gemma = Processor::from_files(None, None, "gemma3").expect("the defaults are valid");
    let error = gemma.limit_tokens(255).expect_err("each picture has 256");
    assert_eq!(
        error.to_string(),
        "the image processor's tokens is 255, and has to be at least 256, the tokens of each picture"
    );
}

/// Sides are rounded up to a token, and small pictures are enlarged: neither exceeds the bound.
#[test]
fn narrow_and_small_pictures_are_within_the_bound_too() {
    let sizes = [
        (6400, 64),
        (64, 6400),
        (3999, 20),
        (300, 100),
        (100, 301),
        (1, 1),
        (199, 1),
        (900, 2000),
        (8000, 8000),
    ];
    for model_type in ["qwen3_5", "qwen2_vl", "lfm2_vl", "mistral3"] {
        for most in [1, 2, 5, 63, 64, 65, 100, 256, 1000, 3000] {
            let processor = Processor::from_files(None, None, model_type);
            let mut processor = processor.expect("the defaults are valid");
            processor.limit_tokens(most).expect("there is room");
            for (width, height) in sizes {
                let layout = processor.layout(width, height).expect("the picture fits");
                let n_vectors = layout.n_vectors();
                assert!(
                    (1..=most).contains(&n_vectors),
                    "{model_type}: {n_vectors} of {most} tokens for {width} x {height}"
                );
                let has_pixels = layout
                    .views
                    .iter()
                    .all(|view| view.width > 0 && view.height > 0);
                assert!(has_pixels, "{model_type}: {width} x {height}");
            }
        }
    }
}

#[test]
fn long_strips_take_no_more_memory_than_pictures() {
    let strip = |width: u32, height: u32| {
        let pixels = vec![7; width as usize * height as usize * 3];
        Picture::new(width, height, pixels).expect("the length is right")
    };
    for (picture, filter) in [
        (strip(1, 65_535), crate::Filter::Bicubic),
        (strip(65_535, 1), crate::Filter::Lanczos),
    ] {
        let (scaled, peak) =
            super::memory::peak_of(|| resize(&picture, 896, 896, filter).pixels()[0]);
        assert_eq!(scaled, 7);
        assert!(peak < 8 << 20, "{peak} bytes");
    }
}
