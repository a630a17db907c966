//! Binds a TCP port or a Unix socket, and accepts the connections of subscribers and replay clients.

use std::io;
use std::path::Path;
#[cfg(unix)]
use std::path::PathBuf;

use tokio::io::{AsyncRead, AsyncWrite};

use super::config::{Endpoint, invalid_config};
use super::presence;
use souffleur_base::error::ConfigError;

pub(super) trait Connection: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection for S {}

/// A bound endpoint, from which the listeners of runtimes are made.
pub(super) enum BoundEndpoint {
    Tcp(std::net::TcpListener),
    #[cfg(unix)]
    /// The file is removed before the listener closes, so that no other process finds a stale file: fields are dropped
    /// in the order of their declaration.
    Ipc {
        _file: SocketFile,
        listener: std::os::unix::net::UnixListener,
    },
}

impl BoundEndpoint {
    /// Binds an endpoint. `key` is the configuration key, for the error.
    ///
    /// # Errors
    /// The system's error, with the endpoint and a remedy.
    pub fn bind(key: &str, endpoint: &Endpoint) -> Result<Self, ConfigError> {
        let bound = match endpoint {
            Endpoint::Tcp { host, port } => bind_port(host, *port),
            Endpoint::Ipc { path } => bind_file(path),
        };
        bound.map_err(|error| {
            let advice = match (endpoint, error.kind()) {
                (Endpoint::Ipc { .. }, _) => "choose another path",
                (_, io::ErrorKind::AddrInUse) => "choose another port, or 0 for any free one",
                _ => "use * or an address of this machine as the host, or another port",
            };
            invalid_config(format!(
                "has the {key} {endpoint}, which cannot be bound: {error}; {advice}"
            ))
        })
    }

    /// The TCP port; `None` for a Unix socket.
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(listener) => Some(listener.local_addr().ok()?.port()),
            #[cfg(unix)]
            Self::Ipc { .. } => None,
        }
    }

    /// A listener of the current runtime. The endpoint stays bound when it is dropped.
    pub fn register(&self) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(listener) => {
                Listener::Tcp(tokio::net::TcpListener::from_std(listener.try_clone()?)?)
            }
            #[cfg(unix)]
            Self::Ipc { listener, .. } => {
                Listener::Ipc(tokio::net::UnixListener::from_std(listener.try_clone()?)?)
            }
        })
    }
}

pub(super) enum Listener {
    Tcp(tokio::net::TcpListener),
    #[cfg(unix)]
    Ipc(tokio::net::UnixListener),
}

impl Listener {
    /// The next connection, and its two addresses if it has any.
    pub async fn accept(&self) -> io::Result<(Box<dyn Connection>, Option<String>)> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                if let Err(error) = presence::set_options(&stream) {
                    // The peer has already closed the connection. The connection's task will detect that.
                    tracing::debug!(%error, "failed to set options of a KV event connection");
                }
                let peer = format!("{peer} to {}", stream.local_addr()?);
                (Box::new(stream), Some(peer))
            }
            #[cfg(unix)]
            Self::Ipc(listener) => (Box::new(listener.accept().await?.0), None),
        })
    }
}

fn bind_port(host: &str, port: u16) -> io::Result<BoundEndpoint> {
    let host = if host == "*" { "0.0.0.0" } else { host };
    let listener = std::net::TcpListener::bind((host, port))?;
    listener.set_nonblocking(true)?;
    Ok(BoundEndpoint::Tcp(listener))
}

/// The file of a Unix socket. Drop removes the file, unless another file has replaced it.
#[cfg(unix)]
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

#[cfg(unix)]
impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).ok() == Some(self.identity) {
            // An error leaves a stale file, which the next bind replaces.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(unix)]
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Binds a file with mode 0600, replacing a stale file of an earlier engine.
#[cfg(unix)]
fn bind_file(path: &Path) -> io::Result<BoundEndpoint> {
    use std::os::unix::fs::PermissionsExt;

    use socket2::{Domain, SockAddr, Socket, Type};

    /// The largest number of connections waiting for `accept`.
    const BACKLOG: i32 = 128;
    remove_stale(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile {
        path: path.to_owned(),
        identity: identity(path)?,
    };
    // No connection is possible before `listen`.
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(BoundEndpoint::Ipc {
        _file: file,
        listener: socket.into(),
    })
}

#[cfg(not(unix))]
fn bind_file(_: &Path) -> io::Result<BoundEndpoint> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "this system has no Unix sockets",
    ))
}

#[cfg(unix)]
fn remove_stale(path: &Path) -> io::Result<()> {
    match try_remove_stale(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(unix)]
fn try_remove_stale(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;

    use socket2::{Domain, SockAddr, Socket, Type};

    let found = std::fs::symlink_metadata(path)?;
    let in_use = |what| Err(io::Error::new(io::ErrorKind::AddrInUse, what));
    if !found.file_type().is_socket() {
        return in_use("a file that is not a socket has this path");
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A listener with a full backlog must not block this probe.
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Ok(()) => in_use("another process listens there"),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock => in_use("another process listens there"),
            io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
            _ => Err(error),
        },
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn bind(path: &Path) -> Result<BoundEndpoint, String> {
        let path = path.to_owned();
        let bound = BoundEndpoint::bind("endpoint", &Endpoint::Ipc { path });
        bound.map_err(|error| error.to_string())
    }

    #[test]
    fn a_socket_file_is_private_and_removed_with_its_listener() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kv");
        let bound = bind(&path).expect("the path is free");
        assert_eq!(bound.port(), None);
        let mode = fs::metadata(&path)
            .expect("the file exists")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        UnixStream::connect(&path).expect("it listens");
        let error = bind(&path).err().expect("it is in use");
        assert!(error.contains("another process listens there"), "{error}");
        assert!(
            error.contains("endpoint ipc:///") && error.contains("another path"),
            "{error}"
        );
        drop(bound);
        assert!(!path.exists());
    }

    #[test]
    fn only_a_stale_socket_file_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kv");
        drop(UnixListener::bind(&path).expect("the path is free"));
        assert!(path.exists(), "the file outlives its listener");
        let bound = bind(&path).expect("it is stale");
        // Another file at the path is kept when the listener closes.
        fs::remove_file(&path).expect("the file exists");
        fs::write(&path, "notes").expect("it can be written");
        drop(bound);
        assert_eq!(fs::read(&path).expect("the file exists"), b"notes");
        let error = bind(&path).err().expect("it is no socket");
        assert!(error.contains("not a socket"), "{error}");
        assert_eq!(fs::read(&path).expect("the file exists"), b"notes");
        let error = bind(&folder.path().join("none/kv")).err();
        assert!(error.expect("there is no such folder").contains("none/kv"));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_listener_with_a_full_backlog_is_in_use() {
        use socket2::{Domain, SockAddr, Socket, Type};

        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kv");
        let addr = SockAddr::unix(&path).expect("a short path");
        let socket = || {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
            socket.set_nonblocking(true).expect("an option");
            socket
        };
        let listener = socket();
        listener.bind(&addr).expect("the path is free");
        listener.listen(1).expect("it is bound");
        let mut waiting: Vec<_> = (0..16).map(|_| socket()).collect();
        waiting.retain(|socket| socket.connect(&addr).is_ok());
        assert!(waiting.len() < 16, "the backlog never filled");
        let error = bind(&path).err().expect("it is in use");
        assert!(error.contains("another process listens there"), "{error}");
        assert!(path.exists());
    }
}
