//! Shows progress bars on stderr for downloads and for loading weights; without a terminal, logs downloads.

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use souffleur::engine::Progress;
use souffleur::hub::Transfer;

/// A download is logged each time this percentage of it completes.
const LOGGED_PERCENT: u64 = 10;

/// A progress bar of the loaded bytes of weights, which clears itself at the end.
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
