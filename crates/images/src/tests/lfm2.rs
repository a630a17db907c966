//! Settings of LFM2-VL as published files have them.

use crate::{Processor, SettingsError};

fn made(preprocessor: &str, processor: Option<&str>, model_type: &str) -> Processor {
    let made = Processor::from_files(Some(preprocessor), processor, model_type);
    made.expect("supported settings")
}

#[test]
fn a_file_of_the_towers_processor_that_does_not_scale_is_read() {
    let usual = made("{}", None, "lfm2_vl");
    for class in [
        "Siglip2ImageProcessor",
        "Siglip2ImageProcessorFast",
        "Lfm2VlImageProcessorFast",
    ] {
        let file = format!(
            r#"{{"image_processor_type": "{class}", "do_resize": false, "patch_size": 16, "max_num_patches": 1024}}"#
        );
        for model_type in ["lfm2_vl", "lfm2-vl"] {
            assert_eq!(
                made(&file, None, model_type),
                usual,
                "{class} of {model_type}"
            );
        }
    }
    let other = r#"{"image_processor_type": "Siglip2ImageProcessor"}"#;
    let error = Processor::from_files(Some(other), None, "gemma3");
    assert!(matches!(error, Err(SettingsError::UnknownProcessor { .. })));
}

#[test]
fn keys_of_the_enclosing_processor_count_where_the_image_processor_has_none() {
    let outer = r#"{"tile_size": 256, "max_tiles": 4, "do_image_splitting": true, "max_image_tokens": 128}"#;
    let Processor::Lfm2(lfm2) = made(r#"{"max_tiles": 6}"#, Some(outer), "lfm2-vl") else {
        panic!("another family");
    };
    assert_eq!((lfm2.tile, lfm2.max_tiles, lfm2.max_tokens), (256, 6, 128));
}
