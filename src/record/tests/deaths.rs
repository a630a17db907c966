//! Tests of panics of the writer and of errors of its disk: the log is readable up to its last complete block.

use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;
use souffleur_chaos::Chaos;

/// A fault at the second block, of three.
#[derive(Clone, Copy)]
enum Fault {
    PanicAfterTheBlock,
    PanicInTheBlock,
    Error,
}

struct FaultyDisk {
    disk: Disk,
    fault: Fault,
    /// Writes so far, among them the one of the log's header.
    n_writes: usize,
}

impl FaultyDisk {
    fn is_due(&self) -> bool {
        self.n_writes == 3
    }
}

impl Write for FaultyDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.n_writes += 1;
        match self.fault {
            Fault::PanicInTheBlock if self.is_due() => {
                self.disk.write_all(&bytes[..bytes.len() / 2])?;
                panic!("inside a block");
            }
            Fault::Error if self.is_due() => Err(io::ErrorKind::StorageFull.into()),
            _ => self.disk.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.fault {
            Fault::PanicAfterTheBlock if self.is_due() => panic!("after a block"),
            _ => Ok(()),
        }
    }
}

/// The replay of a log of three units, each of which has one block; and the numbers of deaths and errors.
fn replayed_with(fault: Fault) -> (Replayed, [String; 2]) {
    let disk = Disk::default();
    let faulty = FaultyDisk {
        disk: disk.clone(),
        fault,
        n_writes: 0,
    };
    let recorder = PrometheusBuilder::new().build_recorder();
    let start = || LogSink::start(faulty, NO_LIMIT, &Header::new(&setup()));
    let sink = metrics::with_local_recorder(&recorder, start).expect("the header can be written");
    for generation in 1..=3 {
        Engine::new(&sink, generation).submit(&[1, 2, 3], 5);
    }
    drop(sink);
    let log = disk.0.lock().expect("no holder panics").clone();
    let page = recorder.handle().render();
    let counted = [
        "souffleur_actor_deaths_total{actor=\"recorder\"} ",
        "souffleur_record_errors_total ",
    ];
    let counted = counted.map(|name| {
        let value = page.lines().find_map(|line| line.strip_prefix(name));
        value.expect("it is registered").to_owned()
    });
    (replay_of(&log).expect("it can be replayed"), counted)
}

fn check(fault: Fault, (n_units, ending): (u64, LogEnd), counted: [&str; 2]) {
    let (replayed, found) = replayed_with(fault);
    assert_eq!(replayed.difference, None);
    assert!(!replayed.has_gap);
    let outcome = (replayed.counts.units, replayed.ending);
    assert_eq!(outcome, (n_units, ending));
    assert_eq!(found, counted);
}

#[test]
fn a_writer_that_panics_after_a_block_continues_with_the_next_one() {
    check(Fault::PanicAfterTheBlock, (3, LogEnd::Closed), ["1", "0"]);
}

#[test]
fn a_writer_that_panics_in_a_block_cuts_the_log_before_it() {
    check(Fault::PanicInTheBlock, (1, LogEnd::CutOff), ["1", "0"]);
}

#[test]
fn an_error_of_the_disk_is_counted_and_cuts_the_log() {
    check(Fault::Error, (1, LogEnd::CutOff), ["0", "1"]);
}

#[test]
fn a_writer_that_panics_before_a_block_writes_it_later() {
    let spec = "actor=record,kind=panic,after=2";
    let chaos = Chaos::new(&[spec.parse().expect("a valid spec")]);
    let disk = Disk::default();
    let header = Header::new(&setup());
    let sink = LogSink::start_with_chaos(chaos.clone(), disk.clone(), NO_LIMIT, &header);
    let sink = sink.expect("memory can be written");
    for generation in 1..=3 {
        Engine::new(&sink, generation).submit(&[1, 2, 3], 5);
    }
    drop(sink);
    assert_eq!(chaos.describe()[0].firings, 1);
    let log = disk.0.lock().expect("no holder panics").clone();
    let replayed = replay_of(&log).expect("it can be replayed");
    assert_eq!(replayed.difference, None);
    assert_eq!(
        (replayed.counts.units, replayed.ending),
        (3, LogEnd::Closed)
    );
}
