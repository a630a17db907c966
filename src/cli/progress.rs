//! Progress bars on stderr for downloading and loading weights. Without a terminal, downloads are logged.

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use souffleur::engine::Progress;
use souffleur::hub::Transfer;

/// A download is logged each time this share of it completes.
const LOGGED_PERCENT: u64 = 10;

/// Shows bytes read of all bytes, and clears itself at the end.
pub fn weights_bar() -> Progress {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("weights {wide_bar} {bytes}/{total_bytes}");
    bar.set_style(style.expect("the template is well-formed"));
    Progress::new(move |done_bytes, all_bytes| {
        bar.set_length(all_bytes);
        bar.set_position(done_bytes);
        if done_bytes >= all_bytes {
            bar.finish_and_clear();
        }
    })
}

/// Shows the progress of a download: as a bar on a terminal, else as lines of the log.
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
            let percent = u128::from(done_bytes) * 100 / u128::from(all_bytes.max(1));
            let percent = percent as u64 / LOGGED_PERCENT * LOGGED_PERCENT;
            if logged_percent != Some(percent) {
                logged_percent = Some(percent);
                let (done, all) = (HumanBytes(done_bytes), HumanBytes(all_bytes));
                tracing::info!(file, %done, %all, percent, "downloading");
            }
            return;
        }
        if bar.length().is_none() {
            // The bytes that an earlier download left are not part of the speed.
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

/// Shows the current work; nothing when stderr is no terminal.
pub fn spinner() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}");
    bar.set_style(style.expect("the template is well-formed"));
    bar
}
