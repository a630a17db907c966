//! Tests of clients that do not read their events.

use souffleur::config::EngineConfig;
use souffleur::engine::Generation;
use souffleur::request::Event;

use super::doubles::{question, start_bundled};
use super::world::{World, within};

async fn collect_text(mut generation: Generation) -> (String, usize, Event) {
    let (mut text, mut n_events) = (String::new(), 0);
    loop {
        n_events += 1;
        match within(generation.next())
            .await
            .expect("the stream ends with a terminal event")
        {
            Event::Delta(delta) => text.push_str(&delta.text),
            Event::Finished(end) => {
                text.push_str(&end.delta.text);
                return (text, n_events, Event::Finished(end));
            }
            end => return (text, n_events, end),
        }
    }
}

#[tokio::test]
async fn a_client_that_never_reads_fails_alone() {
    let world = World {
        engine: start_bundled(EngineConfig {
            client_channel_events: 1,
            // Larger than the answers that are read, and smaller than the unread answer.
            client_backlog_bytes: 512,
            ..EngineConfig::default()
        }),
    };
    let expected = collect_text(world.generate(question(40))).await.0;
    let never_read = world.generate(question(1000));
    let (text, _, end) = collect_text(world.generate(question(40))).await;
    assert!(matches!(end, Event::Finished(_)), "{end:?}");
    assert_eq!(text, expected);
    world.assert_no_leaks().await;
    let (_, n_events, end) = collect_text(never_read).await;
    match end {
        Event::Failed(error) => assert_eq!(error.code(), "slow_client"),
        other => panic!("ended with {other:?}"),
    }
    assert_eq!(n_events, 2, "one delta was in the channel");
    world.stop().await;
}

#[tokio::test]
async fn a_client_that_reads_late_gets_merged_deltas() {
    let world = World {
        engine: start_bundled(EngineConfig {
            client_channel_events: 1,
            ..EngineConfig::default()
        }),
    };
    let expected = collect_text(world.generate(question(60))).await.0;
    let read_late = world.generate(question(60));
    within(async {
        while world.engine.requests_inside() > 0 {
            tokio::task::yield_now().await
        }
    })
    .await;
    let (text, n_events, end) = collect_text(read_late).await;
    assert!(matches!(end, Event::Finished(_)), "{end:?}");
    assert_eq!((text, n_events), (expected, 2));
    world.assert_no_leaks().await;
    world.stop().await;
}
