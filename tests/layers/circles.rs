//! Tests that cycles of imports within a crate have at most a few files.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::imports_of_files::{Graph, Sources};
use super::{packages, root};

const MAX_FILES: usize = 5;

/// The files that `from` imports, directly or indirectly, each with the length of the shortest path of imports.
fn reached(graph: &Graph, from: &str) -> BTreeMap<String, usize> {
    let mut reached = BTreeMap::new();
    let mut next = VecDeque::from([(from.to_owned(), 0)]);
    while let Some((file, distance)) = next.pop_front() {
        for to in graph.get(&file).into_iter().flatten() {
            if !reached.contains_key(to) {
                reached.insert(to.clone(), distance + 1);
                next.push_back((to.clone(), distance + 1));
            }
        }
    }
    reached
}

/// The strongly connected components that have more than `max_files` files.
fn cycles(graph: &Graph, max_files: usize) -> BTreeSet<BTreeSet<String>> {
    let all: BTreeMap<&String, BTreeMap<String, usize>> = graph
        .keys()
        .map(|file| (file, reached(graph, file)))
        .collect();
    let cycle = |file: &String| -> BTreeSet<String> {
        let others = all[file].keys();
        let back = |other: &&String| all.get(other).is_some_and(|there| there.contains_key(file));
        others.filter(back).cloned().collect()
    };
    let found = graph.keys().map(cycle);
    found.filter(|cycle| cycle.len() > max_files).collect()
}

#[test]
fn few_files_import_each_other() {
    let mut n_files = 0;
    for src in packages().into_values().chain([root().join("src")]) {
        let graph = Sources::read(&src).graph();
        n_files += graph.len();
        let found = cycles(&graph, MAX_FILES);
        assert!(found.is_empty(), "files that import each other: {found:#?}");
    }
    assert!(n_files > 300, "only {n_files} files have imports");
}

#[test]
fn an_added_import_closes_a_cycle() {
    let mut sources = Sources::read(&root().join("src/server"));
    let graph = sources.graph();
    let far = |file: &String| {
        let mut reached = reached(&graph, file).into_iter();
        let far = reached.find(|(_, distance)| *distance > MAX_FILES);
        far.map(|(to, _)| (to, file.clone()))
    };
    let (from, to) = graph.keys().find_map(far).expect("imports are deep");
    sources.add_import(&from, &to);
    let found = cycles(&sources.graph(), MAX_FILES);
    let holds = |cycle: &BTreeSet<String>| cycle.contains(&from) && cycle.contains(&to);
    assert!(found.iter().any(holds), "{from} imports {to}: {found:?}");
}
