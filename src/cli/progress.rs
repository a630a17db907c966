//! Shows progress bars on stderr for downloads and for loading weights; without a terminal, logs downloads.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use souffleur::engine::Progress;
use souffleur::hub::Transfer;

/// Downloads and the loading of weights are logged in steps of this percentage.
const LOGGED_PERCENT: u64 = 10;

/// Least time between two log lines about the loading of weights.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Shows the progress of loading weights: as a bar on a terminal, which clears itself at the end, else as log lines.
pub fn weights_bar() -> Progress {
    weights_bar_and(|_, _| ())
}

/// As [`weights_bar`]; also reports the loaded and the total bytes to `also`.
pub fn weights_bar_and(also: impl Fn(u64, u64) + Send + Sync + 'static) -> Progress {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("weights {wide_bar} {bytes}/{total_bytes}");
    bar.set_style(style.expect("the template is well-formed"));
    let logged = Mutex::new((Instant::now(), 0));
    Progress::new(move |done_bytes, all_bytes| {
        also(done_bytes, all_bytes);
        if bar.is_hidden() {
            log_weights(&logged, done_bytes, all_bytes);
            return;
        }
        bar.set_length(all_bytes);
        bar.set_position(done_bytes);
        if done_bytes >= all_bytes {
            bar.finish_and_clear();
        }
    })
}

/// Logs the percentage of loaded bytes, unless the last line is younger than [`LOG_INTERVAL`] or has the same number.
fn log_weights(logged: &Mutex<(Instant, u64)>, done_bytes: u64, all_bytes: u64) {
    let mut logged = logged.lock().unwrap_or_else(PoisonError::into_inner);
    let percent = percent_of(done_bytes, all_bytes);
    if logged.0.elapsed() < LOG_INTERVAL || percent == logged.1 {
        return;
    }
    *logged = (Instant::now(), percent);
    tracing::info!(percent, all = %HumanBytes(all_bytes), "loading weights");
}

/// The percentage, rounded down to a multiple of [`LOGGED_PERCENT`].
fn percent_of(done_bytes: u64, all_bytes: u64) -> u64 {
    let percent = u128::from(done_bytes) * 100 / u128::from(all_bytes.max(1));
    percent as u64 / LOGGED_PERCENT * LOGGED_PERCENT
}

/// Shows the progress of a download as a bar on a terminal, else as log lines.
pub fn download_bar() -> impl FnMut(Transfer<'_>) {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template(
        "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
    );
    bar.set_style(style.expect("the template is well-formed"));
    let mut logged_percent = None;
    move |transfer| {
        let Transfer {
            file,
            done_bytes,
            all_bytes,
        } = transfer;
        if bar.is_hidden() {
            let percent = percent_of(done_bytes, all_bytes);
            if logged_percent != Some(percent) {
                logged_percent = Some(percent);
                let (done, all) = (HumanBytes(done_bytes), HumanBytes(all_bytes));
                tracing::info!(file, %done, %all, percent, "downloading");
            }
            return;
        }
        if bar.length().is_none() {
            // Bytes of an earlier, interrupted download do not count for the speed.
            bar.set_length(all_bytes);
            bar.set_position(done_bytes);
            bar.reset_eta();
        }
        if bar.message() != file {
            bar.set_message(file.to_owned());
        }
        bar.set_position(done_bytes);
        if done_bytes >= all_bytes {
            bar.finish_and_clear();
        }
    }
}

/// Shows the current work, if stderr is a terminal.
pub fn spinner() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}");
    bar.set_style(style.expect("the template is well-formed"));
    bar
}
