//! Requests whose images are being fetched while their connection serves others.

use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;

pub(super) struct Fetches<T>(FuturesUnordered<LocalBoxFuture<'static, T>>);

impl<T> Default for Fetches<T> {
    fn default() -> Self {
        Self(FuturesUnordered::new())
    }
}

impl<T> Fetches<T> {
    pub(super) fn add(&self, fetch: impl Future<Output = T> + 'static) {
        self.0.push(Box::pin(fetch));
    }

    /// The next result. Waits forever if nothing is fetched.
    pub(super) async fn next(&mut self) -> T {
        match self.0.next().await {
            Some(fetched) => fetched,
            None => std::future::pending().await,
        }
    }
}
