//! Tests of streams, events and graphs.

use std::panic::{AssertUnwindSafe, catch_unwind};

use souffleur::kernels::cuda::driver::{DriverError, HostUse, Priority};

use crate::device;

#[test]
fn an_event_orders_two_streams() {
    let (device, _) = device(11);
    let (copies, compute) = (
        device.stream(Priority::Low).unwrap(),
        device.stream(Priority::High).unwrap(),
    );
    let (first, second) = (
        device.alloc::<u32>(1).unwrap(),
        device.alloc::<u32>(1).unwrap(),
    );
    for (waits, expected) in [(true, 7), (false, 0)] {
        compute.fill(&first, 0..1, 0).unwrap();
        compute.fill(&second, 0..1, 0).unwrap();
        device.synchronize().unwrap();
        let mut from = device.pinned::<u32>(1, HostUse::Upload).unwrap();
        from[0] = 7;
        let copied = device.event().unwrap();
        assert!(copied.is_reached().unwrap(), "nothing was recorded");
        // SAFETY: `from` is not touched again before the device is idle.
        unsafe { copies.upload(&first, 0, &from, 0..1) }.unwrap();
        copies.record(&copied).unwrap();
        if waits {
            compute.wait(&copied).unwrap();
        }
        compute.copy(&second, 0, &first, 0..1).unwrap();
        // Without the wait, the emulated streams run in an order that a GPU may choose: the upload comes too late.
        assert_eq!(compute.read(&second, 0..1).unwrap(), [expected]);
        device.synchronize().unwrap();
        assert!(copied.is_reached().unwrap());
    }
}

#[test]
fn timed_events_measure_the_time_between_them() {
    let (device, _) = device(12);
    let stream = device.stream(Priority::High).unwrap();
    let (start, end) = (device.timed_event().unwrap(), device.timed_event().unwrap());
    let buffer = device.alloc::<u8>(1 << 16).unwrap();
    stream.record(&start).unwrap();
    stream.fill(&buffer, 0..1 << 16, 1).unwrap();
    stream.record(&end).unwrap();
    stream.synchronize().unwrap();
    assert!(end.ms_since(&start).unwrap() >= 0.0);
}

#[test]
fn a_graph_repeats_its_recording_with_the_current_contents_of_buffers() {
    let (device, emulated) = device(13);
    let stream = device.stream(Priority::High).unwrap();
    let (from, to) = (
        device.alloc::<u32>(4).unwrap(),
        device.alloc::<u32>(4).unwrap(),
    );
    stream.fill(&to, 0..4, 0).unwrap();
    stream.synchronize().unwrap();
    let graph = stream.capture(|| stream.copy(&to, 0, &from, 0..4)).unwrap();
    assert_eq!(stream.read(&to, 0..4).unwrap(), [0; 4], "nothing ran yet");
    graph.upload(&stream).unwrap();
    for round in 1..3 {
        stream.write(&from, 0, &[round; 4]).unwrap();
        // SAFETY: both buffers live.
        unsafe { graph.launch(&stream) }.unwrap();
        assert_eq!(stream.read(&to, 0..4).unwrap(), [round; 4]);
    }
    assert_eq!(emulated.counts().n_graph_launches, 2);
}

#[test]
fn calls_that_cannot_be_recorded_are_errors_and_the_stream_stays_usable() {
    let (device, _) = device(14);
    let stream = device.stream(Priority::High).unwrap();
    let buffer = device.alloc::<u32>(4).unwrap();
    // A copy from memory that is not pinned, after which the stream waits.
    let refused = stream.capture(|| stream.write(&buffer, 0, &[1; 4]));
    assert!(refused.unwrap_err().is_refusal());
    let given_up = stream.capture(|| {
        Err(DriverError {
            call: "test",
            code: 1,
            name: "given up",
            text: String::new(),
        })
    });
    assert_eq!(given_up.unwrap_err().name, "given up");
    let panics = || stream.capture::<DriverError>(|| panic!("planted"));
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    stream.write(&buffer, 0, &[2; 4]).unwrap();
    assert_eq!(stream.read(&buffer, 0..4).unwrap(), [2; 4]);
}

/// Two engines share a GPU's context: one records graphs while the other drops buffers, which waits for the context.
#[test]
fn recordings_and_waits_for_the_whole_context_exclude_each_other() {
    const ROUNDS: usize = 500;
    let (device, _) = device(16);
    let stream = device.stream(Priority::High).unwrap();
    let buffer = device.alloc::<u32>(1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..ROUNDS).for_each(|_| device.synchronize().unwrap()));
        for round in 0..ROUNDS {
            let graph = stream
                .capture(|| (0..4).try_for_each(|value| stream.fill(&buffer, 0..1, value as u8)));
            graph.unwrap_or_else(|error: DriverError| panic!("recording {round}: {error}"));
        }
    });
    // A thread that waits during its recording gets an error, and no other recording is ended.
    let refused = stream.capture(|| device.synchronize()).unwrap_err();
    assert!(refused.to_string().contains("CAPTURE"), "{refused}");
}

/// Ranks record on different GPUs: one waits for its whole context while another is inside a recording.
#[test]
fn a_recording_on_one_gpu_delays_no_wait_on_another() {
    let ((recorder, _), (other, _)) = (device(17), device(18));
    let stream = recorder.stream(Priority::High).unwrap();
    let buffer = recorder.alloc::<u32>(1).unwrap();
    let recorded = stream.capture(|| {
        std::thread::scope(|scope| scope.spawn(|| other.synchronize()).join().unwrap())?;
        stream.fill(&buffer, 0..1, 1)
    });
    recorded.unwrap();
}

#[test]
fn streams_buffers_and_graphs_may_be_used_and_dropped_on_other_threads() {
    let (device, emulated) = device(15);
    let stream = device.stream(Priority::High).unwrap();
    let buffer = device.alloc::<u32>(4).unwrap();
    let graph = stream.capture(|| stream.fill(&buffer, 0..4, 1)).unwrap();
    let thread = std::thread::spawn(move || {
        // SAFETY: the buffer lives.
        unsafe { graph.launch(&stream) }.unwrap();
        stream.read(&buffer, 0..4).unwrap()
    });
    assert_eq!(thread.join().unwrap(), [0x0101_0101; 4]);
    drop(device);
    assert_eq!(emulated.counts().n_allocations_held, 0);
}
