#![no_main]
//! JPEG.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    souffleur_images_fuzz::check(&[(0, b"\xff\xd8\xff")], data);
});
