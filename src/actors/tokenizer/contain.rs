//! Contains panics in the work on one request: the others continue.

use std::panic::{AssertUnwindSafe, catch_unwind};

use souffleur_base::error::RequestError;

/// Runs the work on one request, a second time if it panics. `None` if it panics again.
///
/// The work must leave nothing half-changed that a second attempt would read.
pub(super) fn contain<T>(what: &'static str, mut work: impl FnMut() -> T) -> Option<T> {
    for attempt in 1..=2 {
        if let Ok(done) = catch_unwind(AssertUnwindSafe(&mut work)) {
            return Some(done);
        }
        if attempt == 1 {
            tracing::error!(
                what,
                attempt,
                "the work on a request panicked: trying once more"
            );
        } else {
            tracing::error!(
                what,
                attempt,
                "the work on a request panicked again: this request fails, the others continue"
            );
        }
    }
    None
}

/// The end of a request whose own work panics each time.
pub(super) fn panicked() -> RequestError {
    RequestError::Poison(
        "the engine panicked twice while it processed the text of this request, which is a bug of this engine (please \
         report it with the server's log)"
            .to_owned(),
    )
}
