//! The tree as a viewer draws it: applies the events, and checks the sums of the protocol.

use std::collections::BTreeMap;

use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub parent: Option<u64>,
    pub tokens: u64,
    pub below: u64,
    pub locks: u64,
    pub pin: u64,
    pub namespace: i64,
    pub folded: u64,
    pub folded_tokens: u64,
}

#[derive(Debug, Default)]
pub struct Drawing {
    pub rows: BTreeMap<u64, Row>,
    /// Nodes and tokens.
    pub total: (u64, u64),
    pub rest: (u64, u64),
    /// The numbers of events of each kind since the start.
    pub kinds: BTreeMap<String, usize>,
    pub snapshots: usize,
    pub deltas: usize,
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

fn sums(value: &Value) -> (u64, u64) {
    (number(&value["nodes"]), number(&value["tokens"]))
}

fn list(value: &Value) -> &Vec<Value> {
    value
        .as_array()
        .unwrap_or_else(|| panic!("{value} is no list"))
}

impl Drawing {
    #[track_caller]
    pub fn take(&mut self, tree: &Value) {
        if tree["kind"] == "snapshot" {
            self.rows.clear();
            self.snapshots += 1;
        } else {
            assert_eq!(tree["kind"], "delta");
            self.deltas += 1;
        }
        for id in list(&tree["gone"]) {
            assert!(self.rows.remove(&number(id)).is_some(), "{id} has no row");
        }
        for row in list(&tree["set"]) {
            let columns = list(row);
            assert_eq!(columns.len(), 9, "{row}");
            let at = |index: usize| number(&columns[index]);
            let row = Row {
                parent: columns[1].as_u64(),
                tokens: at(2),
                below: at(3),
                locks: at(4),
                pin: at(5),
                namespace: columns[6].as_i64().expect("a number"),
                folded: at(7),
                folded_tokens: at(8),
            };
            self.rows.insert(at(0), row);
        }
        (self.total, self.rest) = (sums(&tree["total"]), sums(&tree["rest"]));
        let events = list(&tree["events"]);
        assert!(events.len() <= 128);
        for event in events {
            let kind = event[0].as_str().expect("a kind");
            *self.kinds.entry(kind.to_owned()).or_default() += 1;
        }
        self.check();
    }

    fn check(&self) {
        assert!(self.rows.len() <= 400);
        let mut below: BTreeMap<u64, u64> = BTreeMap::new();
        for row in self.rows.values() {
            if let Some(parent) = row.parent {
                assert!(
                    self.rows.contains_key(&parent),
                    "the parent of a row is a row"
                );
                *below.entry(parent).or_default() += row.tokens + row.below;
            }
        }
        for (id, row) in &self.rows {
            let drawn = below.get(id).copied().unwrap_or(0);
            assert_eq!(row.below, drawn + row.folded_tokens, "{id}: {row:?}");
        }
        let rows = self.rows.values();
        let tokens: u64 = rows.clone().map(|row| row.tokens + row.folded_tokens).sum();
        let nodes: u64 = rows.map(|row| 1 + row.folded).sum();
        let drawn = (nodes + self.rest.0, tokens + self.rest.1);
        assert_eq!(drawn, self.total);
    }
}
