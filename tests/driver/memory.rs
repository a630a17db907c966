//! Tests of device buffers and pinned memory: counts of bytes, copies, refused calls, frees.

use memmap2::MmapMut;
use souffleur::kernels::cuda::driver::{HostUse, Priority, Uploader};
use souffleur_cusim::Fault;

use crate::device;

const PAGE_BYTES: usize = 4096;

#[test]
fn buffers_are_counted_and_freed() {
    let (device, emulated) = device(1);
    let held_before = emulated.counts().n_allocations_held;
    let free_before = device.memory().unwrap().free_bytes;
    let floats = device.alloc::<f32>(1000).unwrap();
    let empty = device.alloc::<u32>(0).unwrap();
    assert_eq!((floats.len(), floats.bytes()), (1000, 4000));
    assert!(empty.is_empty());
    assert_eq!(device.allocated_bytes(), 4000);
    assert!(device.memory().unwrap().free_bytes <= free_before - 4000);
    let pinned = device.pinned::<u64>(10, HostUse::Readback).unwrap();
    assert_eq!(device.pinned_bytes(), 80);
    assert_eq!(pinned[..], [0; 10]);
    drop((floats, empty, pinned));
    assert_eq!((device.allocated_bytes(), device.pinned_bytes()), (0, 0));
    assert_eq!(emulated.counts().n_allocations_held, held_before);
}

#[test]
fn copies_change_the_given_ranges() {
    let (device, _) = device(2);
    let stream = device.stream(Priority::High).unwrap();
    let (one, other) = (
        device.alloc::<u32>(8).unwrap(),
        device.alloc::<u32>(8).unwrap(),
    );
    stream.fill(&one, 0..8, 0).unwrap();
    stream.write(&one, 2, &[1, 2, 3]).unwrap();
    assert_eq!(stream.read(&one, 0..8).unwrap(), [0, 0, 1, 2, 3, 0, 0, 0]);
    stream.copy(&other, 0, &one, 3..6).unwrap();
    stream.fill(&other, 3..8, 0xff).unwrap();
    let rest = u32::MAX;
    assert_eq!(
        stream.read(&other, 0..8).unwrap(),
        [2, 3, 0, rest, rest, rest, rest, rest]
    );
    stream.write(&one, 8, &[]).unwrap();
    assert!(stream.read(&one, 8..8).unwrap().is_empty());
}

#[test]
fn pinned_memory_is_copied_both_ways() {
    let (device, _) = device(3);
    let stream = device.stream(Priority::Low).unwrap();
    let buffer = device.alloc::<u16>(6).unwrap();
    let mut from = device.pinned::<u16>(4, HostUse::Upload).unwrap();
    let to = device.pinned::<u16>(6, HostUse::Readback).unwrap();
    from.copy_from_slice(&[1, 2, 3, 4]);
    stream.fill(&buffer, 0..6, 0).unwrap();
    let copied = device.event().unwrap();
    // SAFETY: neither pinned buffer is touched before `copied` is reached.
    unsafe {
        stream.upload(&buffer, 1, &from, 1..4).unwrap();
        stream.read_back(&to, 0, &buffer, 0..6).unwrap();
    }
    stream.record(&copied).unwrap();
    copied.synchronize().unwrap();
    assert_eq!(to[..], [0, 2, 3, 4, 0, 0]);
}

/// Copies of memory that was pinned after its allocation run when the stream reaches them, not earlier.
#[test]
fn existing_memory_is_pinned_and_unpinned() {
    let (device, _) = device(7);
    let stream = device.stream(Priority::Low).unwrap();
    let buffer = device.alloc::<u8>(6).unwrap();
    stream.fill(&buffer, 0..6, 9).unwrap();
    stream.synchronize().unwrap();
    let mut pages = MmapMut::map_anon(2 * PAGE_BYTES).unwrap();
    let (from, to) = pages.split_at_mut(PAGE_BYTES);
    let (from, to) = (&mut from[..3], &mut to[..6]);
    from.copy_from_slice(&[1, 2, 3]);
    // SAFETY: the pages live longer than their pinning.
    let pinned = unsafe { [device.pin(from).unwrap(), device.pin(to).unwrap()] };
    assert_eq!(device.pinned_bytes(), 9);
    let (first, last) = (from.as_ptr(), to.as_mut_ptr());
    // SAFETY: neither range is touched before `synchronize` returns.
    unsafe {
        stream.upload_bytes((&buffer, 1), first, 3).unwrap();
        stream.read_back_bytes(last, &buffer, 0..6).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(to, [9, 1, 2, 3, 9, 9]);
    // SAFETY: as above.
    let twice = unsafe { device.pin(to) };
    assert!(twice.is_err(), "a page is pinned once");
    drop(pinned);
    assert_eq!(device.pinned_bytes(), 0);
    // A copy from unpinned memory completes before the call returns.
    // SAFETY: as above.
    unsafe { stream.read_back_bytes(to.as_mut_ptr(), &buffer, 1..4) }.unwrap();
    assert_eq!(to, [1, 2, 3, 3, 9, 9]);
}

/// Two ranges that share a page cannot both be pinned, and a copy of partly pinned memory is refused, as by a driver.
#[test]
fn memory_is_pinned_by_whole_pages() {
    const ALREADY_REGISTERED: i32 = 712;
    const INVALID_VALUE: i32 = 1;
    let (device, _) = device(9);
    let stream = device.stream(Priority::Low).unwrap();
    let buffer = device.alloc::<u8>(3 * PAGE_BYTES).unwrap();
    stream.fill(&buffer, 0..3 * PAGE_BYTES, 7).unwrap();
    let mut pages = MmapMut::map_anon(3 * PAGE_BYTES).unwrap();
    let start = pages.as_mut_ptr();
    // SAFETY: the pages live longer than their pinning.
    let pinned = unsafe { device.pin(&mut pages[PAGE_BYTES + 100..PAGE_BYTES + 200]) }.unwrap();
    for range in [
        PAGE_BYTES..PAGE_BYTES + 100,
        PAGE_BYTES + 200..PAGE_BYTES + 300,
        PAGE_BYTES - 1..PAGE_BYTES + 1,
        2 * PAGE_BYTES - 1..2 * PAGE_BYTES + 1,
        0..3 * PAGE_BYTES,
    ] {
        // SAFETY: as above.
        let refused = unsafe { device.pin(&mut pages[range.clone()]) };
        assert_eq!(refused.unwrap_err().code, ALREADY_REGISTERED, "{range:?}");
    }
    let n_bytes = |range: &std::ops::Range<usize>| range.end - range.start;
    // SAFETY: no other code touches the pages.
    let read_back = |range: &std::ops::Range<usize>| unsafe {
        stream.read_back_bytes(start.add(range.start), &buffer, 0..n_bytes(range))
    };
    // SAFETY: likewise.
    let upload = |range: &std::ops::Range<usize>| unsafe {
        stream.upload_bytes((&buffer, 0), start.add(range.start), n_bytes(range))
    };
    // Pinned pages, and the pages before and after them.
    let uniform = [
        PAGE_BYTES + 100..PAGE_BYTES + 200,
        0..PAGE_BYTES,
        2 * PAGE_BYTES..3 * PAGE_BYTES,
    ];
    for range in &uniform {
        read_back(range).and_then(|()| upload(range)).unwrap();
    }
    let mixed = [
        PAGE_BYTES + 99..PAGE_BYTES + 200,
        PAGE_BYTES + 100..PAGE_BYTES + 201,
        0..PAGE_BYTES + 1,
        2 * PAGE_BYTES - 1..3 * PAGE_BYTES,
        0..3 * PAGE_BYTES,
    ];
    for range in &mixed {
        for copied in [read_back(range), upload(range)] {
            let error = copied.unwrap_err();
            assert_eq!(error.code, INVALID_VALUE, "{range:?}");
            assert!(error.is_refusal());
        }
    }
    drop(pinned);
    for range in mixed.iter().chain(&uniform) {
        read_back(range).and_then(|()| upload(range)).unwrap();
    }
    stream.synchronize().unwrap();
    assert!(pages.iter().all(|byte| *byte == 7));
}

#[test]
fn a_refused_copy_copies_nothing_and_harms_nothing() {
    const OUT_OF_MEMORY: i32 = 2;
    let (device, emulated) = device(8);
    let stream = device.stream(Priority::Low).unwrap();
    let buffer = device.alloc::<u32>(2).unwrap();
    stream.write(&buffer, 0, &[1, 2]).unwrap();
    emulated.plan(Fault::Copy(OUT_OF_MEMORY), 2);
    stream.write(&buffer, 0, &[3]).unwrap();
    let error = stream.write(&buffer, 1, &[4]).unwrap_err();
    assert!(error.is_refusal(), "{error}");
    assert_eq!(stream.read(&buffer, 0..2).unwrap(), [3, 2]);
}

#[test]
#[should_panic(expected = "3 elements from 6 on exceed 8 elements")]
fn a_copy_out_of_bounds_panics() {
    let (device, _) = device(4);
    let stream = device.stream(Priority::High).unwrap();
    let buffer = device.alloc::<u32>(8).unwrap();
    let _ = stream.write(&buffer, 6, &[1, 2, 3]);
}

#[test]
fn large_uploads_go_through_a_small_ring() {
    let (device, _) = device(5);
    const LEN: usize = 11 << 20;
    let buffer = device.alloc::<u32>(LEN + 1).unwrap();
    let stream = device.stream(Priority::Low).unwrap();
    let mut uploader = Uploader::new(&device, stream).unwrap();
    assert!(device.pinned_bytes() < buffer.bytes() as u64);
    let mut n_parts = 0;
    uploader
        .upload(&buffer, 1, LEN, |part, first| {
            n_parts += 1;
            for (i, element) in part.iter_mut().enumerate() {
                *element = (first + i) as u32;
            }
        })
        .unwrap();
    uploader.finish().unwrap();
    let copied = uploader.stream().read(&buffer, 1..LEN + 1).unwrap();
    assert!(n_parts >= 3, "{n_parts}");
    let differs = copied
        .iter()
        .enumerate()
        .find(|(i, value)| *i as u32 != **value);
    assert_eq!(differs, None);
}

#[test]
fn exhausted_memory_is_an_out_of_memory_error() {
    let (device, emulated) = device(6);
    let error = device.alloc::<u8>(1 << 40).unwrap_err();
    assert!(error.is_out_of_memory() && error.is_refusal(), "{error}");
    assert!(error.to_string().contains("OUT_OF_MEMORY"), "{error}");
    emulated.plan(Fault::Allocation, 1);
    assert!(device.alloc::<u8>(16).unwrap_err().is_out_of_memory());
    assert_eq!(device.allocated_bytes(), 0);
    let error = device.alloc::<u64>(usize::MAX).unwrap_err();
    assert!(error.to_string().contains("overflow"), "{error}");
    device.alloc::<u8>(16).unwrap();
}
