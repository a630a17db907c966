//! Compiles C++ tests of kernels.

use std::path::Path;
use std::process::Command;

/// The compiler, told what the kernels ask of it and where the headers of `kernels/` and `kernels/cusim/` are.
///
/// `kernels` is the folder of the kernels: this one's parent, or a changed copy of it.
pub fn compiler(kernels: &Path) -> Command {
    let mut command = Command::new(env!("CUSIM_COMPILER"));
    command.args(env!("CUSIM_FLAGS").split(' '));
    command.arg("-I").arg(kernels);
    command.arg("-I").arg(Path::new(env!("CARGO_MANIFEST_DIR")));
    command
}
