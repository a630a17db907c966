//! Tests of the cuBLASLt wrapper with a fake library that implements cuBLASLt's documentation on the CPU.
//!
//! The tests show that matrices have the right layout and that attributes have the documented sizes, not that NVIDIA's
//! library accepts them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use libloading::{Library, Symbol};
use souffleur::kernels::cuda::driver::{DriverError, Priority};
use souffleur::kernels::cuda::gemm::{GemmWish, Products};
use souffleur::kernels::cuda::params::ElementType;

use crate::device;
use crate::kernels::{World, check_products};

/// Compiles the fake library under the given name.
fn compile(folder: &Path, name: &str, more: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/driver/cublaslt.cpp");
    let library = folder.join(name);
    let mut compiler = souffleur_cusim::compiler(folder);
    compiler.args(["-O1", "-shared", "-fPIC"]).args(more);
    compiler.arg(format!("-Wl,-soname,{name}"));
    compiler
        .arg(source)
        .arg(souffleur_cusim::library())
        .arg("-o")
        .arg(&library);
    assert!(compiler.status().unwrap().success());
    library
}

/// The fake library, which stays loaded: every later open of `libcublasLt.so` by name returns it. Its counters are
/// global, so only one test at a time may hold a `Fake`.
struct Fake {
    library: &'static Library,
    _alone: MutexGuard<'static, ()>,
}

impl Fake {
    fn load() -> Self {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(|held| held.into_inner());
        let library = LIBRARY.get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            let library = compile(folder.path(), "libcublasLt.so", &[]);
            // SAFETY: the library's initialisers do nothing.
            unsafe { Library::new(library) }.unwrap()
        });
        Self {
            library,
            _alone: alone,
        }
    }

    fn count(&self, name: &str) -> i32 {
        // SAFETY: as declared in cublaslt.cpp.
        unsafe {
            let count: Symbol<extern "C" fn() -> i32> = self.library.get(name.as_bytes()).unwrap();
            count()
        }
    }

    /// Makes the next `n` products fail.
    fn fail(&self, n: i32) {
        // SAFETY: as declared in cublaslt.cpp.
        unsafe {
            let fail: Symbol<extern "C" fn(i32)> = self.library.get(b"fake_failures").unwrap();
            fail(n);
        }
    }
}

/// Lines that `work` logs on this thread at info and above.
fn logged(work: impl FnOnce()) -> Vec<String> {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, work);
    let text = lines.0.lock().unwrap().clone();
    String::from_utf8(text)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn matrices_are_passed_in_the_right_layout() {
    let world = World::new(51);
    let fake = Fake::load();
    let count = |name: &str| fake.count(name);
    for element in [ElementType::F32, ElementType::Bf16] {
        let products = Products::new(&world.device, &world.modules, element, GemmWish::CublasLt);
        let mut products = products.unwrap();
        assert_eq!(products.name(), "cublaslt");
        for shape in [(1, 3, 5), (20, 130, 64), (3, 8, 16)] {
            let before = count("fake_products");
            check_products(&world, &mut products, element, shape);
            // For results in bf16 with a bias in f32 the library has no algorithm: the built-in kernels compute them.
            let built_in = i32::from(element == ElementType::Bf16);
            assert_eq!(
                count("fake_products") - before,
                4 - built_in,
                "{element:?} {shape:?}"
            );
        }
        // The heuristic does not run again for a known shape.
        let before = count("fake_heuristics");
        check_products(&world, &mut products, element, (20, 130, 64));
        assert_eq!(count("fake_heuristics"), before);
        // The fake library has no algorithm for seven outputs.
        let before = count("fake_products");
        check_products(&world, &mut products, element, (3, 7, 8));
        assert_eq!(count("fake_products"), before);
    }
    assert_eq!(count("fake_mistakes"), 0);
}

#[test]
fn after_a_failure_the_built_in_kernels_compute_the_product() {
    let world = World::new(52);
    let fake = Fake::load();
    let element = ElementType::F32;
    let products = Products::new(&world.device, &world.modules, element, GemmWish::CublasLt);
    let mut products = products.unwrap();
    let shapes = [(20, 130, 64), (3, 8, 16)];
    for (shape, (n_lines, n_fallbacks)) in shapes.into_iter().zip([(1, 1), (0, 3)]) {
        let before = fake.count("fake_products");
        fake.fail(1);
        // The library fails in the first of four products, and all four results are right.
        let lines = logged(|| check_products(&world, &mut products, element, shape));
        assert_eq!(lines.len(), n_lines, "{lines:?}");
        for line in lines {
            assert!(line.contains("WARN"), "{line}");
            assert!(
                line.contains("cublasLtMatmul") && line.contains("status 13"),
                "{line}"
            );
        }
        assert_eq!(fake.count("fake_products") - before, 3);
        assert_eq!(products.n_cublaslt_fallbacks(), n_fallbacks);
        // The library is not called again for a product that failed.
        let again = logged(|| check_products(&world, &mut products, element, shape));
        assert_eq!(again, [""; 0]);
        assert_eq!(fake.count("fake_products") - before, 6);
        assert_eq!(products.n_cublaslt_fallbacks(), n_fallbacks + 1);
    }
    assert_eq!(fake.count("fake_mistakes"), 0);
}

#[test]
fn products_without_an_algorithm_are_counted_and_logged_once() {
    let world = World::new(53);
    let fake = Fake::load();
    let element = ElementType::Bf16;
    let products = Products::new(&world.device, &world.modules, element, GemmWish::CublasLt);
    let mut products = products.unwrap();
    // One of the four products stores bf16 elements and has a bias in f32, as in Qwen2.
    let first = logged(|| check_products(&world, &mut products, element, (20, 130, 64)));
    assert_eq!(first.len(), 1, "{first:?}");
    let want = ["INFO", "no algorithm", "n: 130", "has_bias: true"];
    assert!(want.iter().all(|part| first[0].contains(part)), "{first:?}");
    let others = logged(|| {
        for shape in [(20, 130, 64), (1, 7, 8), (5, 24, 16)] {
            check_products(&world, &mut products, element, shape);
        }
    });
    assert_eq!(others, [""; 0]);
    // One of four products of each shape, and all four with seven outputs, have no algorithm in the library.
    assert_eq!(products.n_cublaslt_fallbacks(), 1 + 1 + 4 + 1);
    assert_eq!(fake.count("fake_mistakes"), 0);
    let built_in = Products::new(&world.device, &world.modules, element, GemmWish::Own);
    assert_eq!(built_in.unwrap().n_cublaslt_fallbacks(), 0);
}

#[test]
fn on_hopper_the_built_in_kernels_compute_few_rows_of_bf16_unless_cublaslt_is_requested() {
    let fake = Fake::load();
    for (ordinal, capability, wish, few_are_built_in) in [
        (54, 80, GemmWish::Auto, false),
        (55, 90, GemmWish::Auto, true),
        (56, 90, GemmWish::CublasLt, false),
    ] {
        device(ordinal).1.set_capability(capability);
        let world = World::new(ordinal);
        let products_of_library = |element, shape| {
            let products = Products::new(&world.device, &world.modules, element, wish);
            let before = fake.count("fake_products");
            check_products(&world, &mut products.unwrap(), element, shape);
            fake.count("fake_products") - before
        };
        // One of four products has a bias in f32 and a result in bf16, for which the library has no algorithm.
        let bf16 = ElementType::Bf16;
        let n_of_few = if few_are_built_in { 0 } else { 3 };
        assert_eq!(products_of_library(bf16, (8, 24, 16)), n_of_few, "{wish:?}");
        assert_eq!(products_of_library(bf16, (9, 24, 16)), 3, "too many rows");
        assert_eq!(
            products_of_library(bf16, (8, 24, 12)),
            3,
            "rows not aligned"
        );
        assert_eq!(products_of_library(ElementType::F32, (8, 24, 16)), 4);
        let expected = match (wish, few_are_built_in) {
            (GemmWish::Auto, true) => "both",
            _ => "cublaslt",
        };
        let named = Products::multipliers(&world.device, bf16, wish);
        assert_eq!(named, expected, "sm_{capability} {wish:?}");
    }
    assert_eq!(fake.count("fake_mistakes"), 0);
}

/// Dropping `Products` waits for the whole context, also in cuBLASLt.
#[test]
fn products_may_be_dropped_during_recordings() {
    let world = World::new(57);
    let _fake = Fake::load();
    let stream = world.device.stream(Priority::High).unwrap();
    let buffer = world.device.alloc::<u32>(1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..100 {
                let wish = GemmWish::CublasLt;
                let products = Products::new(&world.device, &world.modules, ElementType::F32, wish);
                drop(products.unwrap());
            }
        });
        for round in 0..400 {
            let recorded = stream.capture(|| stream.fill(&buffer, 0..1, 0));
            recorded.unwrap_or_else(|error: DriverError| panic!("recording {round}: {error}"));
        }
    });
}

/// With two versions of the library in one folder, only the version that matches the driver is loaded and logged.
#[test]
fn only_the_library_of_the_drivers_version_is_opened() {
    if !Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("kernels/kernels.pack")
        .is_file()
    {
        eprintln!("skipped: there is no kernels.pack");
        return;
    }
    let toolkit = tempfile::tempdir().unwrap();
    let folder = toolkit.path().join("lib64");
    std::fs::create_dir(&folder).unwrap();
    for version in ["12", "13"] {
        let define = format!("-DFAKE_NAME=\"version {version}\"");
        compile(&folder, &format!("libcublasLt.so.{version}"), &[&define]);
    }
    for (driver, version, other) in [("12090", "12", "13"), ("13000", "13", "12")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_souffleur"));
        // The fake library waits for its stream, which no graph can record.
        command.args(["generate", "--device", "cuda", "--disable-cuda-graph"]);
        command.args(["--max-total-tokens", "512", "--max-running-requests", "2"]);
        command.args([
            "--chunked-prefill-size",
            "64",
            "--max-new-tokens",
            "2",
            "Hi",
        ]);
        command
            .env(
                "LD_LIBRARY_PATH",
                souffleur_cusim::library().parent().unwrap(),
            )
            .env("CUDA_HOME", toolkit.path())
            .env("CUSIM_DRIVER_VERSION", driver)
            .env("SOUFFLEUR_CACHE_DIR", toolkit.path())
            .env("CUSIM_TOTAL_MEMORY", "2147483648")
            .env("SOUFFLEUR_LOG_LEVEL", "info");
        let output = command.output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{log}");
        let opened: Vec<_> = log
            .lines()
            .filter(|line| line.contains("cuBLASLt loaded"))
            .collect();
        assert_eq!(opened.len(), 1, "{log}");
        assert!(
            opened[0].contains(&format!("libcublasLt.so.{version}")),
            "{log}"
        );
        assert!(log.contains(&format!("loaded version {version}")), "{log}");
        assert!(!log.contains(&format!("loaded version {other}")), "{log}");
    }
}
