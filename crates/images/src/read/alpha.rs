//! Transparent pixels on white.

/// A channel's value on white under an alpha of 0 to 255, as Pillow's `Image.alpha_composite` rounds it.
fn on_white(value: u8, alpha: u8) -> u8 {
    let (value, alpha) = (u32::from(value), u32::from(alpha));
    // 255 * 255 * 128 at most, with 7 bits below the point; then divided by 255.
    let sum = (value * alpha + 255 * (255 - alpha)) * 128 + (0x80 << 7);
    let quotient = ((sum >> 8) + sum) >> 8;
    (quotient >> 7) as u8
}

/// Appends pixels of red, green, blue and alpha to `rgb`, composed on white.
pub(super) fn append_rgba(rgba: &[u8], rgb: &mut Vec<u8>) {
    for pixel in rgba.chunks_exact(4) {
        let [red, green, blue, alpha] = [pixel[0], pixel[1], pixel[2], pixel[3]];
        rgb.extend([red, green, blue].map(|value| on_white(value, alpha)));
    }
}

/// Appends pixels of grey and alpha to `rgb`, composed on white.
pub(super) fn append_grey_alpha(grey_alpha: &[u8], rgb: &mut Vec<u8>) {
    for pixel in grey_alpha.chunks_exact(2) {
        rgb.extend([on_white(pixel[0], pixel[1]); 3]);
    }
}

/// Composes pixels of red, green, blue and alpha on white, in the memory that they are in.
pub(super) fn compose(mut rgba: Vec<u8>) -> Vec<u8> {
    let n_pixels = rgba.len() / 4;
    for i in 0..n_pixels {
        let alpha = rgba[i * 4 + 3];
        for channel in 0..3 {
            rgba[i * 3 + channel] = on_white(rgba[i * 4 + channel], alpha);
        }
    }
    rgba.truncate(n_pixels * 3);
    rgba.shrink_to_fit();
    rgba
}
