//! The metric of the build, whose labels name it.

use metrics::gauge;

/// Records the build of the running program. `features` are separated by commas.
pub fn record_build(version: &'static str, commit: &'static str, features: String) {
    gauge!("souffleur_build_info", "version" => version, "commit" => commit, "features" => features).set(1.0);
}
