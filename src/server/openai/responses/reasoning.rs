//! Encodes reasoning as a blob, which clients send back if responses are not stored.
//!
//! The blob is not secret: the response has the same reasoning as text. Clients that were made for OpenAI keep the blob
//! and drop the text. The blob begins with a version, and blobs of other programs are not decoded.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const VERSION: &str = "souffleur1.";

pub(super) fn encode(text: &str) -> String {
    format!("{VERSION}{}", STANDARD.encode(text))
}

/// The text of a blob, if this program wrote it.
pub(super) fn decode(blob: &str) -> Option<String> {
    let text = STANDARD.decode(blob.strip_prefix(VERSION)?).ok()?;
    String::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_blobs_are_decoded() {
        for text in ["", "Zwölf — 12?", "\n"] {
            assert_eq!(decode(&encode(text)).as_deref(), Some(text));
        }
        for other in [
            "",
            "gAAAAAB",
            "souffleur1.f",
            "souffleur1.!!!!",
            "souffleur1./w==",
        ] {
            assert_eq!(decode(other), None, "{other}");
        }
    }
}
