//! Keys stay in the tab: they are in no address, no lasting storage, no export and no log.

use tempfile::TempDir;

use crate::binary::Binary;
use crate::cdp::browser;
use crate::console::NO_KEY;
use crate::page::{Page, View};

const KEY: &str = "sk-key-of-a-user";
const ADMIN_KEY: &str = "sk-key-of-the-admin";
/// A part of both keys.
const MARK: &str = "sk-key-of";

/// Everything that outlasts the tab, as a text.
const LASTING: &str = "(async () => {
    const kept = [document.cookie, JSON.stringify({ ...localStorage }), ...(await caches.keys())];
    for (const { name } of await indexedDB.databases()) {
        const asked = indexedDB.open(name);
        const database = await new Promise((done) => (asked.onsuccess = () => done(asked.result)));
        for (const table of database.objectStoreNames) {
            const all = database.transaction(table).objectStore(table).getAll();
            kept.push(await new Promise((done) => (all.onsuccess = () => done(JSON.stringify(all.result)))));
        }
        database.close();
    }
    return kept.join('\\n');
})()";

/// Enters a wrong key, then the right ones.
fn enter_keys(page: &Page) {
    page.visit_console();
    page.until("document.activeElement.id === 'key-field'");
    page.write("sk-key-of-another");
    page.press("Enter");
    page.until("document.getElementById('notice-key')");
    page.push("#notice-key button");
    page.eval("document.activeElement.select()");
    page.write(KEY);
    page.press("Tab");
    page.write(ADMIN_KEY);
    page.press("Enter");
    page.until("souffleur.live.frame && souffleur.live.hello.is_admin");
}

/// Checks that both keys are in headers, and in no address.
fn check_sent(page: &Page) {
    let headers: Vec<String> = page
        .all("Network.requestWillBeSent")
        .iter()
        .map(|sent| sent["request"]["headers"].to_string())
        .collect();
    for key in [KEY, ADMIN_KEY] {
        assert!(
            headers.iter().any(|headers| headers.contains(key)),
            "{headers:#?}"
        );
    }
    let addresses: Vec<String> = page.requests().into_values().collect();
    assert!(!addresses.join("\n").contains(MARK), "{addresses:#?}");
    assert!(!page.text("location.href").contains(MARK));
}

#[test]
fn keys_travel_in_headers_and_stay_in_the_tab() {
    let Some(browser) = browser() else { return };
    let args = [
        "--api-key",
        KEY,
        "--admin-api-key",
        ADMIN_KEY,
        "--log-level",
        "debug",
    ];
    let server = Binary::start(&args);
    let page = Page::new(browser, server.url.clone(), View::default());
    enter_keys(&page);
    page.ask("Who are you?");
    page.answer();

    check_sent(&page);
    let lasting = page.text(LASTING);
    assert!(lasting.contains("Who are you?"), "{lasting}");
    assert!(!lasting.contains(MARK), "{lasting}");
    let folder = TempDir::new().expect("a folder can be made");
    let exported = page.download(folder.path(), |page| {
        page.push("[aria-label='Export all chats']");
    });
    assert!(!exported.contains(MARK), "{exported}");
    let code = page.text(
        "(() => {
            document.querySelector('[aria-label=\"As curl, Python, JavaScript\"]').click();
            const texts = [...document.querySelectorAll('dialog [role=tab]')].map((tab) => {
                tab.click();
                return document.querySelector('dialog .listing').textContent;
            });
            document.querySelector('dialog[open]').close();
            return texts.join('\\n');
        })()",
    );
    assert!(
        code.contains("SOUFFLEUR_API_KEY") && !code.contains(MARK),
        "{code}"
    );
    let printed = page.all("Runtime.consoleAPICalled");
    assert!(printed.is_empty(), "{printed:#?}");
    page.check_quiet(&[NO_KEY]);

    // Another tab of the same browser does not have them; this one keeps them when it is loaded again.
    let other = page.sibling();
    other.visit_console();
    other.until("document.activeElement.id === 'key-field'");
    page.visit_console();
    page.until("souffleur.live.frame && souffleur.live.hello.is_admin");
    let log = server.log();
    assert!(!log.contains(MARK), "{log}");
    drop((page, other));
    server.stop();
}
