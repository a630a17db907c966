//! The engine as its users meet it: unmodified clients talk to the real binary, and the bundled model is measured.

mod binary;
mod bundled;
#[path = "../common/python_environment.rs"]
mod environment;
mod python;
