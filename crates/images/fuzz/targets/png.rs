#![no_main]
//! PNG.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    souffleur_images_fuzz::check(&[(0, b"\x89PNG\r\n\x1a\n")], data);
});
