//! Compiles all kernels, the emulated CUDA driver and the emulated NCCL into one shared library, `libcuda.so`.

#[path = "build/pack.rs"]
mod pack;

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options that the kernels need from a host compiler; the tests of `kernels/cusim/tests` are compiled with them as
/// well. Without `-fno-strict-aliasing`, reads of bf16 vectors as integers are miscompiled.
const FLAGS: [&str; 4] = [
    "-std=c++20",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-pthread",
];

fn main() {
    let folder = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let kernels = folder
        .parent()
        .expect("this crate is in kernels/")
        .to_owned();
    let out = PathBuf::from(variable("OUT_DIR"));
    for input in [&folder.join("driver"), &folder.join("build"), &kernels] {
        println!("cargo::rerun-if-changed={}", input.display());
    }

    let mut build = cc::Build::new();
    build.cpp(true).opt_level(2).debug(false).pic(true);
    build.warnings(false).cargo_metadata(false);
    build.flag("-fvisibility=hidden");
    for flag in FLAGS {
        build.flag(flag);
    }
    build.include(&folder).include(&kernels);
    for unit in files(&kernels, "cu") {
        build.file(wrapper(&unit, &out));
    }
    for part in files(&folder.join("driver"), "cpp") {
        build.file(part);
    }
    build.file(static_shared(&kernels.join("kernels.pack"), &out));
    let objects = build.compile_intermediates();
    let compiler = build.get_compiler();

    let library = out.join("libcuda");
    fs::create_dir_all(&library).expect("the output folder is writable");
    let mut link = compiler.to_command();
    link.args(["-shared", "-pthread", "-Wl,-soname,libcuda.so", "-o"]);
    link.arg(library.join("libcuda.so")).args(&objects);
    run(&mut link);
    fs::copy(library.join("libcuda.so"), library.join("libcuda.so.1")).expect("copy libcuda.so");
    link_nccl(&compiler, &library);

    println!(
        "cargo::rustc-env=CUSIM_LIBRARY={}",
        library.join("libcuda.so").display()
    );
    println!(
        "cargo::rustc-env=CUSIM_COMPILER={}",
        compiler.path().display()
    );
    println!("cargo::rustc-env=CUSIM_FLAGS={}", FLAGS.join(" "));
}

/// Links the emulated `libnccl.so.2`, which is empty: its functions are those of the driver's library, where the loader
/// looks for them next.
fn link_nccl(compiler: &cc::Tool, folder: &Path) {
    let mut link = compiler.to_command();
    link.args(["-shared", "-Wl,-soname,libnccl.so.2"]);
    link.args(["-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN", "-o"]);
    link.arg(folder.join("libnccl.so.2"));
    run(link.arg(folder.join("libcuda.so")));
}

/// Writes a file that compiles a kernel file and its headers in a separate namespace: otherwise the linker would merge
/// inline functions that have the same name in several kernel files but different `__shared__` arrays.
fn wrapper(unit: &Path, out: &Path) -> PathBuf {
    let name = unit.file_stem().expect("a file name").to_string_lossy();
    let text = format!("#include \"cusim.h\"\nnamespace unit_{name} {{\n#include {unit:?}\n}}\n");
    let path = out.join(format!("{name}.cpp"));
    fs::write(&path, text).expect("the output folder is writable");
    path
}

/// Writes a file with the static shared memory of each kernel, which only NVIDIA's compiler knows.
fn static_shared(pack: &Path, out: &Path) -> PathBuf {
    let sizes = pack::static_shared_bytes(pack).unwrap_or_else(|reason| {
        println!("cargo::warning=static shared memory is not counted: {reason}");
        Vec::new()
    });
    let mut text = String::from(
        "#include \"driver/driver.h\"\n\
         const std::map<std::string, unsigned, std::less<>>& fake::static_shared_bytes() {\n\
         static const auto* sizes = new std::map<std::string, unsigned, std::less<>>{\n",
    );
    for (kernel, bytes) in sizes {
        writeln!(text, "{{\"{kernel}\", {bytes}}},").expect("writing to a String does not fail");
    }
    text.push_str("};\nreturn *sizes;\n}\n");
    let path = out.join("static_shared.cpp");
    fs::write(&path, text).expect("the output folder is writable");
    path
}

/// The files of a folder with this extension, sorted by name.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("the folder can be listed").path());
    let mut found: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|own| own == extension))
        .collect();
    found.sort();
    found
}

fn run(command: &mut Command) {
    let status = command
        .status()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
