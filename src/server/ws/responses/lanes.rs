//! Queues a connection's requests in lanes: requests of one lane run one after the other, lanes run in parallel.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::fields::Fields;
use souffleur_base::field::Cut;

const MAX_NAME_BYTES: usize = 256;

/// A lane's name; the default lane has none.
pub(super) type LaneName = Option<Arc<str>>;

/// Waiting requests of type `W`, and running ones of type `R`.
pub(super) struct Lanes<W, R> {
    lanes: FxHashMap<LaneName, Lane<W, R>>,
    /// Lanes with a waiting request and no running one, in the order in which they will be served.
    ready: VecDeque<LaneName>,
    n_running: usize,
    n_requests: usize,
    max_running: usize,
    max_names: usize,
    max_requests: usize,
}

struct Lane<W, R> {
    waiting: VecDeque<W>,
    running: Option<R>,
    /// The lane is in [`Lanes::ready`].
    is_ready: bool,
}

pub(super) fn name(fields: &mut Fields) -> Result<LaneName, ApiError> {
    const NAME: &str = "stream_id";
    let Some(name) = fields.text(NAME) else {
        return match fields.peek(NAME) {
            None => Ok(None),
            Some(_) => Err(ApiError::invalid_stream_id(
                "stream_id is not a string: send a string, or no stream_id",
            )),
        };
    };
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_valid) {
        Ok(Some(name.into()))
    } else {
        let text = format!(
            "stream_id is {}, must be 1 to {MAX_NAME_BYTES} letters, digits, _, . or -",
            Cut(&name)
        );
        Err(ApiError::invalid_stream_id(&text))
    }
}

impl<W, R> Lanes<W, R> {
    pub(super) fn new(config: &ServerConfig) -> Self {
        Self {
            lanes: FxHashMap::default(),
            ready: VecDeque::new(),
            n_running: 0,
            n_requests: 0,
            max_running: config.ws_active_lanes,
            max_names: config.ws_lanes,
            max_requests: config.ws_max_requests,
        }
    }

    /// Requests that wait or run.
    pub(super) fn in_flight(&self) -> usize {
        self.n_requests
    }

    /// Refuses a request beyond the limits. A named lane counts as long as the connection lasts.
    pub(super) fn check(&self, name: &LaneName) -> Result<(), ApiError> {
        if self.n_requests >= self.max_requests {
            return Err(ApiError::too_many_on_websocket(self.max_requests));
        }
        let named = self.lanes.keys().filter(|name| name.is_some()).count();
        let is_new = name.is_some() && !self.lanes.contains_key(name);
        if is_new && named >= self.max_names {
            Err(ApiError::too_many_lanes(self.max_names))
        } else {
            Ok(())
        }
    }

    pub(super) fn add(&mut self, name: LaneName, request: W) {
        self.n_requests += 1;
        let lane = self.lanes.entry(name.clone());
        let lane = lane.or_insert_with(|| Lane {
            waiting: VecDeque::new(),
            running: None,
            is_ready: false,
        });
        lane.waiting.push_back(request);
        if lane.running.is_none() && !lane.is_ready {
            lane.is_ready = true;
            self.ready.push_back(name);
        }
    }

    /// Takes the next request. It counts as ended unless `started` is called for it.
    pub(super) fn next(&mut self) -> Option<(LaneName, W)> {
        if self.n_running >= self.max_running {
            return None;
        }
        let name = self.ready.pop_front()?;
        let lane = self.lanes.get_mut(&name)?;
        let request = lane.waiting.pop_front()?;
        lane.is_ready = !lane.waiting.is_empty();
        if lane.is_ready {
            self.ready.push_back(name.clone());
        }
        self.n_requests -= 1;
        Some((name, request))
    }

    pub(super) fn started(&mut self, name: &LaneName, running: R) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        lane.running = Some(running);
        lane.is_ready = false;
        self.ready.retain(|other| other != name);
        self.n_running += 1;
        self.n_requests += 1;
    }

    pub(super) fn running(&mut self, name: &LaneName) -> Option<&mut R> {
        self.lanes.get_mut(name)?.running.as_mut()
    }

    pub(super) fn ended(&mut self, name: &LaneName) {
        let Some(lane) = self.lanes.get_mut(name) else {
            return;
        };
        if lane.running.take().is_none() {
            return;
        }
        self.n_running -= 1;
        self.n_requests -= 1;
        if !lane.waiting.is_empty() {
            lane.is_ready = true;
            self.ready.push_back(name.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(running: usize, names: usize) -> Lanes<u32, ()> {
        Lanes::new(&ServerConfig {
            ws_active_lanes: running,
            ws_lanes: names,
            ws_max_requests: 6,
            ..ServerConfig::default()
        })
    }

    fn lane(name: &str) -> LaneName {
        Some(name.into())
    }

    #[test]
    fn a_lane_runs_one_request_at_a_time_and_running_lanes_are_bounded() {
        let mut lanes = lanes(2, 9);
        for (name, request) in [("a", 1), ("a", 2), ("b", 3), ("c", 4)] {
            lanes.add(lane(name), request);
        }
        assert_eq!(lanes.next(), Some((lane("a"), 1)));
        lanes.started(&lane("a"), ());
        assert_eq!(lanes.next(), Some((lane("b"), 3)));
        lanes.started(&lane("b"), ());
        assert_eq!(lanes.next(), None, "two lanes run");
        lanes.ended(&lane("b"));
        assert_eq!(lanes.next(), Some((lane("c"), 4)));
        lanes.started(&lane("c"), ());
        lanes.ended(&lane("a"));
        assert_eq!(lanes.next(), Some((lane("a"), 2)));
        lanes.started(&lane("a"), ());
        assert_eq!(lanes.in_flight(), 2);
        for name in ["a", "c", "a"] {
            lanes.ended(&lane(name));
        }
        assert_eq!((lanes.in_flight(), lanes.next()), (0, None));
    }

    #[test]
    fn a_request_that_is_not_started_does_not_block_its_lane() {
        let mut lanes = lanes(1, 9);
        lanes.add(None, 1);
        lanes.add(None, 2);
        assert_eq!(lanes.next(), Some((None, 1)));
        assert_eq!(lanes.next(), Some((None, 2)));
        assert_eq!((lanes.in_flight(), lanes.next()), (0, None));
        lanes.add(None, 3);
        assert_eq!(lanes.next(), Some((None, 3)));
    }

    #[test]
    fn names_and_requests_are_bounded() {
        let mut lanes = lanes(1, 2);
        lanes.add(lane("a"), 1);
        lanes.add(lane("b"), 2);
        assert!(lanes.check(&lane("c")).is_err());
        assert!(lanes.check(&lane("a")).is_ok() && lanes.check(&None).is_ok());
        (0..4).for_each(|request| lanes.add(None, request));
        assert!(lanes.check(&lane("a")).is_err());
    }
}
