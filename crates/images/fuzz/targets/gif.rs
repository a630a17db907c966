#![no_main]
//! GIF.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    souffleur_images_fuzz::check(&[(0, b"GIF89a")], data);
});
