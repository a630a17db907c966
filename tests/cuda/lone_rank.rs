//! The collectives of a rank alone, with NCCL on a real GPU: sums and gathered parts are its own values.

// Collectives and launches of graphs take addresses.
#![allow(unsafe_code)]

use souffleur_kernels::cuda::driver::Priority;
use souffleur_kernels::cuda::nccl::{Communicator, GroupId, NcclError, Values, installed};
use souffleur_kernels::cuda::params::ElementType;
use souffleur_kernels::shard::Rank;

use crate::gpu;

const LEN: usize = 1000;

#[test]
fn recorded_collectives_are_replayed() {
    if gpu::real().is_none() {
        souffleur_cusim::load_nccl();
    }
    if let Err(reason) = installed() {
        eprintln!("skipped: {reason}");
        return;
    }
    let (device, _) = gpu::open(gpu::unused());
    let stream = device.stream(Priority::High).unwrap();
    let buffers = [(); 2].map(|()| device.alloc::<f32>(LEN).unwrap());
    let [own, gathered] = &buffers;
    let communicator = Communicator::connect(&device, GroupId::new().unwrap(), Rank::ONLY).unwrap();
    let values = Values {
        start: own.ptr().cast(),
        element: ElementType::F32,
        len: LEN,
    };
    // SAFETY: the buffers live longer than the graph.
    let collectives = || unsafe {
        communicator.all_reduce(&stream, values, values.start)?;
        communicator.all_gather(&stream, values, gathered.ptr().cast())
    };
    // NCCL allocates memory at the first collective, which no recording may do.
    collectives().unwrap();
    stream.synchronize().unwrap();
    let graph = stream.capture::<NcclError>(collectives).unwrap();
    for round in 1..4 {
        let expected = vec![round as f32; LEN];
        stream.write(own, 0, &expected).unwrap();
        stream.fill(gathered, 0..LEN, 0).unwrap();
        // SAFETY: likewise.
        unsafe { graph.launch(&stream) }.unwrap();
        assert_eq!(stream.read(gathered, 0..LEN).unwrap(), expected);
    }
    assert_eq!(communicator.check(), Ok(()));
    drop(graph);
}
