//! Sends a request to a server over a new HTTP/1.1 connection, with TLS for an https address.

use std::error::Error;
use std::fmt::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::rt;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use souffleur::hub;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

#[derive(Clone)]
pub struct Connector {
    /// Set for `https` addresses.
    tls: Option<TlsConnector>,
}

impl Connector {
    /// Prepares TLS for an `https` address, with the root certificates that `souffleur::hub` trusts.
    pub fn new(uri: &Uri) -> Result<Self, String> {
        let is_secure = uri.scheme_str() == Some("https");
        let tls = is_secure.then(tls).transpose()?;
        Ok(Self { tls })
    }

    /// Sends a request to an absolute URL. Returns the response, whose body is streamed.
    pub async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<ResponseBody>, String> {
        let uri = request.uri().clone();
        let opened = rt::time::timeout(CONNECT_TIMEOUT, self.open(&uri)).await;
        let stream = opened.map_err(|_| {
            let limit_s = CONNECT_TIMEOUT.as_secs();
            format!("no connection within {limit_s} s")
        })??;
        let established = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = established.map_err(|error| explained(&error))?;
        let connection = Connection(rt::spawn(async move {
            // Errors are reported by the request and the body.
            let _ = connection.await;
        }));
        let headers = request.headers_mut();
        headers.insert(HOST, host_header(&uri)?);
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        *request.uri_mut() = path_of(&uri)?;
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| explained(&error))?;
        Ok(response.map(|body| ResponseBody { body, connection }))
    }

    async fn open(&self, uri: &Uri) -> Result<Box<dyn Stream>, String> {
        let host = uri.host().ok_or("the URL has no host")?;
        let port = uri
            .port_u16()
            .unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let connected = TcpStream::connect(format!("{host}:{port}")).await;
        let stream = connected.map_err(|error| format!("failed to connect: {error}"))?;
        stream
            .set_nodelay(true)
            .map_err(|error| error.to_string())?;
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(name.to_owned());
        let name = name.map_err(|_| format!("{host:?} is not a valid host name"))?;
        let secured = tls.connect(name, stream).await;
        Ok(Box::new(secured.map_err(|error| {
            format!("TLS handshake with {host} failed: {}", explained(&error))
        })?))
    }
}

/// The task that drives the connection; aborted on drop.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The body of a response. Dropping it closes the connection, so that the server cancels the request.
pub struct ResponseBody {
    body: Incoming,
    #[expect(dead_code, reason = "its drop closes the connection")]
    connection: Connection,
}

impl ResponseBody {
    pub async fn read(self, limit_bytes: usize) -> Result<Bytes, String> {
        let read = Limited::new(self, limit_bytes).collect().await;
        read.map(|body| body.to_bytes())
            .map_err(|error| explained(&*error))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

pub fn explained(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let _ = write!(text, ": {source}");
        next = source.source();
    }
    text
}

/// The host and the port of a URL, without user name and password.
fn host_header(uri: &Uri) -> Result<HeaderValue, String> {
    let host = uri.host().unwrap_or_default();
    let text = match uri.port_u16() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    };
    HeaderValue::try_from(text).map_err(|error| error.to_string())
}

/// The path and query of a URL, for the request line.
fn path_of(uri: &Uri) -> Result<Uri, String> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    path.parse()
        .map_err(|error: hyper::http::uri::InvalidUri| error.to_string())
}

fn tls() -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    let trusted = hub::trusted_roots().into_iter().map(CertificateDer::from);
    roots.add_parsable_certificates(trusted);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    let provider = Arc::new(ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| error.to_string())?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
