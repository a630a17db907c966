//! The C++ compiler command for tests of kernels.

use std::path::Path;
use std::process::Command;

/// Returns the compiler with the kernels' options and the include paths `kernels` and `kernels/cusim/`.
///
/// `kernels` is this crate's parent folder, or a modified copy of it.
pub fn compiler(kernels: &Path) -> Command {
    let mut command = Command::new(env!("CUSIM_COMPILER"));
    command.args(env!("CUSIM_FLAGS").split(' '));
    command.arg("-I").arg(kernels);
    command.arg("-I").arg(Path::new(env!("CARGO_MANIFEST_DIR")));
    command
}
