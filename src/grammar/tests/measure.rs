use super::schema_list::schemas;
use super::vocabularies::large;
use super::*;
use crate::state::sampling::TokenMask;
use std::time::{Duration, Instant};

#[test]
fn measure() {
    let vocabulary = large();
    let compiler = compiler(vocabulary);
    let t = Instant::now();
    let g = super::compile(&compiler, super::schema(serde_json::json!({"type":"null"}))).unwrap();
    eprintln!("MEASURE factory + first grammar {:?}", t.elapsed());
    drop(g);
    let mut compiles = Vec::new();
    let mut masks: Vec<Duration> = Vec::new();
    let mut commits: Vec<Duration> = Vec::new();
    let mut begins: Vec<Duration> = Vec::new();
    for (at, s) in schemas().into_iter().enumerate() {
        let t = Instant::now();
        let g = super::compile(&compiler, super::schema(s)).unwrap();
        compiles.push(t.elapsed());
        for seed in 0..3 {
            let w = super::walk::walk(g.as_ref(), vocabulary, seed * 100 + at as u64);
            let t = Instant::now();
            let mut state = g.begin();
            begins.push(t.elapsed());
            let mut mask = TokenMask::none(vocabulary.size);
            for &token in &w.tokens {
                let t = Instant::now();
                state.mask(&mut mask).unwrap();
                masks.push(t.elapsed());
                let t = Instant::now();
                state.commit(token).unwrap();
                commits.push(t.elapsed());
            }
        }
    }
    for (name, mut v) in [
        ("compile", compiles),
        ("mask", masks),
        ("commit", commits),
        ("begin", begins),
    ] {
        v.sort();
        let sum: Duration = v.iter().sum();
        eprintln!(
            "MEASURE {name}: n {} mean {:?} p50 {:?} p99 {:?} max {:?}",
            v.len(),
            sum / v.len() as u32,
            v[v.len() / 2],
            v[v.len() * 99 / 100],
            v[v.len() - 1]
        );
    }
}
