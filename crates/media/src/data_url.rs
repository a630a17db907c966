//! Decodes `data:` URLs (RFC 2397) and base64. The media type is ignored: files are recognised by their first bytes.

use std::borrow::Cow;

use base64::Engine;
use base64::alphabet::{Alphabet, STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use percent_encoding::percent_decode_str;

use crate::error::MediaError;

const SCHEME: &str = "data:";

/// Returns whether a text is a `data:` URL, after white space.
pub fn is_data_url(text: &str) -> bool {
    let text = text.trim_ascii_start();
    let scheme = text.get(..SCHEME.len());
    scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME))
}

/// The bytes of a `data:` URL, in base64 or percent-encoded.
///
/// # Errors
/// [`MediaError::NoData`] if it is no such URL or has no comma, [`MediaError::Base64`], and [`MediaError::TooLarge`],
/// before memory is taken.
pub fn decode_data_url(url: &str, max_bytes: u64) -> Result<Vec<u8>, MediaError> {
    if !is_data_url(url) {
        return Err(MediaError::NoData);
    }
    let url = url.trim_ascii();
    let (head, data) = url.split_once(',').ok_or(MediaError::NoData)?;
    let parameters = head[SCHEME.len()..].split(';').skip(1);
    if parameters.last().is_some_and(is_base64) {
        let text = percent_decode_str(data).decode_utf8();
        let text = text.map_err(|error| MediaError::Base64 {
            reason: error.to_string(),
        })?;
        return decode_base64(&text, max_bytes);
    }
    // An escape of three characters is a byte.
    let n_escapes = data.bytes().filter(|byte| *byte == b'%').count() as u64;
    check((data.len() as u64).saturating_sub(2 * n_escapes), max_bytes)?;
    let bytes = Cow::<[u8]>::from(percent_decode_str(data)).into_owned();
    check(bytes.len() as u64, max_bytes)?;
    Ok(bytes)
}

/// The bytes of base64 in the standard or the URL-safe alphabet, with or without padding. White space is skipped.
///
/// # Errors
/// [`MediaError::Base64`], and [`MediaError::TooLarge`] before memory is taken.
pub fn decode_base64(text: &str, max_bytes: u64) -> Result<Vec<u8>, MediaError> {
    let is_blank = |byte: u8| byte.is_ascii_whitespace();
    let n_blanks = text.bytes().filter(|byte| is_blank(*byte)).count();
    // Padding may take the place of two bytes.
    let least = ((text.len() - n_blanks) as u64 / 4 * 3).saturating_sub(2);
    check(least, max_bytes)?;
    let text = match n_blanks {
        0 => Cow::Borrowed(text),
        _ => Cow::Owned(text.split_ascii_whitespace().collect::<String>()),
    };
    let is_url_safe = text.bytes().any(|byte| matches!(byte, b'-' | b'_'));
    let alphabet = if is_url_safe { &URL_SAFE } else { &STANDARD };
    let decoded = engine(alphabet).decode(&*text);
    let bytes = decoded.map_err(|error| MediaError::Base64 {
        reason: error.to_string(),
    })?;
    check(bytes.len() as u64, max_bytes)?;
    Ok(bytes)
}

fn is_base64(parameter: &str) -> bool {
    parameter.trim().eq_ignore_ascii_case("base64")
}

fn engine(alphabet: &Alphabet) -> GeneralPurpose {
    let config = GeneralPurposeConfig::new();
    let config = config.with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(alphabet, config)
}

fn check(bytes: u64, limit: u64) -> Result<(), MediaError> {
    if bytes > limit {
        Err(MediaError::TooLarge { bytes, limit })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_urls_are_base64_or_escaped() {
        for (url, expected) in [
            ("data:image/png;base64,R0lG", &b"GIF"[..]),
            ("DATA:image/png;name=a.png;BASE64,R0lG", b"GIF"),
            ("data:;base64,R0lGOA", b"GIF8"),
            ("data:;base64,R0lGOA==", b"GIF8"),
            ("data:;base64,R0lGOA%3D%3D", b"GIF8"),
            ("data:;base64,R0 lG\r\nOA==\n", b"GIF8"),
            (" \ndata:image/png;charset=utf-8;base64,R0lG\n", b"GIF"),
            ("Data:image/png ; Base64 ,R0lG", b"GIF"),
            ("data:image/png;base64,R0lG%0AOA%3d=", b"GIF8"),
            ("data:base64,R0lG", b"R0lG"),
            ("data:;base64,-_8=", b"\xfb\xff"),
            ("data:;base64,+/8=", b"\xfb\xff"),
            ("data:image/svg+xml,%89a%2C,", b"\x89a,,"),
            ("data:,", b""),
        ] {
            assert_eq!(decode_data_url(url, 64).as_deref(), Ok(expected), "{url}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for url in [
            "",
            "data:",
            "data:image/png;base64",
            "http://a/,b",
            "dåta:,a",
        ] {
            assert_eq!(decode_data_url(url, 64), Err(MediaError::NoData), "{url}");
        }
        for url in [
            "data:;base64,R",
            "data:;base64,R0l!",
            "data:;base64,%ff",
            "data:;base64,+-8=",
        ] {
            let error = decode_data_url(url, 64).expect_err("is not base64");
            assert_eq!(error.code(), "media_encoding", "{url}");
        }
    }

    #[test]
    fn the_limit_is_exact() {
        let url = |n: usize| format!("data:,{}", "%41".repeat(n));
        let base64 = |n: usize| base64::engine::general_purpose::STANDARD.encode(vec![7; n]);
        for n in 9..16 {
            let fits = n <= 12;
            assert_eq!(decode_data_url(&url(n), 12).is_ok(), fits, "{n}");
            assert_eq!(decode_base64(&base64(n), 12).is_ok(), fits, "{n}");
        }
        let error = decode_base64(&base64(4000), 12).expect_err("is too large");
        assert_eq!(
            error.to_string(),
            "it has 4000 bytes, and the limit is 12: send a smaller file"
        );
    }
}
