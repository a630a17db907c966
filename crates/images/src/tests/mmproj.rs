//! Processors of GGUF files with a vision tower: those of the folders that the files were made of, and bounds.

use crate::{Filter, MmprojSettings, Processor};

/// Those of CLIP.
const MEAN: [f64; 3] = [0.48145466, 0.4578275, 0.40821073];
const STD: [f64; 3] = [0.26862954, 0.26130258, 0.27577711];

fn settings(projector_type: &str, patch: u32, merge: u32) -> MmprojSettings<'_> {
    MmprojSettings {
        projector_type,
        patch,
        merge,
        image_size: None,
        mean: None,
        std: None,
        min_pixels: None,
        max_pixels: None,
        filter: None,
    }
}

fn of_folder(preprocessor: &str, processor: &str, model_type: &str) -> Processor {
    let read = Processor::from_files(Some(preprocessor), Some(processor), model_type);
    read.expect("supported settings")
}

fn made(settings: &MmprojSettings<'_>) -> Processor {
    Processor::from_mmproj(settings).expect("supported settings")
}

#[test]
fn a_file_and_its_folder_have_the_same_processor() {
    let halves = |settings: MmprojSettings<'static>| MmprojSettings {
        mean: Some([0.5; 3]),
        std: Some([0.5; 3]),
        ..settings
    };
    let means = r#""image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]"#;
    let qwen = of_folder(
        &format!(
            r#"{{"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "merge_size": 2,
            "size": {{"shortest_edge": 65536, "longest_edge": 16777216}}, {means}}}"#
        ),
        "{}",
        "qwen3_5",
    );
    assert_eq!(made(&halves(settings("qwen3vl_merger", 16, 2))), qwen);
    assert_eq!(made(&settings("qwen3vl_merger", 16, 2)), qwen, "defaults");
    let gemma3 = of_folder(
        &format!(
            r#"{{"size": {{"height": 896, "width": 896}}, "image_seq_length": 256, {means}}}"#
        ),
        "{}",
        "gemma3",
    );
    let own = MmprojSettings {
        image_size: Some(896),
        ..halves(settings("gemma3", 14, 4))
    };
    assert_eq!(made(&own), gemma3);
    let gemma4 = of_folder(
        r#"{"patch_size": 16, "pooling_kernel_size": 3}"#,
        "{}",
        "gemma4",
    );
    let own = MmprojSettings {
        image_size: Some(224),
        ..halves(settings("gemma4v", 16, 3))
    };
    assert_eq!(made(&own), gemma4, "not normalised");
    let lfm2 = of_folder(
        &format!(r#"{{"encoder_patch_size": 16, "downsample_factor": 2, {means}}}"#),
        "{}",
        "lfm2_vl",
    );
    let own = MmprojSettings {
        image_size: Some(256),
        ..halves(settings("lfm2", 16, 2))
    };
    assert_eq!(made(&own), lfm2);
}

#[test]
fn the_floats_of_a_file_make_the_samples_of_the_folder() {
    let folder = of_folder(
        r#"{"size": {"longest_edge": 1540}, "patch_size": 14,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}"#,
        r#"{"patch_size": 14, "spatial_merge_size": 2}"#,
        "mistral3",
    );
    let own = made(&MmprojSettings {
        image_size: Some(1540),
        mean: Some(MEAN.map(|mean| mean as f32)),
        std: Some(STD.map(|std| std as f32)),
        ..settings("pixtral", 14, 2)
    });
    let usual = made(&MmprojSettings {
        image_size: Some(1540),
        ..settings("pixtral", 14, 2)
    });
    for processor in [&own, &usual] {
        assert_eq!(
            processor.normalisation().table(),
            folder.normalisation().table()
        );
        for (width, height) in [(1, 1), (640, 481), (4000, 3000), (3000, 20)] {
            assert_eq!(
                processor.layout(width, height),
                folder.layout(width, height)
            );
        }
    }
}

#[test]
fn keys_of_a_file_replace_the_usual_settings() {
    let Processor::Qwen(qwen) = made(&MmprojSettings {
        min_pixels: Some(1024),
        max_pixels: Some(4096),
        filter: Some(Filter::Bilinear),
        ..settings("qwen3vl_merger", 8, 2)
    }) else {
        panic!("another family");
    };
    assert_eq!((qwen.min_pixels, qwen.max_pixels), (1024, 4096));
    assert_eq!((qwen.patch, qwen.filter), (8, Filter::Bilinear));
    // A usual bound yields to the file's.
    let Processor::Qwen(qwen) = made(&MmprojSettings {
        max_pixels: Some(4096),
        ..settings("qwen3vl_merger", 8, 2)
    }) else {
        panic!("another family");
    };
    assert_eq!((qwen.min_pixels, qwen.max_pixels), (4096, 4096));
    let Processor::Gemma4(gemma4) = made(&MmprojSettings {
        max_pixels: Some(600 * 48 * 48),
        ..settings("gemma4v", 16, 3)
    }) else {
        panic!("another family");
    };
    assert_eq!(gemma4.max_tokens, 560);
    let Processor::Lfm2(lfm2) = made(&MmprojSettings {
        max_pixels: Some(128 * 32 * 32),
        ..settings("lfm2", 16, 2)
    }) else {
        panic!("another family");
    };
    assert_eq!((lfm2.min_tokens, lfm2.max_tokens), (64, 128));
}

#[test]
fn settings_out_of_bounds_are_refused_by_their_keys() {
    let refused = |settings: &MmprojSettings<'_>, expected: &str| {
        let error = Processor::from_mmproj(settings).expect_err(expected);
        let error = error.to_string();
        assert!(error.contains(expected), "{error}");
    };
    let qwen = settings("qwen3vl_merger", 16, 2);
    refused(
        &settings("ldp", 16, 2),
        "the image processor of ldp is not supported",
    );
    refused(&settings("lfm2", 0, 2), "clip.vision.patch_size is 0");
    refused(
        &settings("lfm2", 16, 17),
        "clip.vision.spatial_merge_size is 17",
    );
    refused(
        &settings("lfm2", 15, 2),
        "is 30, and has to be a divisor of a tile's side, 512 pixels",
    );
    let image_size = Some(900);
    refused(
        &MmprojSettings {
            image_size,
            ..settings("gemma3", 14, 4)
        },
        "clip.vision.image_size is 900, and has to be a multiple of a block's side, 56 pixels",
    );
    refused(
        &MmprojSettings {
            min_pixels: Some(2),
            max_pixels: Some(1),
            ..qwen
        },
        "clip.vision.image_min_pixels is 2, and has to be at most image_max_pixels, 1",
    );
    refused(
        &MmprojSettings {
            max_pixels: Some(u32::MAX),
            ..qwen
        },
        "clip.vision.image_max_pixels is 4294967295",
    );
    refused(
        &MmprojSettings {
            std: Some([0.5, 0.0, 0.5]),
            ..qwen
        },
        "clip.vision.image_std is [0.5, 0.0, 0.5], and has to be above 0",
    );
    refused(
        &MmprojSettings {
            mean: Some([f32::NAN, 0.0, 0.0]),
            ..qwen
        },
        "clip.vision.image_mean is [NaN, 0.0, 0.0]",
    );
    refused(
        &MmprojSettings {
            max_pixels: Some(48 * 48),
            ..settings("gemma4v", 16, 3)
        },
        "has to be at least 70",
    );
}
