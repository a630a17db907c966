//! Tests of message logs that reach their size limit, or whose disk is too slow.

use super::*;
use souffleur_chaos::Chaos;

#[test]
fn a_log_that_reaches_its_size_limit_ends_with_that_reason() {
    let limit = 4096;
    let log = log_of(limit, |sink| {
        busy(sink);
        assert_eq!(sink.dropped(), 0);
    });
    assert!(log.len() as u64 <= limit, "{}", log.len());
    let replayed = replay_of(&log).expect("it can be replayed");
    assert_eq!(
        (replayed.difference, replayed.ending),
        (None, LogEnd::SizeLimit)
    );
    assert!(!replayed.has_gap && replayed.counts.records > 10);
}

#[test]
fn entries_dropped_by_a_slow_disk_are_counted_and_marked() {
    let disk = Disk::default();
    let sink = LogSink::start(disk.clone(), NO_LIMIT, &Header::new(&setup()))
        .expect("memory can be written");
    let mut n_dropped = 0;
    {
        let blocked = disk.0.lock().expect("no holder panics");
        let mut recorder = sink.recorder(1);
        let tokens: Arc<[u32]> = (0..1 << 16).collect();
        while sink.dropped() < 5 {
            recorder.push(&Entry::Pin {
                namespace: (&Namespace::default()).into(),
                tokens: tokens.clone(),
                expires_s: 1,
            });
            n_dropped = sink.dropped();
        }
        drop(blocked);
    }
    let mut second = Engine::new(&sink, 2);
    second.submit(&[1, 2, 3], 5);
    drop((second, sink));
    let log = disk.0.lock().expect("the writer has ended").clone();
    let replayed = replay_of(&log).expect("it can be replayed");
    assert!(replayed.has_gap);
    assert_eq!((replayed.n_dropped, replayed.difference), (n_dropped, None));
    assert_eq!(replayed.counts.units, 2);
    let steps = StepId::new(replayed.counts.steps);
    assert!(steps > StepId::new(0), "the second unit is replayed");
}

#[test]
fn a_log_whose_disk_fails_stops_and_the_part_before_can_be_replayed() {
    for kind in ["io_error", "disk_full"] {
        let spec = format!("actor=record,kind={kind},after=2");
        let disk = Disk::default();
        let chaos = Chaos::new(&[spec.parse().expect("a valid spec")]);
        let header = Header::new(&setup());
        let sink = LogSink::start_with_chaos(chaos.clone(), disk.clone(), NO_LIMIT, &header);
        let sink = sink.expect("memory can be written");
        busy(&sink);
        let mut recorder = sink.recorder(2);
        recorder.flush();
        drop((recorder, sink));
        assert_eq!(chaos.describe()[0].firings, 1, "{kind}");
        let log = disk.0.lock().expect("the writer has ended").clone();
        assert!(replay_of(&log).is_ok_and(|replayed| replayed.difference.is_none()));
    }
}
