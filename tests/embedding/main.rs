//! Tests of engines embedded in other programs: the guarantees for hosts.

#[cfg(target_os = "linux")]
mod cores;
mod doors;
mod doubles;
mod drops;
mod examples;
mod hangs;
mod kv_events;
mod lifetimes;
mod messages;
mod overload;
mod policies;
mod prefixes;
mod quiet;
mod rebuilds;
mod recording;
mod replicas;
mod shutdown;
mod slow_clients;
mod stores;
mod watchdog;
#[allow(dead_code, reason = "shared with the tests of the whole engine")]
#[path = "../engine/world.rs"]
mod world;
#[allow(dead_code, reason = "shared with the tests of the publisher")]
#[path = "../common/zmq_peer.rs"]
mod zmq_peer;
