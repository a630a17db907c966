#![no_main]
//! A model's `preprocessor_config.json` or `processor_config.json`, and the layout and pixels of a small picture.

use souffleur_images::{Picture, Processor};

const TYPES: [&str; 6] = [
    "qwen3_5", "gemma3", "gemma4", "pixtral", "mistral3", "lfm2_vl",
];

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((first, text)) = data.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    let model_type = TYPES[usize::from(*first & 127) % TYPES.len()];
    let read = if *first < 128 {
        Processor::from_files(Some(text), None, model_type)
    } else {
        Processor::from_files(None, Some(text), model_type)
    };
    let Ok(processor) = read else {
        return;
    };
    let Ok(layout) = processor.layout(31, 17) else {
        return;
    };
    // The settings may scale a picture to millions of pixels: that is allowed, and slow.
    if layout.n_positions() > 1024 {
        return;
    }
    let picture = Picture::new(31, 17, vec![7; 31 * 17 * 3]).expect("the size is right");
    let _ = processor.prepare(&picture);
});
