//! Tests of the web console in a real browser: Debian's Chromium, which `cdp.rs` drives.

mod axe;
#[allow(dead_code, reason = "shared with the tests of clients")]
#[path = "../clients/binary.rs"]
mod binary;
mod cdp;
mod console;
mod conversations;
#[path = "../common/python_environment.rs"]
#[allow(dead_code, reason = "shared with the tests of clients")]
mod environment;
mod hostile;
#[allow(dead_code, reason = "shared with the tests of the server")]
#[path = "../server/http.rs"]
mod http;
mod keyboard;
mod keys;
mod misses;
#[allow(dead_code, reason = "shared with the tests of clients")]
#[path = "../clients/npm.rs"]
mod npm;
mod other_sites;
mod page;
mod pictures;
mod policy;
#[path = "../common/repository.rs"]
mod repository;
#[allow(dead_code, reason = "shared with the tests of clients")]
#[path = "../common/scripted.rs"]
mod scripted;
mod stage;
mod tree;
#[allow(dead_code, reason = "shared with the tests of the server")]
#[path = "../server/world.rs"]
mod world;
