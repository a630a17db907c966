//! Tests that no template crashes the process, takes memory without bound or runs forever.

use super::*;

/// Templates that try to exceed a limit.
const TEMPLATES: &str = include_str!("../../../../../tests/fixtures/chat_templates/hostile.jsonl");

/// Low limits, so that all templates together take a few seconds in a dev build.
const SMALL: Limits = Limits {
    instructions: 40_000,
    memory_bytes: 4 << 20,
    output_bytes: 1 << 20,
};

/// Renders on a thread with the default stack size; returns the text or the error's message.
fn rendered(source: String) -> Result<String, String> {
    let run = move || {
        let template = Template::compile(&source)?;
        let rendered = template.render(&FxHashMap::default(), SMALL);
        rendered.map_err(|error| error.to_string())
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(run);
    let thread = thread.expect("a thread starts");
    thread.join().expect("no template panics")
}

fn error_of(source: String) -> Option<String> {
    rendered(source).err()
}

#[test]
fn templates_that_ask_for_too_much_are_refused() {
    let mut refused = 0;
    for line in TEMPLATES.lines() {
        let source: String = serde_json::from_str(line).expect("a line is a text");
        let outcome = rendered(source);
        refused += usize::from(outcome.is_err());
        let words = outcome.unwrap_or_else(|error| error);
        assert!(words.len() <= SMALL.output_bytes, "{line:.200}");
    }
    assert!(refused > TEMPLATES.lines().count() / 2, "{refused}");
    for (source, words) in [
        ("{{ 'x' * 10**9 }}", "memory"),
        ("{{ 'x'.ljust(10**9) }}", "instructions"),
        ("{{ 'x' | center(10**9) }}", "instructions"),
        ("{{ range(10**9) }}", "MAX_RANGE"),
        ("{{ '%999999999d' % 1 }}", "width"),
        ("{{ '{:999999999}'.format(1) }}", "width"),
        ("{{ 10 ** 10000000 }}", "4300 digits"),
        (
            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
            "nest too deep",
        ),
        (
            "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}",
            "nest too deep",
        ),
        (
            "{% set ns = namespace(x=['a']) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
            "memory",
        ),
        (
            "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "memory",
        ),
    ] {
        let error = error_of(source.to_owned());
        let error = error.unwrap_or_else(|| panic!("{source} is accepted"));
        let is_a_limit = ["memory", "instructions"];
        let agrees = error.contains(words)
            || (is_a_limit.contains(&words) && is_a_limit.iter().any(|it| error.contains(it)));
        assert!(agrees, "{source}: {error}");
    }
}

#[test]
fn deeply_nested_sources_are_refused() {
    for (first, repeated, last) in [
        ("", "(", "1"),
        ("", "[", "1"),
        ("", "{1: ", "1"),
        ("", "-", "1"),
        ("", "not ", "1"),
        ("", "1 + ", "1"),
        ("", "1 ~ a.b() * ", "1"),
        ("", "1 if 1 else ", "1"),
        ("1", " if 1", ""),
        ("1", " | abs", ""),
        ("1", " and 1", ""),
        ("a", ".a", ""),
        ("a", "[0]", ""),
        ("a", "()", ""),
    ] {
        let closing = match repeated {
            "(" => ")",
            "[" => "]",
            "{1: " => "}",
            _ => "",
        };
        let (repeated, closing) = (repeated.repeat(5000), closing.repeat(5000));
        let source = format!("{{{{ {first}{repeated}{last}{closing} }}}}");
        let is_flat = repeated.contains('~'); // not nested: it fails because `a` is undefined
        match error_of(source) {
            Some(error) => assert!(
                error.contains("nests deeper") || is_flat,
                "{repeated:.20}: {error}"
            ),
            None => panic!("{repeated:.20} is accepted"),
        }
    }
    for (open, close) in [
        ("{% if 1 %}", "{% endif %}"),
        ("{% for a in [1] %}", "{% endfor %}"),
        ("{% macro a() %}", "{% endmacro %}"),
        ("{% set a %}", "{% endset %}"),
        ("{% filter upper %}", "{% endfilter %}"),
        ("{% call a() %}", "{% endcall %}"),
        ("{% block a %}", "{% endblock %}"),
        ("{% with %}", "{% endwith %}"),
        ("{% generation %}", "{% endgeneration %}"),
    ] {
        let source = open.repeat(5000) + &close.repeat(5000);
        let error = error_of(source).expect("it is refused");
        assert!(error.contains("nests deeper than"), "{open}: {error}");
    }
}

/// A filter is charged instructions for the bytes that it reads. These filters read no items of a list, so that
/// templates may call `messages | length` in a loop over messages.
#[test]
fn filters_that_read_no_item_cost_the_same_at_any_length() {
    let thousandfold = |value: &str, filter: &str| {
        error_of(format!(
            "{{% set value = {value} %}}{{% for i in range(1000) %}}{{% set kept = value | {filter} %}}{{% endfor %}}"
        ))
    };
    for value in [
        "range(10000) | list",
        "(0,) * 10000",
        "dict.fromkeys(range(200))",
    ] {
        for filter in ["length", "count", "default(0)", "d(0)"] {
            assert_eq!(thousandfold(value, filter), None, "{value} | {filter}");
        }
        let error = thousandfold(value, "list").expect("it reads every item");
        assert!(error.contains("instructions"), "{value}: {error}");
    }
    let error = thousandfold("'x' * 80000", "length").expect("it counts characters");
    assert!(error.contains("instructions"), "{error}");
}

#[test]
fn a_namespace_that_holds_itself_does_not_use_up_memory() {
    let source =
        "{% set ns = namespace() %}{% set ns.a = [ns, 'x' * 1000000] %}{{ ns.a | length }}";
    for _ in 0..20 {
        assert_eq!(error_of(source.to_owned()), None);
    }
}
