//! Tests of kernel path selection from given measurements.

use std::ffi::OsString;
use std::fs;

use super::choice::{Rates, comparisons, decide};
use super::memory::cache_folder;
use super::processor::{KnownCore, Processor};
use super::*;

const WITH_BF16: [Isa; 5] = [
    Isa::Portable,
    Isa::Avx2,
    Isa::Avx512,
    Isa::Avx512Vnni,
    Isa::Avx512Bf16,
];

struct FixedRates {
    rates: Vec<(Arithmetic, f64)>,
    n_measured: usize,
}

impl FixedRates {
    fn new(rates: &[(Arithmetic, f64)]) -> Self {
        Self {
            rates: rates.to_vec(),
            n_measured: 0,
        }
    }
}

impl Rates for FixedRates {
    fn measure(&mut self, instructions: &[Arithmetic]) -> Vec<(Arithmetic, f64)> {
        self.n_measured += 1;
        let rates = self
            .rates
            .iter()
            .filter(|(of, _)| instructions.contains(of));
        rates.copied().collect()
    }
}

/// Rates of `vdpbf16ps` and FMA in GFLOP/s, with the int8 rates of most processors.
fn fixed_rates(bf16: f64, f32: f64) -> FixedRates {
    FixedRates::new(&[
        (Arithmetic::Bf16Dot, bf16 * 1e9),
        (Arithmetic::F32, f32 * 1e9),
        (Arithmetic::Int8Dot, 4.0 * f32 * 1e9),
        (Arithmetic::Int8Shorts, 2.0 * f32 * 1e9),
    ])
}

fn unknown() -> Processor {
    Processor::from_signature(b"GenuineIntel", 0x000f_0ff1)
}

fn machine(available: &[Isa], cache: Result<PathBuf, String>) -> Machine {
    Machine {
        processor: unknown(),
        available: available.to_vec(),
        cache,
    }
}

#[test]
fn a_simpler_path_wins_only_beyond_the_margin() {
    let of = |bf16, f32| decide(&WITH_BF16, &mut fixed_rates(bf16, f32));
    // Measured on a Xeon with slow `vdpbf16ps`.
    assert_eq!(of(170.0, 350.0), Isa::Avx512Vnni);
    assert_eq!(of(350.0, 170.0), Isa::Avx512Bf16);
    assert_eq!(of(100.0, 100.0), Isa::Avx512Bf16);
    assert_eq!(of(100.0, 114.9), Isa::Avx512Bf16);
    assert_eq!(of(100.0, 115.1), Isa::Avx512Vnni);
}

#[test]
fn int8_and_amx_instructions_are_compared_too() {
    use Arithmetic::{Bf16Dot, Bf16Tiles, F32, Int8Dot, Int8Shorts};
    let mut slow_bytes = FixedRates::new(&[
        (Bf16Dot, 100.0),
        (F32, 200.0),
        (Int8Dot, 100.0),
        (Int8Shorts, 400.0),
    ]);
    assert_eq!(decide(&WITH_BF16, &mut slow_bytes), Isa::Avx512);
    let narrow = [Isa::Portable, Isa::Avx2, Isa::Avx2Vnni];
    assert_eq!(decide(&narrow, &mut slow_bytes), Isa::Avx2);
    slow_bytes.rates[2].1 = 400.0;
    assert_eq!(decide(&narrow, &mut slow_bytes), Isa::Avx2Vnni);
    assert_eq!(decide(&WITH_BF16, &mut slow_bytes), Isa::Avx512Vnni);

    let with_tiles: Vec<_> = WITH_BF16.into_iter().chain([Isa::Amx]).collect();
    let mut tiles = FixedRates::new(&[(Bf16Tiles, 2000.0), (Bf16Dot, 170.0), (F32, 350.0)]);
    assert_eq!(decide(&with_tiles, &mut tiles), Isa::Amx);
    // With slow tiles, for example emulated tiles, the next simpler paths are compared too.
    tiles.rates[0].1 = 100.0;
    tiles.rates.extend([(Int8Dot, 1400.0), (Int8Shorts, 700.0)]);
    assert_eq!(decide(&with_tiles, &mut tiles), Isa::Avx512Vnni);
}

#[test]
fn paths_without_own_instructions_are_not_measured() {
    for available in [&WITH_BF16[..1], &WITH_BF16[..2], &WITH_BF16[..3]] {
        assert!(comparisons(available).is_empty());
        let mut rates = fixed_rates(1.0, 9.0);
        let path = KernelPath::choose(&machine(available, Err("none".into())), &mut rates);
        assert_eq!(Some(&path.isa), available.last());
        assert_eq!((path.reason, rates.n_measured), (Reason::Only, 0));
    }
}

#[test]
fn known_processors_are_not_measured() {
    let of = |vendor: &str, signature, available: &[Isa]| {
        let machine = Machine {
            processor: Processor::from_signature(vendor.as_bytes(), signature),
            ..machine(available, Err("none is needed".into()))
        };
        let mut rates = fixed_rates(1.0, 1.0);
        let path = KernelPath::choose(&machine, &mut rates);
        assert_eq!(rates.n_measured, 0);
        (path.isa, path.reason)
    };
    // Genoa and Raphael, Turin and Granite Ridge.
    for (signature, name) in [
        (0x00a1_0f11, "AMD Zen 4"),
        (0x00a6_0f12, "AMD Zen 4"),
        (0x00b0_0f21, "AMD Zen 5"),
        (0x00b4_0f40, "AMD Zen 5"),
    ] {
        let found = of("AuthenticAMD", signature, &WITH_BF16);
        assert_eq!(found, (Isa::Avx512Bf16, Reason::Known(name)));
    }
    // Sapphire Rapids and Emerald Rapids, with tiles and where a hypervisor hides them.
    let with_tiles: Vec<_> = WITH_BF16.into_iter().chain([Isa::Amx]).collect();
    for signature in [0x0008_06f8, 0x000c_06f2] {
        let known = Reason::Known("Intel Golden Cove (Xeon)");
        let hidden = of("GenuineIntel", signature, &WITH_BF16);
        assert_eq!(hidden, (Isa::Avx512Vnni, known.clone()));
        assert_eq!(
            of("GenuineIntel", signature, &with_tiles),
            (Isa::Amx, known)
        );
    }
    // No rates are published for Cooper Lake and for later processors.
    for signature in [0x0005_065b, 0x000a_06d1] {
        let processor = Processor::from_signature(b"GenuineIntel", signature);
        assert_eq!(KnownCore::of(&processor), None, "{signature:x}");
    }
}

#[test]
fn signatures_are_decoded() {
    let of = |signature| {
        let processor = Processor::from_signature(b"Genuine/Intel\0", signature);
        assert_eq!(processor.vendor, "GenuineIntel");
        (processor.family, processor.model, processor.stepping)
    };
    assert_eq!(of(0x0008_06f8), (6, 0x8f, 8));
    assert_eq!(of(0x00b0_0f21), (0x1a, 2, 1));
    assert_eq!(of(0x0000_0543), (5, 4, 3));
}

#[test]
fn restarts_choose_the_same_path() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let machine = machine(&WITH_BF16, Ok(folder.path().join("not/yet/there")));
    let mut slow = fixed_rates(170.0, 350.0);
    let first = KernelPath::choose(&machine, &mut slow);
    assert_eq!((first.isa, slow.n_measured), (Isa::Avx512Vnni, 1));
    // A later start would measure other rates, but it uses the saved ones.
    let mut fast = fixed_rates(700.0, 350.0);
    assert_eq!(KernelPath::choose(&machine, &mut fast), first);
    assert_eq!(fast.n_measured, 0);
    let text = first.to_string();
    assert!(
        text.starts_with(
            "avx512_vnni, measured on one core: vdpbf16ps 170 GOP/s, f32 FMA 350 GOP/s,"
        ),
        "{text}"
    );
    let Reason::Measured { file, .. } = first.reason else {
        panic!("{text}");
    };
    assert!(text.ends_with(&file.display().to_string()), "{text}");

    // Another processor or another set of paths has a separate file.
    let other = Machine {
        processor: Processor::from_signature(b"GenuineIntel", 0x000f_0ff2),
        ..machine
    };
    assert_eq!(KernelPath::choose(&other, &mut fast).isa, Isa::Avx512Bf16);
    assert_eq!(fast.n_measured, 1);
    let fewer = Machine {
        available: WITH_BF16[..4].to_vec(),
        ..other
    };
    assert_eq!(KernelPath::choose(&fewer, &mut fast).isa, Isa::Avx512Vnni);
    assert_eq!(fast.n_measured, 2);
    let files = fs::read_dir(file.with_file_name("")).expect("the folder was made");
    assert_eq!(files.count(), 3, "nothing but the three files is left");
}

#[test]
fn a_damaged_file_is_measured_again() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let machine = machine(&WITH_BF16, Ok(folder.path().to_owned()));
    let first = KernelPath::choose(&machine, &mut fixed_rates(170.0, 350.0));
    let Reason::Measured { file, .. } = &first.reason else {
        panic!("{first}");
    };
    let whole = fs::read_to_string(file).expect("the rates were saved");
    let damaged = [
        String::new(),
        whole[..whole.len() - 5].to_owned(),
        whole.replace("350", "NaN"),
        whole.replace("f32 FMA", "f33 FMA"),
        whole.replace("model", "modal"),
        "\u{fffd}".repeat(9000),
    ];
    for text in damaged {
        fs::write(file, &text).expect("the file can be written");
        let mut again = fixed_rates(170.0, 350.0);
        assert_eq!(KernelPath::choose(&machine, &mut again), first, "{text:?}");
        assert_eq!(again.n_measured, 1, "{text:?}");
        assert_eq!(fs::read_to_string(file).ok().as_ref(), Some(&whole));
    }
}

#[test]
fn without_a_cache_file_cpu_flags_decide() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("the file can be written");
    for cache in [Err("no folder".to_owned()), Ok(file.join("below"))] {
        let machine = machine(&WITH_BF16, cache);
        for mut rates in [fixed_rates(170.0, 350.0), fixed_rates(350.0, 170.0)] {
            let path = KernelPath::choose(&machine, &mut rates);
            assert_eq!(path.isa, Isa::Avx512Bf16);
            assert!(matches!(path.reason, Reason::Flags { .. }), "{path}");
        }
    }
}

#[test]
fn processes_that_start_together_choose_the_same_path() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let cache = folder.path().to_owned();
    let start = std::sync::Barrier::new(8);
    let paths: Vec<_> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..8)
            .map(|i| {
                let (cache, start) = (cache.clone(), &start);
                scope.spawn(move || {
                    start.wait();
                    let machine = machine(&WITH_BF16, Ok(cache));
                    let (bf16, f32) = [(170.0, 350.0), (350.0, 170.0)][i % 2];
                    KernelPath::choose(&machine, &mut fixed_rates(bf16, f32))
                })
            })
            .collect();
        let joined = started.into_iter().map(|thread| thread.join());
        joined
            .map(|path| path.expect("the thread must not panic"))
            .collect()
    });
    assert!(paths.iter().all(|path| *path == paths[0]), "{paths:?}");
}

#[test]
fn the_folder_is_the_users_cache() {
    let of = |xdg: Option<&str>, home: Option<&str>| {
        cache_folder(|name| match name {
            "XDG_CACHE_HOME" => xdg.map(OsString::from),
            _ => home.map(OsString::from),
        })
    };
    let path = |text: &str| Ok(PathBuf::from(text));
    assert_eq!(of(Some("/c"), Some("/h")), path("/c/souffleur"));
    for unset in [None, Some(""), Some("relative")] {
        assert_eq!(of(unset, Some("/h")), path("/h/.cache/souffleur"));
        assert!(of(unset, None).is_err());
    }
}

#[test]
fn this_machine_has_a_path_that_it_can_run() {
    let path = KernelPath::of_process().expect("no other path is forced");
    assert!(Isa::available().contains(&path.isa), "{path}");
}
