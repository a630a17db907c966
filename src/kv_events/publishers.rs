//! The publishers of an engine: one for each replica, with its feed, numbers, replay buffer and sockets.

use std::ops::Range;

use serde::Serialize;

use super::config::{Endpoint, KvEventsConfig, invalid_config};
use super::feed::ChangeFeed;
use super::listener::BoundEndpoint;
use super::publisher::{KvEventPublisher, Replica};
use super::subscription::{KvEventSubscription, SubscribeError, Subscriptions};
use souffleur_base::error::ConfigError;
use souffleur_base::ids::UnitId;
use souffleur_chaos::Chaos;
use souffleur_metrics::KvEventMetrics;
use souffleur_state::pool::pages::PageSize;
use souffleur_state::supervision::Incarnation;

/// The largest number of searches for free consecutive ports.
const MAX_SEARCHES: usize = 32;

/// The publishers of an engine. Dropping them stops their threads.
pub struct KvEventPublishers {
    /// By the ids of the units.
    publishers: Vec<KvEventPublisher>,
    outlet: KvEventsOutlet,
}

/// The endpoints of the first replica, and the parameters of all, as SGLang's `/server_info` reports them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KvEventsInfo {
    /// Always `zmq`.
    pub publisher: &'static str,
    /// The configured host, where `*` means all addresses of the machine; the whole endpoint for a Unix socket.
    pub endpoint_host: String,
    /// The port of the PUB socket; 0 for a Unix socket. The other replicas have the next ports.
    pub endpoint_port_base: u16,
    pub topic: String,
    pub block_size: usize,
    /// The number of replicas.
    pub dp_size: usize,
    /// The port of the ROUTER socket, if it is a TCP socket. The other replicas have the next ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay_endpoint_port_base: Option<u16>,
    /// The whole address of the ROUTER socket, if it is a Unix socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay_endpoint: Option<String>,
}

#[derive(Clone, Debug)]
pub struct KvEventsOutlet {
    pub info: KvEventsInfo,
    /// Subscribe readers in this process, each to a replica.
    subscriptions: Vec<Subscriptions>,
}

impl KvEventsOutlet {
    /// Subscribes to the events of an engine without replicas after this number; 0 for all kept batches.
    ///
    /// # Errors
    /// The engine has replicas or the largest number of readers, or its publisher has stopped.
    pub fn subscribe(&self, after: u64) -> Result<KvEventSubscription, SubscribeError> {
        match &self.subscriptions[..] {
            [only] => only.subscribe(after),
            all => Err(SubscribeError::Replicas(all.len())),
        }
    }

    /// Subscribes to the events of a replica after this number; 0 for all kept batches.
    ///
    /// # Errors
    /// There is no such replica, it has the largest number of readers, or its publisher has stopped.
    pub fn subscribe_to(
        &self,
        replica: usize,
        after: u64,
    ) -> Result<KvEventSubscription, SubscribeError> {
        let subscriptions = self.subscriptions.get(replica);
        let unknown = SubscribeError::NoReplica(replica);
        subscriptions.ok_or(unknown)?.subscribe(after)
    }
}

impl KvEventPublishers {
    /// Opens the sockets and starts the threads of all replicas.
    ///
    /// # Errors
    /// An endpoint cannot be bound, or a thread or its runtime cannot be started.
    pub fn start(
        chaos: &Chaos,
        config: &KvEventsConfig,
        page_size: PageSize,
        replicas: u32,
    ) -> Result<Self, ConfigError> {
        let subscribers = match config.endpoint.remote() {
            None => bind_each("endpoint", &config.endpoint, replicas)?,
            Some(_) => Vec::new(),
        };
        let replays = match &config.replay_endpoint {
            Some(endpoint) => bind_each("replay_endpoint", endpoint, replicas)?,
            None => Vec::new(),
        };
        let bases = [subscribers.first(), replays.first()];
        let info = info(config, bases.map(|bound| bound?.port()), replicas);
        let (mut subscribers, mut replays) = (subscribers.into_iter(), replays.into_iter());
        let mut publishers = Vec::with_capacity(replicas as usize);
        for rank in 0..replicas {
            let replica = Replica {
                rank,
                subscribers: subscribers.next(),
                replays: replays.next(),
                metrics: if replicas > 1 {
                    KvEventMetrics::register_replica(rank)
                } else {
                    KvEventMetrics::register()
                },
            };
            let config = config.of_replica(rank);
            let publisher = KvEventPublisher::start(chaos.clone(), config, page_size, replica)?;
            publishers.push(publisher);
        }
        log_start(&info);
        let subscriptions = publishers.iter().map(|it| it.subscriptions().clone());
        Ok(Self {
            outlet: KvEventsOutlet {
                info,
                subscriptions: subscriptions.collect(),
            },
            publishers,
        })
    }

    /// Creates the feed for the tree of a unit. Its first list of changes makes the unit's publisher ignore the feeds
    /// of the unit's earlier generations.
    ///
    /// # Panics
    /// If there is no such unit.
    pub fn feed(&self, at: Incarnation) -> ChangeFeed {
        self.publishers[at.unit.index()].feed(at.generation)
    }

    /// Publishes that a unit has no cache, as it is not started again.
    ///
    /// # Panics
    /// If there is no such unit.
    pub fn retire(&self, unit: UnitId) {
        let replica = unit.index();
        self.publishers[replica].retire(replica);
    }

    pub fn info(&self) -> &KvEventsInfo {
        &self.outlet.info
    }

    /// Access to the published events; may outlive the publishers.
    pub fn outlet(&self) -> &KvEventsOutlet {
        &self.outlet
    }
}

fn log_start(info: &KvEventsInfo) {
    tracing::info!(
        host = info.endpoint_host,
        port = info.endpoint_port_base,
        replay_port = info.replay_endpoint_port_base,
        block_size = info.block_size,
        "publishing KV events"
    );
}

/// `ports` are those of the first replica's two sockets.
fn info(
    config: &KvEventsConfig,
    [port, replay_port]: [Option<u16>; 2],
    replicas: u32,
) -> KvEventsInfo {
    let (endpoint_host, configured) = match &config.endpoint {
        Endpoint::Tcp { host, port } => (host.clone(), *port),
        ipc @ Endpoint::Ipc { .. } => (ipc.to_string(), 0),
    };
    let is_ipc = |endpoint: &&Endpoint| matches!(endpoint, Endpoint::Ipc { .. });
    KvEventsInfo {
        publisher: "zmq",
        endpoint_host,
        endpoint_port_base: port.unwrap_or(configured),
        topic: config.topic.clone(),
        block_size: config.block_size,
        dp_size: replicas as usize,
        replay_endpoint_port_base: replay_port,
        replay_endpoint: config
            .replay_endpoint
            .as_ref()
            .filter(is_ipc)
            .map(ToString::to_string),
    }
}

/// Binds the endpoints of all replicas. `key` is the configuration key, for the error.
fn bind_each(
    key: &str,
    endpoint: &Endpoint,
    replicas: u32,
) -> Result<Vec<BoundEndpoint>, ConfigError> {
    match endpoint {
        Endpoint::Tcp { host, port: 0 } if replicas > 1 => bind_free_ports(key, host, replicas),
        _ => bind_ranks(key, endpoint, 0..replicas).collect(),
    }
}

fn bind_ranks(
    key: &str,
    endpoint: &Endpoint,
    ranks: Range<u32>,
) -> impl Iterator<Item = Result<BoundEndpoint, ConfigError>> {
    ranks.map(move |rank| BoundEndpoint::bind(key, &endpoint.of_replica(rank)))
}

/// Binds consecutive ports that are free, so that readers find each replica by its number.
fn bind_free_ports(
    key: &str,
    host: &str,
    replicas: u32,
) -> Result<Vec<BoundEndpoint>, ConfigError> {
    let with_port = |port| Endpoint::Tcp {
        host: host.to_owned(),
        port,
    };
    let any = with_port(0);
    for _ in 0..MAX_SEARCHES {
        let first = BoundEndpoint::bind(key, &any)?;
        let endpoint = with_port(first.port().unwrap_or_default());
        let others = bind_ranks(key, &endpoint, 1..replicas);
        let bound: Result<Vec<_>, ConfigError> = std::iter::once(Ok(first)).chain(others).collect();
        if bound.is_ok() {
            return bound;
        }
    }
    Err(invalid_config(format!(
        "has the {key} {any}, but no {replicas} consecutive ports were free in {MAX_SEARCHES} searches; choose a port"
    )))
}
