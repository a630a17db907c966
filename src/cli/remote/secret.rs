//! The API key for a remote server, from a flag or the environment.

use std::fmt;

use hyper::header::HeaderValue;
use souffleur::server::ApiKey;

use crate::cli::failure::Failure;

/// The environment variable that OpenAI's clients and other engines' benches read.
const KEY_VARIABLE: &str = "OPENAI_API_KEY";

/// An API key, which is never printed.
#[derive(Clone)]
pub struct Secret(String);

impl From<String> for Secret {
    fn from(key: String) -> Self {
        Self(key)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

impl Secret {
    /// The value of the Authorization header. The error does not contain the key.
    pub fn bearer(&self) -> Result<HeaderValue, &'static str> {
        ApiKey::new(&self.0)?;
        let mut bearer = HeaderValue::try_from(format!("Bearer {}", self.0))
            .expect("all characters of an API key are valid in a header");
        bearer.set_sensitive(true);
        Ok(bearer)
    }
}

/// The value of the Authorization header, with the key from the flag, or else from the environment.
pub fn header(flag: Option<&Secret>) -> Result<Option<HeaderValue>, Failure> {
    bearer(flag, std::env::var(KEY_VARIABLE).ok())
}

/// Like [`header`]; an empty `variable` counts as unset.
fn bearer(flag: Option<&Secret>, variable: Option<String>) -> Result<Option<HeaderValue>, Failure> {
    let variable = variable.filter(|key| !key.is_empty()).map(Secret::from);
    let (name, key) = match (flag, &variable) {
        (Some(key), _) => ("--api-key", key),
        (None, Some(key)) => (KEY_VARIABLE, key),
        (None, None) => return Ok(None),
    };
    let bearer = key.bearer();
    bearer
        .map(Some)
        .map_err(|reason| Failure::Usage(format!("{name} {reason}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_from_the_flag_or_the_environment_and_is_never_shown() {
        let shown = |flag: Option<&str>, variable: Option<&str>| {
            let flag = flag.map(|key| Secret::from(key.to_owned()));
            bearer(flag.as_ref(), variable.map(str::to_owned))
        };
        for (flag, variable, expected) in [
            (None, None, None),
            (None, Some(""), None),
            (None, Some("sk-2"), Some("Bearer sk-2")),
            (Some("sk-1"), Some("sk-2"), Some("Bearer sk-1")),
        ] {
            let header = shown(flag, variable).expect("the key is valid in a header");
            let text = header.as_ref().map(|header| header.as_bytes());
            assert_eq!(text, expected.map(str::as_bytes));
            assert!(!format!("{header:?}").contains("sk-"), "{header:?}");
        }
        for (flag, variable, name) in [
            (Some("sk 1"), None, "--api-key must be one"),
            (Some(""), Some("sk-2"), "--api-key must be one"),
            (None, Some("sk\n2"), "OPENAI_API_KEY must be one"),
        ] {
            match shown(flag, variable) {
                Err(Failure::Usage(reason)) => {
                    assert!(reason.contains(name) && !reason.contains("sk"), "{reason}");
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(
            format!("{:?}", Secret::from("sk-1".to_owned())),
            "Secret(hidden)"
        );
    }
}
