//! The page's requests, and its policy.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::cdp::browser;
use crate::page::{Page, View};
use crate::world::World;

/// Bytes that the page may have on the wire, headers included.
const MAX_BYTES: f64 = 100_000.0;
const FILES: [&str; 5] = [
    "/",
    "/console/console.js",
    "/console/icon.svg",
    "/console/marked.js",
    "/console/style.css",
];

#[test]
fn the_page_is_five_small_files_and_asks_only_its_server() {
    let Some(browser) = browser() else { return };
    let world = World::scripted(&[("", "A line.")]);
    let origin = format!("http://{}", world.addr);
    let page = Page::console(browser, origin.clone(), View::default());
    page.ask("A question");
    let rid = page.answer()["run"]["rid"].clone();
    let requests = page.requests();
    let path = |address: &str| address.strip_prefix(&origin).unwrap_or(address).to_owned();
    let asked: BTreeSet<String> = requests.values().map(|address| path(address)).collect();
    let report = format!("/debug/prefix/{}", rid.as_str().expect("a text"));
    let others = [
        "/server_info",
        "/console/live?hz=4",
        "/v1/chat/completions",
        &report,
    ];
    let expected = FILES.into_iter().chain(others).map(str::to_owned);
    assert_eq!(asked, expected.collect::<BTreeSet<String>>());

    let mut sizes = BTreeMap::new();
    for end in page.all("Network.loadingFinished") {
        let id = end["requestId"].as_str().expect("an id");
        let path = requests.get(id).map(|address| path(address));
        let bytes = end["encodedDataLength"].as_f64().expect("a number");
        *sizes.entry(path.unwrap_or_default()).or_insert(0.0) += bytes;
    }
    sizes.retain(|path, _| FILES.contains(&path.as_str()));
    assert_eq!(sizes.len(), FILES.len(), "{sizes:?}");
    assert!(sizes.values().all(|&bytes| bytes > 0.0), "{sizes:?}");
    let sum: f64 = sizes.values().sum();
    assert!(sum <= MAX_BYTES, "{sum}: {sizes:?}");
    page.check_quiet(&[]);
}

/// Each attempt, and the directive of the policy that refuses it.
const ATTEMPTS: [(&str, &str); 10] = [
    (
        "Function('globalThis.ran = 1')()",
        "require-trusted-types-for",
    ),
    (
        "document.body.innerHTML = '<b>x</b>'",
        "require-trusted-types-for",
    ),
    (
        "add('script', { src: '//localhost:9/x.js' })",
        "require-trusted-types-for",
    ),
    (
        "add('script', { text: 'globalThis.ran = 1' })",
        "require-trusted-types-for",
    ),
    (
        "add('div').setAttribute('onclick', 'globalThis.ran = 1')",
        "require-trusted-types-for",
    ),
    (
        "add('div').setAttribute('style', 'color: red')",
        "style-src-attr",
    ),
    ("add('img', { src: '//localhost:9/x.png' })", "img-src"),
    ("add('iframe', { src: '//localhost:9/' })", "frame-src"),
    (
        "add('form', { action: '/x', method: 'post' }).submit()",
        "form-action",
    ),
    ("fetch('//localhost:9/').catch(() => {})", "connect-src"),
];

#[test]
fn the_policy_refuses_what_the_page_never_does() {
    let Some(browser) = browser() else { return };
    let world = World::scripted(&[]);
    let page = Page::console(browser, format!("http://{}", world.addr), View::default());
    page.check_quiet(&[]);
    for (attempt, directive) in ATTEMPTS {
        let refused = page.eval(&format!(
            "new Promise((done) => {{
                const refused = (event) => done(event.effectiveDirective);
                document.addEventListener('securitypolicyviolation', refused, {{ once: true }});
                const add = (tag, fields = {{}}) => {{
                    const node = Object.assign(document.createElement(tag), fields);
                    document.body.append(node);
                    return node;
                }};
                try {{ {attempt}; }} catch {{ /* The event says it. */ }}
            }})"
        ));
        assert_eq!(refused, json!(directive), "{attempt}");
    }
    assert_eq!(page.eval("globalThis.ran ?? null"), json!(null));
    let problems = page.problems();
    assert!(problems.len() >= ATTEMPTS.len(), "{problems:#?}");
}
