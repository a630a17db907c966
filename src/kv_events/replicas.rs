//! The endpoints of replicas. The replica with the number R has the configured ports plus R, as in SGLang and vLLM, and
//! Unix sockets whose paths end with `_dpR`, as their names of `inproc://` do.

use super::config::{Endpoint, KvEventsConfig, MAX_IPC_PATH_BYTES, is_wildcard};

impl Endpoint {
    /// The endpoint of a replica. Port 0 means any free port for each.
    pub(super) fn of_replica(&self, rank: u32) -> Self {
        match self {
            Self::Tcp { host, port } if *port > 0 => Self::Tcp {
                host: host.clone(),
                port: u16::try_from(port_of(*port, rank)).unwrap_or(u16::MAX),
            },
            Self::Ipc { path } if rank > 0 => {
                let mut path = path.clone().into_os_string();
                path.push(format!("_dp{rank}"));
                Self::Ipc { path: path.into() }
            }
            Self::Tcp { .. } | Self::Ipc { .. } => self.clone(),
        }
    }

    fn check_replicas(&self, key: &str, replicas: u32) -> Result<(), String> {
        let last = replicas.saturating_sub(1);
        if let Self::Tcp { port, .. } = self {
            let (largest, last_port) = (u32::from(u16::MAX), port_of(*port, last));
            if *port > 0 && last_port > largest {
                return Err(format!(
                    "{key} is \"{self}\", but dp_size is {replicas}: each replica has the next port, and the last one \
                     would have {last_port}: choose a port of at most {}",
                    largest.saturating_sub(last)
                ));
            }
        }
        if let Self::Ipc { path } = self.of_replica(last) {
            let n_bytes = path.as_os_str().len();
            if n_bytes > MAX_IPC_PATH_BYTES {
                return Err(format!(
                    "{key} is \"{self}\", but dp_size is {replicas}: the last replica's path, {}, has {n_bytes} bytes, \
                     the limit is {MAX_IPC_PATH_BYTES}: shorten it",
                    path.display()
                ));
            }
        }
        Ok(())
    }

    /// Whether only one of two bound endpoints can exist. A bound TCP endpoint's host counts as all addresses.
    fn clashes_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tcp { port, .. }, Self::Tcp { port: other, .. }) => *port > 0 && port == other,
            (Self::Ipc { path }, Self::Ipc { path: other }) => path == other,
            (Self::Tcp { .. }, Self::Ipc { .. }) | (Self::Ipc { .. }, Self::Tcp { .. }) => false,
        }
    }

    /// Whether one of the replicas needs this port of this host.
    fn needs_port(&self, (host, port): (&str, u16), replicas: u32) -> bool {
        let Self::Tcp {
            host: own,
            port: first,
        } = self
        else {
            return false;
        };
        let has_common_address = own == host || is_wildcard(own) || is_wildcard(host);
        let ports = u32::from(*first)..port_of(*first, replicas);
        has_common_address && *first > 0 && ports.contains(&u32::from(port))
    }
}

fn port_of(first: u16, rank: u32) -> u32 {
    u32::from(first).saturating_add(rank)
}

impl KvEventsConfig {
    /// The settings of a replica's publisher.
    pub(super) fn of_replica(&self, rank: u32) -> Self {
        let replay = self.replay_endpoint.as_ref();
        Self {
            endpoint: self.endpoint.of_replica(rank),
            replay_endpoint: replay.map(|endpoint| endpoint.of_replica(rank)),
            ..self.clone()
        }
    }

    /// Checks that every replica can have its endpoints.
    ///
    /// # Errors
    /// A sentence that names the keys, their values and a remedy.
    pub fn check_replicas(&self, replicas: u32) -> Result<(), String> {
        self.endpoint.check_replicas("endpoint", replicas)?;
        let Some(replay) = &self.replay_endpoint else {
            return Ok(());
        };
        replay.check_replicas("replay_endpoint", replicas)?;
        if self.endpoint.remote().is_some() {
            return Ok(());
        }
        let replays: Vec<Endpoint> = (0..replicas).map(|rank| replay.of_replica(rank)).collect();
        let mut endpoints = (0..replicas).map(|rank| self.endpoint.of_replica(rank));
        let is_needed_twice =
            |endpoint: &Endpoint| replays.iter().any(|replay| replay.clashes_with(endpoint));
        match endpoints.find(is_needed_twice) {
            None => Ok(()),
            Some(twice) => Err(format!(
                "endpoint is \"{}\" and replay_endpoint is \"{replay}\", and dp_size is {replicas}: both need {twice}: \
                 choose ports that are at least {replicas} apart, or other paths",
                self.endpoint
            )),
        }
    }

    /// The key of the endpoint that needs this port of this host for one of the replicas, if one does.
    pub fn key_of_port(&self, address: (&str, u16), replicas: u32) -> Option<&'static str> {
        let needs = |endpoint: &Endpoint| endpoint.needs_port(address, replicas);
        if self.endpoint.remote().is_none() && needs(&self.endpoint) {
            return Some("endpoint");
        }
        let replay = self.replay_endpoint.as_ref();
        replay
            .filter(|replay| needs(replay))
            .map(|_| "replay_endpoint")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use souffleur_state::pool::pages::PageSize;

    fn config(endpoint: &str, replay_endpoint: &str) -> KvEventsConfig {
        let json = json!({
            "publisher": "zmq",
            "endpoint": endpoint,
            "replay_endpoint": replay_endpoint,
        });
        let page_size = PageSize::new(16).expect("positive");
        let config = KvEventsConfig::parse(&json.to_string(), page_size).expect("valid");
        config.expect("KV events are on")
    }

    #[test]
    fn a_replica_has_the_next_port_or_a_path_with_its_number() {
        for (endpoint, expected) in [
            ("tcp://*:5557", "tcp://*:5559"),
            ("tcp://router:0", "tcp://router:0"),
            ("ipc:///run/kv", "ipc:///run/kv_dp2"),
        ] {
            let config = config(endpoint, "tcp://127.0.0.1:6000");
            let first = config.of_replica(0);
            assert_eq!(first, config);
            let third = config.of_replica(2);
            assert_eq!(third.endpoint.to_string(), expected);
            let replay = third.replay_endpoint.expect("it is configured");
            assert_eq!(replay.to_string(), "tcp://127.0.0.1:6002");
        }
    }

    #[test]
    fn replicas_whose_endpoints_do_not_exist_or_clash_are_refused() {
        let path = format!("ipc:///{}", "p".repeat(96));
        for (replicas, endpoint, replay, parts) in [
            (
                3,
                "tcp://*:65534",
                "",
                &["endpoint is \"tcp://*:65534\"", "65536", "at most 65533"][..],
            ),
            (
                2,
                "tcp://*:5557",
                "tcp://*:65535",
                &["replay_endpoint is \"tcp://*:65535\"", "at most 65534"],
            ),
            (
                2,
                "tcp://*:5557",
                "tcp://*:5558",
                &[
                    "\"tcp://*:5557\"",
                    "\"tcp://*:5558\"",
                    "both need tcp://*:5558",
                ],
            ),
            (
                1,
                "tcp://*:5557",
                "tcp://127.0.0.1:5557",
                &["both need tcp://*:5557"],
            ),
            (2, path.as_str(), "", &["_dp1", "101 bytes", "shorten"]),
            (
                2,
                "ipc:///run/kv",
                "ipc:///run/kv_dp1",
                &["both need ipc:///run/kv_dp1"],
            ),
        ] {
            let config = config(endpoint, replay);
            let refused = config.check_replicas(replicas).expect_err(endpoint);
            assert!(refused.contains("dp_size is"), "{refused}");
            for part in parts {
                assert!(refused.contains(part), "{refused} lacks {part}");
            }
        }
    }

    #[test]
    fn replicas_with_endpoints_of_their_own_are_accepted() {
        for (replicas, endpoint, replay) in [
            (1, "tcp://*:65535", "tcp://*:65534"),
            (2, "tcp://*:65534", "tcp://*:65532"),
            (64, "tcp://*:0", "tcp://*:0"),
            // The publisher connects to its subscribers, so it needs these ports on their machine.
            (2, "tcp://router:5557", "tcp://*:5558"),
            (3, "ipc:///run/kv", "ipc:///run/kv_replay"),
            (2, "ipc:///run/kv", "tcp://*:5557"),
        ] {
            let accepted = config(endpoint, replay).check_replicas(replicas);
            assert_eq!(accepted, Ok(()), "{endpoint} {replay}");
        }
    }

    #[test]
    fn a_port_is_needed_by_the_endpoint_of_a_replica_that_has_it() {
        let config = config("tcp://*:5557", "tcp://127.0.0.1:6000");
        for (replicas, host, port, expected) in [
            (1, "127.0.0.1", 5557, Some("endpoint")),
            (1, "127.0.0.1", 5558, None),
            (2, "127.0.0.1", 5558, Some("endpoint")),
            (2, "127.0.0.1", 6001, Some("replay_endpoint")),
            (2, "0.0.0.0", 6001, Some("replay_endpoint")),
            (2, "127.0.0.2", 6001, None),
            (2, "127.0.0.1", 5559, None),
        ] {
            let key = config.key_of_port((host, port), replicas);
            assert_eq!(key, expected, "{host}:{port} with {replicas}");
        }
    }
}
