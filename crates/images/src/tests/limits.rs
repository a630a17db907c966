//! The pixels that the default limit of memory leaves to each format, as docs/images.md lists them.

use super::files::file;
use crate::{ImageError, Limits, inspect};

#[test]
fn formats_that_take_more_memory_for_a_pixel_are_refused_above_fewer_pixels() {
    for (name, bytes_of_pixel, listed) in [
        ("jpeg-progressive", 7, 14_900_000),
        ("webp-lossless", 8, 13_100_000),
        ("webp-lossy-alpha", 11, 9_500_000),
    ] {
        let limits = Limits::default();
        let most = limits.max_bytes / bytes_of_pixel;
        assert!((listed..listed + 100_000).contains(&most), "{name}: {most}");
        let file = file(name);
        let header = inspect(&file, &limits).expect("the file is valid");
        let n_bytes = u64::from(header.size().0 * header.size().1) * bytes_of_pixel;
        let refused = inspect(
            &file,
            &Limits {
                max_bytes: n_bytes - 1,
                ..limits
            },
        );
        assert!(
            matches!(refused, Err(ImageError::TooMuchMemory { .. })),
            "{name}: {refused:?}"
        );
    }
}
