//! The wrapper of cuBLASLt over a library that does what cuBLASLt's documentation says, on the CPU.
//!
//! It shows that matrices are handed over the right way round and that attributes have the sizes that are asked for, not
//! that NVIDIA's library takes them.

use std::path::Path;

use libloading::Library;
use souffleur::kernels::cuda::gemm::{GemmWish, Products};
use souffleur::kernels::cuda::params::ElementType;

use crate::kernels::{World, check_products};

/// Compiles and loads the library, for good: from then on whoever opens `libcublasLt.so` by name gets it.
fn load() -> &'static Library {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/driver/cublaslt.cpp");
    let library = folder.path().join("libcublasLt.so");
    let mut compiler = souffleur_cusim::compiler(folder.path());
    compiler.args(["-O1", "-shared", "-fPIC", "-Wl,-soname,libcublasLt.so"]);
    compiler
        .arg(source)
        .arg(souffleur_cusim::library())
        .arg("-o")
        .arg(&library);
    assert!(compiler.status().unwrap().success());
    // SAFETY: its initialisers do nothing.
    Box::leak(Box::new(unsafe { Library::new(library) }.unwrap()))
}

#[test]
fn products_are_handed_over_the_right_way_round() {
    let world = World::new(51);
    let library = load();
    // SAFETY: as declared in cublaslt.cpp.
    let count = |name: &[u8]| unsafe {
        let count: libloading::Symbol<extern "C" fn() -> i32> = library.get(name).unwrap();
        count()
    };
    for element in [ElementType::F32, ElementType::Bf16] {
        let products = Products::new(&world.device, &world.modules, element, GemmWish::CublasLt);
        let mut products = products.unwrap();
        assert_eq!(products.name(), "cublaslt");
        for shape in [(1, 3, 5), (20, 130, 64), (3, 8, 16)] {
            let before = count(b"fake_products");
            check_products(&world, &mut products, element, shape);
            // Of four, one that the library has nothing for is our own: elements and a bias in f32.
            let own = i32::from(element == ElementType::Bf16);
            assert_eq!(
                count(b"fake_products") - before,
                4 - own,
                "{element:?} {shape:?}"
            );
        }
        // A shape is asked for once.
        let asked = count(b"fake_heuristics");
        check_products(&world, &mut products, element, (20, 130, 64));
        assert_eq!(count(b"fake_heuristics"), asked);
        // The library says that it has no algorithm.
        let before = count(b"fake_products");
        check_products(&world, &mut products, element, (3, 7, 8));
        assert_eq!(count(b"fake_products"), before);
    }
    assert_eq!(count(b"fake_mistakes"), 0);
}
