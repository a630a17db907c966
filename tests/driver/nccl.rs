//! Tests of ranks on emulated devices, which an emulated NCCL connects: results, recordings, failures, aborts.

use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;

use souffleur::kernels::cuda::driver::{Device, DeviceBuffer, Event, Priority, Stream};
use souffleur::kernels::cuda::nccl::{
    Aborter, Communicator, GroupId, NcclError, NcclVersion, Values, installed,
};
use souffleur::kernels::cuda::params::ElementType;
use souffleur::kernels::shard::Rank;
use souffleur_cusim::Fault;

use crate::device;

const LEN: usize = 8;
const SYSTEM_ERROR: i32 = 2;
const INVALID_ARGUMENT: i32 = 4;
const INVALID_USAGE: i32 = 5;
const REMOTE_ERROR: i32 = 6;

/// One rank of a test: its thread's communicator, stream and memory.
struct Member {
    communicator: Communicator,
    stream: Stream,
    /// [`LEN`] values.
    own: DeviceBuffer<f32>,
    /// As many values of each rank.
    all: DeviceBuffer<f32>,
    device: Device,
}

impl Member {
    fn new(device: Device, id: GroupId, rank: Rank) -> Self {
        Self {
            communicator: Communicator::connect(&device, id, rank).unwrap(),
            stream: device.stream(Priority::High).unwrap(),
            own: device.alloc(LEN).unwrap(),
            all: device.alloc(LEN * rank.count()).unwrap(),
            device,
        }
    }

    fn rank(&self) -> usize {
        self.communicator.rank().index()
    }

    /// Writes the rank's values.
    fn fill(&self, value: f32) {
        self.stream.write(&self.own, 0, &[value; LEN]).unwrap();
    }

    fn sum_of(&self, values: Values) -> Result<(), NcclError> {
        // SAFETY: the memory lives longer than the stream, or the call is refused.
        unsafe {
            self.communicator
                .all_reduce(&self.stream, values, values.start)
        }
    }

    fn sum(&self) -> Result<(), NcclError> {
        self.sum_of(self.values(LEN))
    }

    fn gather(&self) -> Result<(), NcclError> {
        let to = self.all.ptr().cast();
        // SAFETY: as above; there is space for the values of all ranks.
        unsafe {
            self.communicator
                .all_gather(&self.stream, self.values(LEN), to)
        }
    }

    fn broadcast(&self, root: usize) -> Result<(), NcclError> {
        // SAFETY: as above.
        unsafe {
            self.communicator
                .broadcast(&self.stream, self.values(LEN), root)
        }
    }

    fn values(&self, len: usize) -> Values {
        Values {
            start: self.own.ptr().cast(),
            element: ElementType::F32,
            len,
        }
    }

    fn read(&self) -> Vec<f32> {
        self.stream.read(&self.own, 0..LEN).unwrap()
    }

    /// An event after all work so far.
    fn end(&self) -> Event {
        let end = self.device.event().unwrap();
        self.stream.record(&end).unwrap();
        end
    }

    /// Waits until NCCL reports a failure of the group, as an executor does that polls.
    fn failure(&self) -> NcclError {
        let end = self.end();
        loop {
            assert!(!end.is_reached().unwrap(), "the collective has ended");
            if let Err(error) = self.communicator.check() {
                return error;
            }
            thread::yield_now();
        }
    }
}

/// Aborts the ranks of a test in which one has panicked, so that the others end.
struct AbortOnPanic<'a>(&'a Mutex<Vec<Aborter>>);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            abort_all(self.0);
        }
    }
}

fn abort_all(aborters: &Mutex<Vec<Aborter>>) {
    let aborters = aborters.lock().unwrap_or_else(PoisonError::into_inner);
    aborters.iter().for_each(Aborter::abort);
}

/// Runs `work` on a thread for each rank, on devices from `first` on, and returns the results in rank order.
fn ranks<R: Send>(
    first: usize,
    count: usize,
    work: impl Fn(&Member, &Mutex<Vec<Aborter>>) -> R + Sync,
) -> Vec<R> {
    souffleur_cusim::load_nccl();
    let id = GroupId::new().unwrap();
    let aborters = Mutex::new(Vec::new());
    let ready = Barrier::new(count);
    let run = |rank: Rank| {
        let _guard = AbortOnPanic(&aborters);
        let member = Member::new(device(first + rank.index()).0, id, rank);
        let aborter = member.communicator.aborter();
        aborters.lock().unwrap().push(aborter);
        ready.wait();
        work(&member, &aborters)
    };
    thread::scope(|scope| {
        let run = &run;
        let start = |rank| scope.spawn(move || run(rank));
        let threads: Vec<_> = Rank::all(count).map(start).collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.collect()
    })
}

fn code_of(error: &NcclError) -> Option<i32> {
    match error {
        NcclError::Failed { code, .. } => Some(*code),
        _ => None,
    }
}

#[test]
fn the_emulated_library_is_found_by_name() {
    souffleur_cusim::load_nccl();
    let version = installed().unwrap();
    assert!(version > NcclVersion::NEEDED, "{version}");
    assert_eq!(version.to_string(), "2.22.3");
}

/// In f32, these sums depend on their order.
#[test]
fn sums_are_in_rank_order_and_parts_are_gathered() {
    const TERMS: [f32; 4] = [1e8, 1.0, -1e8, 3.0];
    for (first, count) in [(200, 1), (201, 2), (203, 4)] {
        let expected = TERMS[1..count]
            .iter()
            .fold(TERMS[0], |sum, term| sum + term);
        let results = ranks(first, count, |member, _| {
            member.fill(TERMS[member.rank()]);
            member.gather().unwrap();
            member.sum().unwrap();
            let sums = member.read();
            let len = LEN * count;
            (sums, member.stream.read(&member.all, 0..len).unwrap())
        });
        let parts: Vec<_> = TERMS[..count]
            .iter()
            .flat_map(|term| [*term; LEN])
            .collect();
        for (sums, all) in results {
            assert_eq!((sums, all), (vec![expected; LEN], parts.clone()), "{count}");
        }
    }
}

#[test]
fn bf16_is_added_in_f32_and_rounded_once() {
    // 1, and a half of the distance to the next number, three times.
    const BITS: [u16; 4] = [0x3f80, 0x3b80, 0x3b80, 0x3b80];
    let results = ranks(207, 4, |member, _| {
        let buffer = member.device.alloc::<u16>(1).unwrap();
        let stream = &member.stream;
        stream.write(&buffer, 0, &[BITS[member.rank()]]).unwrap();
        let values = Values {
            start: buffer.ptr().cast(),
            element: ElementType::Bf16,
            len: 1,
        };
        member.sum_of(values).unwrap();
        stream.read(&buffer, 0..1).unwrap()
    });
    // 1 + 3 * 2^-8 is a tie between 1 + 2^-7 and 1 + 2^-6, of which the latter is even.
    assert_eq!(results, vec![vec![0x3f82]; 4]);
}

#[test]
fn the_root_of_a_broadcast_tells_all_ranks() {
    let results = ranks(211, 2, |member, _| {
        member.fill(member.rank() as f32);
        member.broadcast(1).unwrap();
        let refused = member.broadcast(2).unwrap_err();
        assert_eq!(code_of(&refused), Some(INVALID_ARGUMENT), "{refused}");
        member.read()
    });
    assert_eq!(results, vec![vec![1.0; LEN]; 2]);
}

/// A rank whose thread only enqueues does not delay the others: streams need no host.
#[test]
fn a_collective_needs_no_wait_on_the_other_ranks() {
    let done = Barrier::new(2);
    let results = ranks(213, 2, |member, _| {
        member.fill(1.0);
        member.sum().unwrap();
        // Only the first rank waits for its stream.
        let sums = (member.rank() == 0).then(|| member.read());
        done.wait();
        sums
    });
    assert_eq!(results, [Some(vec![2.0; LEN]), None]);
}

#[test]
fn recorded_collectives_are_replayed() {
    let results = ranks(215, 2, |member, _| {
        let graph = member.stream.capture(|| {
            member.sum()?;
            member.gather()?;
            member.sum()
        });
        let graph = graph.unwrap();
        let mut sums = Vec::new();
        for round in 1..4 {
            member.fill((round + member.rank()) as f32);
            // SAFETY: the member's memory lives.
            unsafe { graph.launch(&member.stream) }.unwrap();
            let gathered = member.stream.read(&member.all, 0..2 * LEN).unwrap();
            sums.push((member.read()[0], gathered[2 * LEN - 1]));
        }
        sums
    });
    let expected = vec![(6.0, 3.0), (10.0, 5.0), (14.0, 7.0)];
    assert_eq!(results, vec![expected; 2]);
}

/// What a rank does.
type Call = fn(&Member) -> Result<(), NcclError>;

#[test]
fn calls_that_differ_are_named_with_both_ranks() {
    let fewer: Call = |member| member.sum_of(member.values(LEN - 1));
    let halves: Call = |member| {
        let values = member.values(LEN);
        member.sum_of(Values {
            element: ElementType::Bf16,
            ..values
        })
    };
    let cases: [(Call, Call, &str, [&str; 2]); 5] = [
        (
            Member::sum,
            fewer,
            "count",
            ["all-reduce of 8 float32", "all-reduce of 7 float32"],
        ),
        (
            Member::sum,
            halves,
            "type",
            ["all-reduce of 8 float32", "all-reduce of 8 bfloat16"],
        ),
        (
            Member::gather,
            Member::sum,
            "kind",
            ["all-gather of 8 float32", "all-reduce of 8 float32"],
        ),
        (
            |member| member.broadcast(0),
            |member| member.broadcast(1),
            "root",
            ["from rank 0", "from rank 1"],
        ),
        // The same calls in another order.
        (
            |member| member.sum().and_then(|()| member.gather()),
            |member| member.gather().and_then(|()| member.sum()),
            "kind",
            ["all-reduce of 8 float32", "all-gather of 8 float32"],
        ),
    ];
    for (at, (first, second, differs, calls)) in cases.into_iter().enumerate() {
        let errors = ranks(220 + 2 * at, 2, |member, _| {
            member.fill(1.0);
            let call = [first, second][member.rank()];
            call(member).unwrap();
            member.failure()
        });
        for error in errors {
            assert_eq!(code_of(&error), Some(INVALID_USAGE), "{error}");
            let text = error.to_string();
            let [one, other] = calls;
            let expected = format!("differs in its {differs}: rank 0 calls ");
            assert!(
                text.contains(&expected) && text.contains("rank 1 calls "),
                "{text}"
            );
            assert!(text.contains(one) && text.contains(other), "{text}");
        }
    }
}

#[test]
fn a_refused_call_leaves_the_others_waiting_until_they_are_aborted() {
    let called = Barrier::new(2);
    ranks(230, 2, |member, aborters| {
        let faulty = member.rank() == 1;
        member.fill(1.0);
        member.sum().unwrap();
        if faulty {
            souffleur_cusim::Device::new(231).plan(Fault::CollectiveRefused(SYSTEM_ERROR), 1);
            let refused = member.sum().unwrap_err();
            assert_eq!(code_of(&refused), Some(SYSTEM_ERROR), "{refused}");
            assert!(refused.to_string().contains("rank 1"), "{refused}");
            called.wait();
            abort_all(aborters);
        } else {
            member.sum().unwrap();
            called.wait();
        }
        member.stream.synchronize().unwrap();
    });
}

#[test]
fn a_failure_of_one_rank_is_reported_to_all() {
    souffleur_cusim::Device::new(233).plan(Fault::CollectiveFails(REMOTE_ERROR), 2);
    let errors = ranks(232, 2, |member, _| {
        member.fill(1.0);
        member.sum().unwrap();
        member.sum().unwrap();
        member.failure()
    });
    for error in errors {
        assert_eq!(code_of(&error), Some(REMOTE_ERROR), "{error}");
        assert!(error.to_string().contains("rank 1"), "{error}");
    }
}

#[test]
fn a_planted_difference_is_found_inside_a_graph() {
    souffleur_cusim::Device::new(235).plan(Fault::CollectiveMismatch, 3);
    let errors = ranks(234, 2, |member, _| {
        let graph = member.stream.capture(|| member.sum()).unwrap();
        for _ in 0..3 {
            member.fill(1.0);
            // SAFETY: the member's memory lives.
            unsafe { graph.launch(&member.stream) }.unwrap();
        }
        member.failure()
    });
    for error in errors {
        let text = error.to_string();
        assert!(
            text.contains("collective 3") && text.contains("of 7 float32"),
            "{text}"
        );
    }
}

/// A rank that hangs: the other one waits in its stream until a third thread aborts both.
#[test]
fn an_abort_from_another_thread_ends_the_wait_for_a_silent_rank() {
    souffleur_cusim::Device::new(237).plan(Fault::CollectiveSilent, 1);
    let enqueued = Barrier::new(2);
    ranks(236, 2, |member, aborters| {
        member.fill(1.0);
        member.sum().unwrap();
        let end = member.end();
        for _ in 0..20 {
            assert!(!end.is_reached().unwrap(), "a rank is silent");
        }
        assert_eq!(member.communicator.check(), Ok(()));
        enqueued.wait();
        thread::scope(|scope| {
            if member.rank() == 0 {
                scope.spawn(|| abort_all(aborters));
            }
            member.stream.synchronize().unwrap();
        });
        assert!(end.is_reached().unwrap());
        let refused = member.sum().unwrap_err();
        let rank = member.rank();
        let call = "ncclAllReduce";
        assert_eq!(refused, NcclError::Aborted { call, rank });
        assert!(member.communicator.aborter().is_aborted());
    });
}

/// An abort waits for the graphs of its rank, and so must not hold up the thread that asks for it.
#[test]
fn an_abort_returns_before_the_graphs_are_dropped() {
    let recorded = Barrier::new(2);
    ranks(238, 2, |member, aborters| {
        let graph = member.stream.capture(|| member.sum()).unwrap();
        recorded.wait();
        abort_all(aborters);
        // SAFETY: the member's memory lives.
        unsafe { graph.launch(&member.stream) }.unwrap();
        member.stream.synchronize().unwrap();
        drop(graph);
    });
}

#[test]
fn a_recording_of_an_aborted_rank_is_refused() {
    ranks(240, 2, |member, aborters| {
        let recorded = member.stream.capture(|| {
            member.sum()?;
            abort_all(aborters);
            member.sum()
        });
        let refused = recorded.unwrap_err();
        assert!(matches!(refused, NcclError::Aborted { .. }), "{refused}");
    });
}

#[test]
fn two_ranks_on_one_device_are_refused() {
    souffleur_cusim::load_nccl();
    let id = GroupId::new().unwrap();
    let device = device(242).0;
    let connect = |rank| Communicator::connect(&device, id, rank).map(drop);
    let results: Vec<_> = thread::scope(|scope| {
        let start = |rank| scope.spawn(move || connect(rank));
        let threads: Vec<_> = Rank::all(2).map(start).collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.collect()
    });
    for refused in results {
        assert_eq!(code_of(&refused.unwrap_err()), Some(INVALID_USAGE));
    }
}

#[test]
fn a_stream_or_memory_of_another_device_is_refused() {
    let ((other, _), emulated) = (device(244), souffleur_cusim::Device::new(243));
    let foreign = other.stream(Priority::High).unwrap();
    let memory = other.alloc::<f32>(LEN).unwrap();
    ranks(243, 1, |member, _| {
        let values = member.values(LEN);
        let communicator = &member.communicator;
        // SAFETY: the call is refused.
        let refused = unsafe { communicator.all_reduce(&foreign, values, values.start) };
        let text = refused.unwrap_err().to_string();
        assert!(
            text.contains("GPU 243") && text.contains("GPU 244"),
            "{text}"
        );
        let start = memory.ptr().cast();
        let refused = member.sum_of(Values { start, ..values }).unwrap_err();
        assert_eq!(code_of(&refused), Some(INVALID_ARGUMENT), "{refused}");
        member.sum().unwrap();
        member.stream.synchronize().unwrap();
    });
    assert_eq!(emulated.failure(), None);
}
