//! The server as clients see it: black box, over real sockets on free ports.

mod disconnects;
mod errors;
mod hostile;
mod http;
mod key;
mod misses;
mod native;
mod openai;
mod overload;
mod policy;
mod sharing;
mod surface;
mod warm_up;
mod websocket;
mod world;
