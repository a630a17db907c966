//! Compiles C++ tests of kernels.

use std::path::Path;
use std::process::Command;

/// The compiler, with the options of the kernels and the include paths of `kernels/` and `kernels/cusim/`.
///
/// `kernels` is the folder of the kernels: this one's parent, or a changed copy of it.
pub fn compiler(kernels: &Path) -> Command {
    let mut command = Command::new(env!("CUSIM_COMPILER"));
    command.args(env!("CUSIM_FLAGS").split(' '));
    command.arg("-I").arg(kernels);
    command.arg("-I").arg(Path::new(env!("CARGO_MANIFEST_DIR")));
    command
}
