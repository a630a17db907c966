//! Names of models as Ollama writes them: a name without a tag has the tag `latest`.

use crate::error::ApiError;
use crate::fields::Fields;

const LATEST: &str = "latest";
/// Maximum number of characters of an unknown name that an error repeats.
const MAX_SHOWN: usize = 128;

/// The name with its tag.
pub(super) fn tagged(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains(':') {
        name.to_owned()
    } else {
        format!("{name}:{LATEST}")
    }
}

/// Takes the model's name from the first of `fields` that has one.
///
/// # Errors
/// 400 without a name, 404 for any name but that of the served model.
pub(super) fn take(fields: &mut Fields, names: &[&str], served: &str) -> Result<String, ApiError> {
    let mut given = None;
    for name in names {
        let name = fields.string(name)?.filter(|name| !name.is_empty());
        given = given.or(name);
    }
    let Some(given) = given else {
        let text = format!("model is required: send {served:?}, the name of the served model");
        return Err(ApiError::field("model", text));
    };
    if tagged(&given).eq_ignore_ascii_case(&tagged(served)) {
        Ok(given)
    } else {
        let shown: String = given.chars().take(MAX_SHOWN).collect();
        Err(ApiError::model_not_found(&shown))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn taken(body: Value, served: &str) -> Result<String, String> {
        let taken = take(&mut Fields::of(&body), &["model", "name"], served);
        taken.map_err(|error| error.to_string())
    }

    #[test]
    fn a_name_without_a_tag_means_latest() {
        for (given, served) in [
            ("tiny", "tiny"),
            ("tiny:latest", "tiny"),
            ("Tiny", "tiny:latest"),
            ("org/tiny:latest", "org/tiny"),
            ("org/tiny:Q4_K_M", "org/tiny:Q4_K_M"),
        ] {
            assert_eq!(taken(json!({"model": given}), served), Ok(given.to_owned()));
            assert_eq!(taken(json!({"name": given}), served), Ok(given.to_owned()));
        }
        for (given, served) in [
            ("tiny:7b", "tiny"),
            ("tiny", "tiny:7b"),
            ("other", "tiny"),
            ("latest", "tiny"),
        ] {
            let expected = Err(format!("model '{given}' not found"));
            assert_eq!(taken(json!({"model": given}), served), expected);
        }
    }

    #[test]
    fn a_missing_name_is_refused_and_a_long_one_is_shortened() {
        let missing = "model is required: send \"tiny\", the name of the served model";
        for body in [json!({}), json!({"model": ""}), json!({"model": null})] {
            assert_eq!(taken(body, "tiny"), Err(missing.to_owned()));
        }
        let error = taken(json!({"model": "x".repeat(5000)}), "tiny");
        assert!(error.expect_err("is unknown").len() < 200);
    }
}
