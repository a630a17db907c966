//! Connections of the HTTP client, to addresses that were checked.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};

use super::Connect;
use crate::address::non_global_kind;

/// Answers every look-up of the client with the addresses that were checked.
#[derive(Debug)]
pub(super) struct Pinned(pub(super) Vec<SocketAddr>);

impl Resolver for Pinned {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        if self.0.is_empty() {
            return Err(Error::HostNotFound);
        }
        let mut addresses = self.empty();
        for address in &self.0 {
            addresses.push(*address);
        }
        Ok(addresses)
    }
}

/// Opens connections to the checked addresses, and to no others.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) connect: Arc<dyn Connect>,
    pub(super) pinned: Vec<SocketAddr>,
}

impl Connector for Door {
    type Out = Socket;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<Socket>, Error> {
        let (began, all) = (Instant::now(), left(details.timeout)?);
        let mut last = io::Error::other("it has no address");
        for address in &self.pinned {
            // Checked before, too: no change elsewhere may open this door.
            if non_global_kind(address.ip()).is_some() {
                return Err(io::Error::other("the address is not global").into());
            }
            let left = all.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(Error::Timeout(details.timeout.reason));
            }
            match self.connect.connect(*address, left) {
                Ok(stream) => {
                    let config = details.config;
                    let buffers =
                        LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
                    return Ok(Some(Socket { stream, buffers }));
                }
                Err(error) => last = error,
            }
        }
        Err(last.into())
    }
}

#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    buffers: LazyBuffers,
}

impl Transport for Socket {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.set_write_timeout(Some(left(timeout)?))?;
        let output = &self.buffers.output()[..amount];
        let written = self.stream.write_all(output);
        written.map_err(|error| explained(error, timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.set_read_timeout(Some(left(timeout)?))?;
        let room = self.buffers.input_append_buf();
        let amount = loop {
            match self.stream.read(room) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read.map_err(|error| explained(error, timeout))?,
            }
        };
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    /// A connection is for one request.
    fn is_open(&mut self) -> bool {
        false
    }
}

/// The time that is left, more than none.
fn left(timeout: NextTimeout) -> Result<Duration, Error> {
    let left = *timeout.after;
    if left.is_zero() {
        Err(Error::Timeout(timeout.reason))
    } else {
        Ok(left)
    }
}

fn explained(error: io::Error, timeout: NextTimeout) -> Error {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Error::Timeout(timeout.reason),
        _ => error.into(),
    }
}
