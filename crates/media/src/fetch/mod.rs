//! Fetches media from allowed hosts, for clients that are not trusted.
//!
//! A name is resolved once, here. The client gets the addresses and cannot look the name up again, so that a name
//! server cannot answer the check with one address and the connection with another (DNS rebinding).

mod slots;
mod socket;
mod system;

use std::fmt::Debug;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use ureq::tls::TlsConfig;
use ureq::unversioned::transport::{Connector, RustlsConnector};
use ureq::{Agent, Body};

use crate::address::non_global_kind;
use crate::domains::AllowedDomains;
use crate::error::MediaError;
use crate::url::{Host, MediaUrl};
use slots::{Slot, Slots};
use socket::{Door, Pinned};
use system::System;

const USER_AGENT: &str = concat!("souffleur/", env!("CARGO_PKG_VERSION"));
const MAX_HEADER_BYTES: usize = 16 << 10;
/// The addresses of a host that are tried.
const MAX_ADDRESSES: usize = 8;

/// The limits of fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchLimits {
    /// The most bytes of a body.
    pub max_bytes: u64,
    /// The longest time of a fetch, with the wait for others, the look-up and the body.
    pub time: Duration,
    /// The most fetches at once; others wait.
    pub at_once: usize,
}

impl Default for FetchLimits {
    fn default() -> Self {
        Self {
            max_bytes: 10 << 20,
            time: Duration::from_secs(10),
            at_once: 8,
        }
    }
}

/// Looks up the addresses of a name. It may block: it has a separate thread.
pub trait Resolve: Debug + Send + Sync {
    /// The addresses of `name`.
    ///
    /// # Errors
    /// If the name has none, or no name server answers.
    fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// Opens connections.
pub trait Connect: Debug + Send + Sync {
    /// A connection to `address`, within `time`.
    ///
    /// # Errors
    /// If there is none.
    fn connect(&self, address: SocketAddr, time: Duration) -> io::Result<TcpStream>;
}

/// Fetches URLs of allowed hosts. It blocks its caller's thread, for [`FetchLimits::time`] at most.
#[derive(Debug)]
pub struct Fetcher {
    domains: AllowedDomains,
    limits: FetchLimits,
    resolve: Arc<dyn Resolve>,
    connect: Arc<dyn Connect>,
    slots: Arc<Slots>,
    /// Read with the first request: reading certificates takes milliseconds.
    tls: OnceLock<TlsConfig>,
}

impl Fetcher {
    /// A fetcher with the system's name servers, sockets and trusted certificates.
    pub fn new(domains: AllowedDomains, limits: FetchLimits) -> Self {
        Self::with(domains, limits, Arc::new(System), Arc::new(System))
    }

    /// A fetcher with another way to look names up and to open connections.
    pub fn with(
        domains: AllowedDomains,
        limits: FetchLimits,
        resolve: Arc<dyn Resolve>,
        connect: Arc<dyn Connect>,
    ) -> Self {
        Self {
            domains,
            limits,
            resolve,
            connect,
            slots: Slots::new(limits.at_once.max(1)),
            tls: OnceLock::new(),
        }
    }

    /// The limits.
    pub fn limits(&self) -> FetchLimits {
        self.limits
    }

    /// Checks a URL's host against the list, as [`fetch`](Self::fetch) does first. No name is looked up.
    ///
    /// # Errors
    /// [`MediaError::NotAllowed`], and [`MediaError::NotGlobal`] for an address.
    pub fn check(&self, url: &MediaUrl) -> Result<(), MediaError> {
        let host = url.host();
        if !self.domains.allows(host) {
            return Err(MediaError::NotAllowed {
                host: host.to_string(),
            });
        }
        match host {
            Host::Name(_) => Ok(()),
            Host::Address(address) => check_address(host, *address),
        }
    }

    /// The body that the host answers with.
    ///
    /// # Errors
    /// Those of [`check`](Self::check); [`MediaError::Unresolved`]; [`MediaError::NotGlobal`] if any of the host's
    /// addresses is not global, before a connection is opened; [`MediaError::Status`], [`MediaError::TooLarge`],
    /// [`MediaError::Failed`] and [`MediaError::TimedOut`].
    pub fn fetch(&self, url: &MediaUrl) -> Result<Vec<u8>, MediaError> {
        self.check(url)?;
        let deadline = Instant::now() + self.limits.time;
        let timed_out = || self.timed_out(url);
        let slot = self.slots.take(deadline).ok_or_else(timed_out)?;
        let slot = Arc::new(slot);
        let addresses = match url.host() {
            Host::Address(address) => vec![*address],
            Host::Name(name) => {
                let found = self.look_up(name, deadline, &slot).ok_or_else(timed_out)?;
                found.map_err(|error| unresolved(name, &error))?
            }
        };
        if addresses.is_empty() {
            let error = io::Error::other("it has no address");
            return Err(unresolved(&url.host().to_string(), &error));
        }
        for address in &addresses {
            check_address(url.host(), *address)?;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(timed_out());
        }
        let addresses = addresses.into_iter().take(MAX_ADDRESSES);
        let pinned = addresses.map(|address| SocketAddr::new(address, url.port()));
        self.request(url, pinned.collect(), left)
    }

    /// Looks a name up on another thread, which has the fetch's slot until the name server has answered. `None` if it
    /// has not by the deadline.
    fn look_up(
        &self,
        name: &str,
        deadline: Instant,
        slot: &Arc<Slot>,
    ) -> Option<io::Result<Vec<IpAddr>>> {
        let (send, receive) = mpsc::sync_channel(1);
        let (resolve, owned, slot) = (self.resolve.clone(), name.to_owned(), slot.clone());
        let thread = std::thread::Builder::new().name("media-look-up".to_owned());
        let spawned = thread.spawn(move || {
            let found = resolve.resolve(&owned);
            drop(slot);
            // The fetch may have timed out.
            drop(send.send(found));
        });
        if let Err(error) = spawned {
            return Some(Err(error));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        match receive.recv_timeout(left) {
            Ok(found) => Some(found),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Some(Err(io::Error::other("the look-up ended without an answer")))
            }
        }
    }

    fn request(
        &self,
        url: &MediaUrl,
        pinned: Vec<SocketAddr>,
        time: Duration,
    ) -> Result<Vec<u8>, MediaError> {
        let response = self.agent(pinned, time).get(url.request()).call();
        let response = response.map_err(|error| match error {
            ureq::Error::Timeout(_) => self.timed_out(url),
            // Its text has the URL.
            ureq::Error::BadUri(_) => failed(url, "its URL is invalid"),
            error => failed(url, &error.to_string()),
        })?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(MediaError::Status {
                host: url.host().to_string(),
                status,
            });
        }
        let encoding = response.headers().get("content-encoding");
        if encoding.is_some_and(|encoding| encoding != "identity") {
            return Err(failed(url, "the body is compressed"));
        }
        self.read(url, response.into_body())
    }

    /// An agent for one request, whose connections go to `pinned` only.
    fn agent(&self, pinned: Vec<SocketAddr>, time: Duration) -> Agent {
        let tls = self.tls.get_or_init(|| {
            let builder = TlsConfig::builder();
            builder.root_certs(system::roots()).build()
        });
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .user_agent(USER_AGENT)
            .accept("image/png, image/jpeg, image/webp, image/gif")
            .accept_encoding("identity")
            .max_response_header_size(MAX_HEADER_BYTES)
            .max_idle_connections(0)
            .timeout_global(Some(time))
            .tls_config(tls.clone());
        let door = Door {
            connect: self.connect.clone(),
            pinned: pinned.clone(),
        };
        let door = door.chain(RustlsConnector::default());
        Agent::with_parts(config.build(), door, Pinned(pinned))
    }

    fn read(&self, url: &MediaUrl, body: Body) -> Result<Vec<u8>, MediaError> {
        let limit = self.limits.max_bytes;
        let too_large = |bytes: u64| Err(MediaError::TooLarge { bytes, limit });
        let length = body.content_length();
        if let Some(bytes) = length.filter(|bytes| *bytes > limit) {
            return too_large(bytes);
        }
        let mut bytes = Vec::with_capacity(length.unwrap_or_default() as usize);
        let mut reader = body.into_reader().take(limit + 1);
        let read = reader.read_to_end(&mut bytes);
        read.map_err(|error| {
            let inner = error.get_ref();
            let of_client = inner.and_then(|inner| inner.downcast_ref::<ureq::Error>());
            match of_client {
                Some(ureq::Error::Timeout(_)) => self.timed_out(url),
                _ if error.kind() == io::ErrorKind::TimedOut => self.timed_out(url),
                _ => failed(url, &error.to_string()),
            }
        })?;
        let n_bytes = bytes.len() as u64;
        if n_bytes > limit {
            return too_large(n_bytes);
        }
        Ok(bytes)
    }

    fn timed_out(&self, url: &MediaUrl) -> MediaError {
        MediaError::TimedOut {
            host: url.host().to_string(),
            limit: self.limits.time,
        }
    }
}

fn failed(url: &MediaUrl, reason: &str) -> MediaError {
    MediaError::Failed {
        host: url.host().to_string(),
        reason: reason.to_owned(),
    }
}

fn check_address(host: &Host, address: IpAddr) -> Result<(), MediaError> {
    match non_global_kind(address) {
        None => Ok(()),
        Some(kind) => Err(MediaError::NotGlobal {
            host: host.to_string(),
            address,
            kind,
        }),
    }
}

fn unresolved(host: &str, error: &io::Error) -> MediaError {
    MediaError::Unresolved {
        host: host.to_owned(),
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests;
