//! Tests of the gRPC services, with clients generated from the same proto files; they need the feature `grpc`.

#[path = "../server/dying_engine.rs"]
mod dying_engine;
#[allow(dead_code, reason = "shared with the tests of the server")]
#[path = "../server/http.rs"]
mod http;
#[path = "../common/repository.rs"]
mod repository;
mod runtime;
mod scheduler;
#[allow(dead_code, reason = "shared with the tests of the server")]
#[path = "../common/scripted.rs"]
mod scripted;
#[allow(dead_code, reason = "shared with the tests of the server")]
#[path = "../server/world.rs"]
mod world;

use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use souffleur::server::grpc;
use souffleur::server::grpc::proto::runtime::HealthCheckRequest;
use souffleur::server::grpc::proto::runtime::sglang_service_client::SglangServiceClient;
use souffleur::server::grpc::proto::scheduler::HealthCheckRequest as SchedulerHealthRequest;
use souffleur::server::grpc::proto::scheduler::sglang_scheduler_client::SglangSchedulerClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use crate::dying_engine::{kill, world_with_dying_engine};
use crate::http::get;
use crate::world::{World, block_on, wait_until};

const WAIT_LIMIT: Duration = Duration::from_secs(60);

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

    /// Calls `ask` with a connection to the server, on a separate runtime.
    fn with<T>(&self, ask: impl AsyncFnOnce(Channel) -> T) -> T {
        let endpoint = Endpoint::from_shared(self.url.clone()).expect("a URL");
        block_on(async {
            let channel = endpoint.connect().await;
            ask(channel.expect("a connection")).await
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
                    .expect("no I/O error");
            }
        }
    }
}

/// The remaining messages of a stream.
async fn rest<T>(mut stream: Streaming<T>) -> Result<Vec<T>, Status> {
    let mut responses = Vec::new();
    while let Some(response) = stream.message().await? {
        responses.push(response);
    }
    Ok(responses)
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Waits until `requests` requests run, while the client's connection makes progress.
async fn wait_for(world: &World, requests: usize) {
    let engine = world.engine();
    let wait = async {
        while engine.stats().await.expect("stats").running_requests != requests {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(WAIT_LIMIT, wait).await;
    waited.unwrap_or_else(|_| panic!("timed out waiting until {requests} requests run"));
}

/// The reason that both services give for being unhealthy; empty if they are healthy.
fn fault(grpc: &GrpcWorld) -> String {
    grpc.with(async |channel| {
        let mut runtime = SglangServiceClient::new(channel.clone());
        let mut scheduler = SglangSchedulerClient::new(channel);
        let of_runtime = runtime.health_check(HealthCheckRequest {}).await;
        let of_runtime = of_runtime.expect("an answer").into_inner();
        let of_scheduler = scheduler.health_check(SchedulerHealthRequest {}).await;
        let of_scheduler = of_scheduler.expect("an answer").into_inner();
        assert_eq!(of_runtime.healthy, of_scheduler.healthy);
        assert_eq!(of_scheduler.healthy, of_scheduler.message.is_empty());
        of_scheduler.message
    })
}

/// During a rebuild, gateways must route requests elsewhere, but a supervisor must not restart the process.
#[test]
fn a_rebuilding_engine_is_unhealthy_for_gateways() {
    let (world, _model, fail) = world_with_dying_engine();
    let grpc = GrpcWorld::new(world);
    assert_eq!(fault(&grpc), "");
    kill(&grpc.world);
    let rebuilding = fault(&grpc);
    assert!(rebuilding.contains("it is being rebuilt"), "{rebuilding}");
    let health = get(grpc.world.addr, "/health").ok();
    assert_eq!(health["status"], "rebuilding");
    fail.send(()).expect("a rebuild");
    wait_until("the rebuild fails", || {
        get(grpc.world.addr, "/health").status == 503
    });
    let over = fault(&grpc);
    assert!(over.contains("will not be rebuilt"), "{over}");
}
