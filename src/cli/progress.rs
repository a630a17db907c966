//! A bar on stderr while weights load; nothing when stderr is no terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use souffleur::engine::Progress;

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

/// Shows what is being done; nothing when stderr is no terminal.
pub fn spinner() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}");
    bar.set_style(style.expect("the template is well-formed"));
    bar
}
