//! Opens and serves the gRPC port, in builds with the feature `grpc`.

use std::time::Duration;

use actix_web::rt::task::JoinHandle;
use actix_web::web::Data;
use souffleur::server::{AppState, ServerConfig};

use super::failure::Failure;

/// How long clients may continue to read their answers after the engine has stopped.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Default)]
pub struct GrpcServing {
    server: Option<JoinHandle<()>>,
}

impl GrpcServing {
    /// Waits until the clients have read their answers, up to a limit. To be called once the engine has stopped.
    pub async fn ended(self) {
        let Some(mut server) = self.server else {
            return;
        };
        let ended = actix_web::rt::time::timeout(READ_TIMEOUT, &mut server).await;
        if ended.is_err() {
            tracing::warn!(
                "closing gRPC connections of clients that did not read their answers within {READ_TIMEOUT:?}"
            );
            server.abort();
        }
    }
}

#[derive(Default)]
pub struct GrpcListener {
    #[cfg(feature = "grpc")]
    listener: Option<std::net::TcpListener>,
}

#[cfg(feature = "grpc")]
impl GrpcListener {
    pub fn open(config: &ServerConfig) -> Result<Self, Failure> {
        let Some(port) = config.grpc_port else {
            return Ok(Self::default());
        };
        let host = config.host.as_str();
        let listener = std::net::TcpListener::bind((host, port)).map_err(|error| {
            Failure::Failed(format!(
                "failed to listen on {host}:{port} for gRPC: {error}: choose another --grpc-port"
            ))
        })?;
        if let Ok(address) = listener.local_addr() {
            tracing::info!(%address, "listening for gRPC");
        }
        Ok(Self {
            listener: Some(listener),
        })
    }

    /// Serves alongside HTTP until the server drains.
    pub fn serve(self, state: &Data<AppState>) -> GrpcServing {
        let Some(listener) = self.listener else {
            return GrpcServing::default();
        };
        let state = state.clone();
        let server = actix_web::rt::spawn(async move {
            if let Err(error) = souffleur::server::grpc::run(listener, state).await {
                tracing::error!(%error, "failed to serve gRPC, HTTP continues: restart to serve gRPC");
            }
        });
        GrpcServing {
            server: Some(server),
        }
    }
}

#[cfg(not(feature = "grpc"))]
impl GrpcListener {
    pub fn open(_: &ServerConfig) -> Result<Self, Failure> {
        Ok(Self::default())
    }

    pub fn serve(self, _: &Data<AppState>) -> GrpcServing {
        GrpcServing::default()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use actix_web::rt::{self, System};

    use super::*;

    #[test]
    fn shutdown_waits_for_answers_in_flight() {
        System::new().block_on(async {
            let is_read = Rc::new(Cell::new(false));
            let read = is_read.clone();
            let server = rt::spawn(async move {
                for _ in 0..100 {
                    rt::task::yield_now().await;
                }
                read.set(true);
            });
            let serving = GrpcServing {
                server: Some(server),
            };
            serving.ended().await;
            assert!(is_read.get());
            GrpcServing::default().ended().await;
        });
    }
}
