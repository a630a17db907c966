//! The port for gRPC, in builds with the feature `grpc`. The configuration of others has none.

use actix_web::web::Data;
use souffleur::server::{AppState, ServerConfig};

use super::failure::Failure;

/// A socket for gRPC, if there is to be one.
#[derive(Default)]
pub struct GrpcDoor {
    #[cfg(feature = "grpc")]
    listener: Option<std::net::TcpListener>,
}

#[cfg(feature = "grpc")]
impl GrpcDoor {
    /// Takes the port.
    pub fn open(config: &ServerConfig) -> Result<Self, Failure> {
        let Some(port) = config.grpc_port else {
            return Ok(Self::default());
        };
        let host = config.host.as_str();
        let listener = std::net::TcpListener::bind((host, port)).map_err(|error| {
            Failure::Failed(format!(
                "cannot listen on {host}:{port} for gRPC: {error}: choose another --grpc-port"
            ))
        })?;
        if let Ok(address) = listener.local_addr() {
            tracing::info!(%address, "gRPC");
        }
        Ok(Self {
            listener: Some(listener),
        })
    }

    /// Serves beside HTTP until the state drains.
    pub fn serve(self, state: &Data<AppState>) {
        let Some(listener) = self.listener else {
            return;
        };
        let state = state.clone();
        actix_web::rt::spawn(async move {
            if let Err(error) = souffleur::server::grpc::run(listener, state).await {
                tracing::error!(%error, "gRPC has ended");
            }
        });
    }
}

#[cfg(not(feature = "grpc"))]
impl GrpcDoor {
    /// There is none.
    pub fn open(_: &ServerConfig) -> Result<Self, Failure> {
        Ok(Self::default())
    }

    /// Nothing is to be served.
    pub fn serve(self, _: &Data<AppState>) {}
}
