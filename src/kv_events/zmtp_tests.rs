//! Tests of the ZMTP protocol with raw bytes of peers.

use super::*;

fn frame(is_command: bool, body: &[u8]) -> Frame {
    Frame {
        is_command,
        has_more: false,
        body: body.to_vec(),
    }
}

#[test]
fn subscriptions_are_parsed_in_both_forms() {
    for (is_command, body, expected) in [
        (
            false,
            &b"\x01kv"[..],
            Some(SubscriberCommand::Subscribe(b"kv")),
        ),
        (false, b"\x01", Some(SubscriberCommand::Subscribe(b""))),
        (false, b"\x00kv", Some(SubscriberCommand::Cancel(b"kv"))),
        (false, b"\x02", None),
        (false, b"", None),
        (
            true,
            b"\x09SUBSCRIBEkv",
            Some(SubscriberCommand::Subscribe(b"kv")),
        ),
        (true, b"\x06CANCEL", Some(SubscriberCommand::Cancel(b""))),
        (true, b"\x09SUB", None),
        (true, b"\x05READY", None),
    ] {
        assert_eq!(
            subscriber_command(&frame(is_command, body)),
            expected,
            "{body:?}"
        );
    }
}

#[test]
fn a_ping_is_answered_with_its_context() {
    let ping_frame = frame(true, b"\x04PING\x00\x10abc");
    let expected = b"\x04\x08\x04PONGabc".to_vec();
    assert_eq!(answer_to_ping(&ping_frame), Some(expected.clone()));
    assert_eq!(
        subscriber_command(&ping_frame),
        Some(SubscriberCommand::Ping(expected))
    );
    assert_eq!(answer_to_ping(&frame(false, b"\x04PING\x00\x10")), None);
    assert_eq!(answer_to_ping(&frame(true, b"\x04PING")), None);
    assert_eq!(ping(), b"\x04\x07\x04PING\0\0");
    assert!(is_pong(&frame(true, b"\x04PONG")) && is_pong(&frame(true, b"\x04PONGabc")));
    assert!(!is_pong(&frame(false, b"\x04PONG")) && !is_pong(&ping_frame));
}

#[test]
fn frame_headers_have_the_more_flag_and_the_length() {
    let long = vec![7; 300];
    let bytes = message(&[b"", b"ab", &long]);
    assert_eq!(bytes[..5], [1, 0, 1, 2, b'a']);
    assert_eq!(bytes[6..15], [2, 0, 0, 0, 0, 0, 0, 1, 44]);
    assert_eq!(bytes.len(), 15 + 300);
}

#[test]
fn the_socket_type_is_read_from_the_peers_metadata() {
    let body = b"\x05READY\x08Identity\x00\x00\x00\x01x\x0bsocket-type\x00\x00\x00\x03SUB";
    assert_eq!(peer_type(body), Some(&b"SUB"[..]));
    for body in [
        &b"\x05READY"[..],
        b"\x05ERROR\x0bSocket-Type\x00\x00\x00\x03SUB",
        b"\x05READY\x0bSocket-Type\x00\x00\x00\x04SUB",
        b"\x05READY\x0bSocket",
        b"",
    ] {
        assert_eq!(peer_type(body), None, "{body:?}");
    }
    assert!(SocketType::Pub.accepts(b"XSUB") && !SocketType::Pub.accepts(b"PULL"));
    assert!(SocketType::Router.accepts(b"DEALER") && !SocketType::Router.accepts(b""));
}

/// Runs the handshake against recorded bytes.
fn run_handshake(peer: &[u8], socket: SocketType) -> Result<PeerVersion, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("it needs nothing");
    let (mut reader, mut written) = (peer, Vec::new());
    let ended = runtime.block_on(handshake(&mut reader, &mut written, socket));
    ended.map_err(|error| error.to_string())
}

#[test]
fn compatible_peers_are_accepted_and_others_refused() {
    // The greeting of libzmq 4.3, whose signature contains a length.
    let mut subscriber = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL".to_vec();
    subscriber.resize(GREETING_BYTES, 0);
    let ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB";
    let with_ready = |greeting: &[u8]| [greeting, ready].concat();
    let handshake_with = |peer: &[u8]| run_handshake(peer, SocketType::Pub);
    assert_eq!(
        handshake_with(&with_ready(&subscriber)),
        Ok(PeerVersion::V3_1)
    );
    let changed = |at: usize, byte: u8| {
        let mut greeting = subscriber.clone();
        greeting[at] = byte;
        with_ready(&greeting)
    };
    assert_eq!(handshake_with(&changed(11, 0)), Ok(PeerVersion::V3_0));
    for (peer, socket, reason) in [
        (
            with_ready(&subscriber),
            SocketType::Router,
            "incompatible socket",
        ),
        (changed(0, b'G'), SocketType::Pub, "no ZMTP greeting"),
        (changed(10, 2), SocketType::Pub, "before 3.0"),
        (changed(12, b'P'), SocketType::Pub, "security"),
        (subscriber.clone(), SocketType::Pub, "end of file"),
        (
            [&subscriber[..], b"\x80\0"].concat(),
            SocketType::Pub,
            "invalid frame header",
        ),
    ] {
        let error = run_handshake(&peer, socket).expect_err(reason);
        assert!(error.contains(reason), "{error} lacks {reason}");
    }
    let mut long = subscriber.clone();
    long.extend(b"\x06\0\0\0\x01\0\0\0\0");
    let error = handshake_with(&long).expect_err("four gigabytes");
    assert!(error.contains("more than 4096 bytes"), "{error}");
}
