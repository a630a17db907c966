#![no_main]
//! WebP.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    souffleur_images_fuzz::check(&[(0, b"RIFF"), (8, b"WEBP")], data);
});
