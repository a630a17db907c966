//! The errors of media that are refused or not reached.

use std::net::IpAddr;
use std::time::Duration;

/// A text or a URL that gives no bytes. Texts name hosts and never whole URLs, which may be signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MediaError {
    /// A `data:` URL without a comma.
    #[error("the data URL has no comma: send data:image/png;base64,...")]
    NoData,
    /// Text that is not base64.
    #[error("the base64 text is invalid: {reason}")]
    Base64 {
        /// The decoder's reason.
        reason: String,
    },
    /// More bytes than the limit.
    #[error("it has {bytes} bytes, and the limit is {limit}: send a smaller file")]
    TooLarge {
        /// The size, or a lower bound if the sender does not say it.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A URL that the policy refuses for its form.
    #[error("the URL {reason}")]
    BadUrl {
        /// Continues the sentence, with the remedy.
        reason: String,
    },
    /// An entry of the allowed domains that is not a host.
    #[error("{entry:?} is not a host name: {reason}")]
    BadDomain {
        /// The entry.
        entry: String,
        /// The remedy.
        reason: &'static str,
    },
    /// A host that is not listed.
    #[error(
        "the host {host} is not allowed: send the image as a data: URL, or start the server with --allowed-media-domains"
    )]
    NotAllowed {
        /// The host.
        host: String,
    },
    /// A host with an address that is not global.
    #[error(
        "the host {host} has the address {address}, which is {kind}: only global addresses are fetched from, even of hosts in --allowed-media-domains; send the image as a data: URL"
    )]
    NotGlobal {
        /// The host.
        host: String,
        /// One of its addresses.
        address: IpAddr,
        /// The kind of the address.
        kind: &'static str,
    },
    /// The host's name cannot be resolved.
    #[error("the host {host} cannot be resolved: {reason}")]
    Unresolved {
        /// The host.
        host: String,
        /// The resolver's reason.
        reason: String,
    },
    /// The host answered with another status than 200.
    #[error(
        "{host} answered with status {status}, must be 200: {}",
        remedy(.status)
    )]
    Status {
        /// The host.
        host: String,
        /// HTTP's status.
        status: u16,
    },
    /// The connection failed.
    #[error("fetching from {host} failed: {reason}")]
    Failed {
        /// The host.
        host: String,
        /// The reason.
        reason: String,
    },
    /// The time limit of a fetch, waiting for others included, has passed.
    #[error("fetching from {host} did not end within {} s, the limit with the wait for other fetches: try again later, or send the image as a data: URL", .limit.as_secs())]
    TimedOut {
        /// The host.
        host: String,
        /// The limit.
        limit: Duration,
    },
}

impl MediaError {
    /// A stable name for responses and metric labels.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoData | Self::Base64 { .. } => "media_encoding",
            Self::TooLarge { .. } => "media_too_large",
            Self::BadUrl { .. } | Self::BadDomain { .. } => "media_url",
            Self::NotAllowed { .. } => "media_host_not_allowed",
            Self::NotGlobal { .. } => "media_address_not_global",
            Self::Unresolved { .. } => "media_host_unresolved",
            Self::Status { .. } => "media_status",
            Self::Failed { .. } => "media_fetch_failed",
            Self::TimedOut { .. } => "media_fetch_timed_out",
        }
    }

    /// Whether the media are refused for their size, as by HTTP's status 413.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::TooLarge { .. })
    }

    pub(crate) fn bad_url(reason: impl Into<String>) -> Self {
        Self::BadUrl {
            reason: reason.into(),
        }
    }
}

fn remedy(status: &u16) -> &'static str {
    match status {
        300..400 => "redirects are not followed, send the final URL",
        _ => "check the URL, or send the image as a data: URL",
    }
}
