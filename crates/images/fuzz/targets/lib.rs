//! The check of all formats.

use souffleur_images::{Limits, inspect, read};

/// Reads a file whose first bytes are those of its format. A file that is read has the size that its header told.
pub fn check(magic: &[(usize, &[u8])], data: &[u8]) {
    let mut file = data.to_vec();
    for (at, bytes) in magic {
        let end = at + bytes.len();
        if file.len() < end {
            file.resize(end, 0);
        }
        file[*at..end].copy_from_slice(bytes);
    }
    // A million pixels, so that a run is short.
    let limits = Limits::of_pixels(1 << 20);
    let header = inspect(&file, &limits);
    match (header, read(&file, &limits)) {
        (Ok(header), Ok(picture)) => {
            assert_eq!(header.size(), (picture.width(), picture.height()));
        }
        (Ok(_), Err(error)) => assert_ne!(
            error.to_string(),
            "the image is damaged: its decoder panicked"
        ),
        (Err(_), Ok(_)) => panic!("a picture was read whose header is refused"),
        (Err(_), Err(_)) => {}
    }
}
