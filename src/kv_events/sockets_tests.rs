//! Tests of disconnecting silent subscribers, in virtual time.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::super::ring::RingLimits;
use super::*;

const PING: &[u8] = b"\x04\x07\x04PING\0\0";
const PONG: &[u8] = b"\x04\x05\x04PONG";

fn sockets() -> Rc<Sockets> {
    let limits = RingLimits {
        replayed: 4,
        waiting: None,
    };
    Rc::new(Sockets {
        topic: "kv".to_owned(),
        ring: RefCell::new(Ring::new(limits)),
        published: watch::Sender::new(0),
        complaints: Complaints::default(),
        metrics: KvEventMetrics::register(),
    })
}

/// Sends the greeting of this minor protocol version and the subscriptions, and reads the publisher's greeting.
async fn introduce(peer: &mut DuplexStream, minor: u8, subscriptions: &[u8]) {
    let mut hello = vec![0; 64];
    (hello[0], hello[9]) = (0xff, 0x7f);
    (hello[10], hello[11]) = (3, minor);
    hello[12..16].copy_from_slice(b"NULL");
    hello.extend(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB");
    hello.extend(subscriptions);
    peer.write_all(&hello).await.expect("the bytes fit");
    let mut greeting = [0; 64];
    peer.read_exact(&mut greeting).await.expect("a greeting");
    let mut head = [0; 2];
    peer.read_exact(&mut head).await.expect("a frame");
    let mut ready = vec![0; head[1].into()];
    peer.read_exact(&mut ready).await.expect("it is ready");
}

/// Answers the first `max` PINGs. Returns the number of PINGs until the connection closes.
async fn answer_pings(peer: &mut DuplexStream, max: usize) -> usize {
    let mut ping = vec![0; PING.len()];
    let mut n_pings = 0;
    while peer.read_exact(&mut ping).await.is_ok() {
        assert_eq!(ping, PING);
        n_pings += 1;
        if n_pings <= max {
            peer.write_all(PONG).await.expect("the bytes fit");
        }
    }
    n_pings
}

/// Serves a subscriber that answers the first `max` PINGs. Returns the error, its time, and the number of PINGs.
async fn serve(minor: u8, subscriptions: &[u8], max: usize) -> (ZmtpError, Duration, usize) {
    let (stream, mut peer) = duplex(1 << 12);
    let begun = Instant::now();
    let served = async {
        let ended = serve_subscriber(stream, sockets()).await;
        (ended.expect_err("it is disconnected"), begun.elapsed())
    };
    let peer = async {
        introduce(&mut peer, minor, subscriptions).await;
        answer_pings(&mut peer, max).await
    };
    let ((ended, at), n_pings) = tokio::join!(served, peer);
    (ended, at, n_pings)
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_answers_no_ping_is_disconnected() {
    let (ended, at, n_pings) = serve(1, b"\0\x03\x01kv", 0).await;
    assert!(matches!(ended, ZmtpError::Silent), "{ended}");
    assert_eq!((at.as_secs(), n_pings), (120, 1)); // the PING after 30 s, and 90 s without a PONG
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_stays_connected_while_it_answers_pings() {
    let (ended, at, n_pings) = serve(1, b"\0\x03\x01kv", 100).await;
    assert!(matches!(ended, ZmtpError::Silent), "{ended}");
    assert_eq!((at.as_secs(), n_pings), (100 * 30 + 120, 101));
}

#[tokio::test(start_paused = true)]
async fn a_peer_without_a_matching_topic_is_disconnected() {
    for subscriptions in [&b""[..], b"\0\x06\x01other"] {
        let (ended, at, n_pings) = serve(1, subscriptions, 100).await;
        assert!(matches!(ended, ZmtpError::Idle), "{ended}");
        assert_eq!(at.as_secs(), IDLE_TIMEOUT.as_secs());
        assert!((3..=4).contains(&n_pings), "{n_pings}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_of_the_older_version_gets_no_ping() {
    let (stream, mut peer) = duplex(1 << 12);
    let peer = async {
        introduce(&mut peer, 0, b"\0\x03\x01kv").await;
        let heard = timeout(Duration::from_secs(3600), peer.read_u8()).await;
        assert!(heard.is_err(), "it gets no PING, and stays connected");
    };
    tokio::select! {
        ended = serve_subscriber(stream, sockets()) => panic!("{ended:?}"),
        () = peer => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_but_steady_subscriber_stays_connected() {
    const EVERY: Duration = Duration::from_secs(40);
    let (stream, mut peer) = duplex(64 << 10);
    let sockets = sockets();
    let peer = async {
        introduce(&mut peer, 1, b"\0\x03\x01kv").await;
        // The paused clock advances only after the publisher has read the subscription.
        sleep(Duration::from_secs(1)).await;
        for _ in 0..100 {
            sockets.publish(vec![0; 8 << 10], Vec::new());
        }
        // The PING is queued after eight batches, and reading them takes the peer longer than the PONG timeout.
        let (mut n_read, mut n_pings) = (0, 0);
        while n_read < 30 {
            let frame = zmtp::read_frame(&mut peer, 16 << 10).await;
            let frame = frame.expect("it is served");
            if frame.is_command {
                peer.write_all(PONG).await.expect("the bytes fit");
                n_pings += 1;
            } else if !frame.has_more {
                n_read += 1;
                sleep(EVERY).await;
            }
        }
        assert!(n_pings > 0);
    };
    tokio::select! {
        ended = serve_subscriber(stream, sockets.clone()) => panic!("{ended:?}"),
        () = peer => {}
    }
}
