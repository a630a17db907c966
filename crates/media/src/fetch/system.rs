//! The system's name servers, sockets and trusted certificates.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use ureq::tls::{Certificate, RootCerts};

use super::{Connect, Resolve};

#[derive(Debug)]
pub(super) struct System;

impl Resolve for System {
    fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        // The port is left out of the result.
        let found = (name, 0).to_socket_addrs()?;
        Ok(found.map(|address| address.ip()).collect())
    }
}

impl Connect for System {
    fn connect(&self, address: SocketAddr, time: Duration) -> io::Result<TcpStream> {
        TcpStream::connect_timeout(&address, time)
    }
}

/// The system's certificates, or those of the file that `SSL_CERT_FILE` names; Mozilla's where there are none, as in a
/// bare container.
pub(super) fn roots() -> RootCerts {
    let found = rustls_native_certs::load_native_certs().certs;
    if found.is_empty() {
        return RootCerts::WebPki;
    }
    let certificates = found
        .iter()
        .map(|der| Certificate::from_der(der).to_owned());
    RootCerts::from(certificates.collect::<Vec<_>>())
}
