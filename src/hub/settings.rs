//! Settings of the hub client, from the environment variables that Python's `huggingface_hub` reads.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::HubError;
use super::roots;

const ENDPOINT: &str = "https://huggingface.co";
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The wait before the third attempt; each further wait is twice as long. The second attempt comes at once.
const FIRST_WAIT: Duration = Duration::from_secs(1);

#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// # Errors
    /// [`HubError::BadToken`], which names the source of the token only.
    pub fn new(text: &str, place: impl Into<String>) -> Result<Self, HubError> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(HubError::BadToken {
                place: place.into(),
            })
        }
    }

    pub(super) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// How to reach the hub, and where to keep its files.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// The hub's address, without a slash at the end.
    pub endpoint: String,
    /// The folder that holds `models--owner--name`.
    pub cache: PathBuf,
    /// Sent to the endpoint's origin and to no other.
    pub token: Option<Token>,
    /// Whether all requests are disabled.
    pub is_offline: bool,
    /// PEM file with the roots that TLS trusts instead of the system's.
    pub roots: Option<PathBuf>,
    /// Time without data after which a download is retried.
    pub idle_timeout: Duration,
    /// The wait before the third attempt.
    pub first_wait: Duration,
}

impl HubSettings {
    /// Settings for an endpoint and a cache, without a token.
    pub fn new(endpoint: impl Into<String>, cache: impl Into<PathBuf>) -> Self {
        Self {
            endpoint: endpoint.into(),
            cache: cache.into(),
            token: None,
            is_offline: false,
            roots: None,
            idle_timeout: IDLE_TIMEOUT,
            first_wait: FIRST_WAIT,
        }
    }

    /// Reads `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HF_TOKEN` and similar variables.
    pub fn from_env() -> Result<Self, HubError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// Reads the variables from a function. An empty variable counts as unset.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let found = |names: &[&str]| {
            let mut values = names.iter().filter_map(|name| variable(name));
            values.find(|value| !value.is_empty())
        };
        let text = |names: &[&str]| found(names).map(|value| value.to_string_lossy().into_owned());
        let user_home = found(&["HOME"]).map(PathBuf::from);
        let path = |names: &[&str]| {
            found(names).map(|value| expand_home(Path::new(&value), user_home.as_deref()))
        };
        let home = path(&["HF_HOME"])
            .or_else(|| Some(path(&["XDG_CACHE_HOME"])?.join("huggingface")))
            .or_else(|| Some(user_home.as_ref()?.join(".cache/huggingface")));
        let home = home.ok_or_else(|| HubError::Setting {
            name: "HF_HOME",
            value: String::new(),
            reason: "and HOME is not set: set HF_HOME to a folder for downloaded models".into(),
        })?;
        let cache = path(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]);
        let endpoint = text(&["HF_ENDPOINT"]).unwrap_or_else(|| ENDPOINT.to_owned());
        let is_set = |names: &[&str]| text(names).is_some_and(|value| is_true(&value));
        let token = if is_set(&["HF_HUB_DISABLE_IMPLICIT_TOKEN"]) {
            None
        } else {
            let mut names = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"].into_iter();
            match names.find_map(|name| Some((name, text(&[name])?))) {
                Some((name, token)) => Some(Token::new(token.trim(), name)?),
                None => token_in(&path(&["HF_TOKEN_PATH"]).unwrap_or(home.join("token")))?,
            }
        };
        let timeout_s = text(&["HF_HUB_DOWNLOAD_TIMEOUT"])
            .map(seconds)
            .transpose()?;
        Ok(Self {
            token,
            is_offline: is_set(&["HF_HUB_OFFLINE"]) || is_set(&["TRANSFORMERS_OFFLINE"]),
            roots: path(&roots::VARIABLES),
            idle_timeout: timeout_s.unwrap_or(IDLE_TIMEOUT),
            ..Self::new(
                checked_endpoint(endpoint)?,
                cache.unwrap_or_else(|| home.join("hub")),
            )
        })
    }
}

fn checked_endpoint(endpoint: String) -> Result<String, HubError> {
    let scheme = ["https://", "http://"]
        .into_iter()
        .find(|scheme| endpoint.starts_with(scheme));
    let has_host = scheme.is_some_and(|scheme| {
        let host = &endpoint[scheme.len()..];
        !host.is_empty() && !host.starts_with('/') && !host.contains(['@', '?', '#'])
    });
    if has_host {
        Ok(endpoint.trim_end_matches('/').to_owned())
    } else {
        Err(HubError::Setting {
            name: "HF_ENDPOINT",
            value: endpoint,
            reason: format!(
                "must be like {ENDPOINT}: http or https, and a host, without @, ? and #"
            ),
        })
    }
}

fn seconds(value: String) -> Result<Duration, HubError> {
    let seconds = value.parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| HubError::Setting {
        name: "HF_HUB_DOWNLOAD_TIMEOUT",
        value,
        reason: "must be a positive number of seconds".to_owned(),
    })
}

/// The token that a login saved, if any.
fn token_in(file: &Path) -> Result<Option<Token>, HubError> {
    let Ok(text) = std::fs::read_to_string(file) else {
        return Ok(None);
    };
    match text.trim() {
        "" => Ok(None),
        token => Token::new(token, file.display().to_string()).map(Some),
    }
}

/// Replaces a leading `~` by the home folder.
fn expand_home(path: &Path, user_home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), user_home) {
        (Ok(rest), Some(user_home)) => user_home.join(rest),
        _ => path.to_owned(),
    }
}

fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<HubSettings, HubError> {
        HubSettings::from_variables(|name| {
            let mut values = variables.iter().filter(|(known, _)| *known == name);
            values.next().map(|(_, value)| OsString::from(*value))
        })
    }

    #[test]
    fn variables_work_as_in_huggingface_hub() {
        let plain = read(&[("HOME", "/home/ada")]).expect("no error");
        assert_eq!(plain.cache, Path::new("/home/ada/.cache/huggingface/hub"));
        assert_eq!((plain.endpoint.as_str(), plain.token), (ENDPOINT, None));
        assert!(!plain.is_offline);
        let cache = |variables: &[(&str, &str)]| read(variables).expect("no error").cache;
        let home = ("HOME", "/home/ada");
        let hf = ("HF_HOME", "~/hf");
        assert_eq!(
            cache(&[home, ("XDG_CACHE_HOME", "/x")]),
            Path::new("/x/huggingface/hub")
        );
        assert_eq!(cache(&[home, hf]), Path::new("/home/ada/hf/hub"));
        assert_eq!(cache(&[home, hf, ("HF_HUB_CACHE", "/c")]), Path::new("/c"));
        assert_eq!(
            cache(&[hf, ("HUGGINGFACE_HUB_CACHE", "/d")]),
            Path::new("/d")
        );
        let set = read(&[
            home,
            ("HF_ENDPOINT", "http://mirror:8/hub/"),
            ("HF_TOKEN", " hf_secret\n"),
            ("HF_HUB_OFFLINE", "Yes"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "2.5"),
        ]);
        let set = set.expect("no error");
        assert_eq!(set.endpoint, "http://mirror:8/hub");
        assert!(set.is_offline && !format!("{set:?}").contains("secret"));
        assert_eq!(set.token.expect("a token").bearer(), "Bearer hf_secret");
        assert_eq!(set.idle_timeout, Duration::from_millis(2500));
    }

    #[test]
    fn a_saved_token_is_used_unless_disabled() {
        let dir = tempfile::tempdir().expect("a temporary folder can be made");
        std::fs::write(dir.path().join("token"), "hf_saved\n").expect("the file can be written");
        let home = ("HF_HOME", dir.path().to_str().expect("the path is UTF-8"));
        let bearer = |more: (&str, &str)| {
            let settings = read(&[home, more]).expect("no error");
            settings.token.map(|token| token.bearer())
        };
        assert_eq!(bearer(("A", "b")).as_deref(), Some("Bearer hf_saved"));
        assert_eq!(bearer(("HF_TOKEN", "hf_2")).as_deref(), Some("Bearer hf_2"));
        assert_eq!(bearer(("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")), None);
    }

    #[test]
    fn errors_name_the_invalid_variable() {
        for (name, value, part) in [
            ("HF_ENDPOINT", "huggingface.co", "must be like https://"),
            ("HF_ENDPOINT", "https://", "must be like https://"),
            ("HF_ENDPOINT", "https://me:pw@host", "must be like https://"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "0", "positive number"),
            (
                "HF_TOKEN",
                "hf secret",
                "invalid Hugging Face token in HF_TOKEN",
            ),
            ("HUGGING_FACE_HUB_TOKEN", "hf secret", "copy it again"),
        ] {
            let error = read(&[("HOME", "/home/ada"), (name, value)]).expect_err("a bad value");
            let text = error.to_string();
            assert!(text.contains(name) && text.contains(part), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
        assert!(
            read(&[])
                .expect_err("the home folder is unknown")
                .to_string()
                .contains("HF_HOME")
        );
    }
}
