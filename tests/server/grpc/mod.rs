//! gRPC, asked by clients that are made of the same proto files. With the feature `grpc` only.

mod runtime;
mod scheduler;

use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use souffleur::server::grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use crate::world::{World, block_on};

const PATIENCE: Duration = Duration::from_secs(60);

/// A server with a port for gRPC.
struct GrpcWorld {
    world: World,
    url: String,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl GrpcWorld {
    fn new(world: World) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("the socket is bound");
        let state = world.state.clone();
        let serve = move || actix_web::rt::System::new().block_on(grpc::run(listener, state));
        Self {
            world,
            url: format!("http://{address}"),
            thread: Some(std::thread::spawn(serve)),
        }
    }

    /// Does something over a connection, on a runtime of its own.
    fn with<T>(&self, ask: impl AsyncFnOnce(Channel) -> T) -> T {
        let endpoint = Endpoint::from_shared(self.url.clone()).expect("it is a URL");
        block_on(async {
            let channel = endpoint.connect().await;
            ask(channel.expect("it listens")).await
        })
    }
}

impl Drop for GrpcWorld {
    fn drop(&mut self) {
        self.world.state.drain();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended
                    .expect("the server does not panic")
                    .expect("its sockets work");
            }
        }
    }
}

/// The rest of a stream.
async fn rest<T>(mut stream: Streaming<T>) -> Result<Vec<T>, Status> {
    let mut responses = Vec::new();
    while let Some(response) = stream.message().await? {
        responses.push(response);
    }
    Ok(responses)
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("it is JSON")
}

/// Waits until so many requests run, and lets the client's connection go on meanwhile.
async fn wait_for(world: &World, requests: usize) {
    let engine = world.engine();
    let wait = async {
        while engine.stats().await.expect("it lives").running_requests != requests {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, wait).await;
    waited.unwrap_or_else(|_| panic!("waited too long until {requests} requests run"));
}
