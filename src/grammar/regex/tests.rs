//! Tests which regular expressions of requests are accepted, and the errors for others.

use serde_json::json;

use super::*;

fn whole(pattern: &str) -> Result<String, String> {
    whole_match("regex", pattern, &GrammarLimits::default()).map_err(|error| error.to_string())
}

fn pattern(pattern: &str) -> Result<(), String> {
    check(pattern, &GrammarLimits::default()).map(drop)
}

fn quoted(pattern: &str) -> String {
    let mut schema = json!({ "pattern": pattern });
    quote_patterns(&mut schema);
    schema["pattern"].as_str().expect("a text").to_owned()
}

/// Whether a text contains a match of the pattern.
#[track_caller]
fn finds(pattern: &str, text: &str) -> bool {
    let quoted = quoted(pattern);
    let regex = ::regex::Regex::new(&quoted);
    regex
        .unwrap_or_else(|error| panic!("{quoted}: {error}"))
        .is_match(text)
}

#[test]
fn anchors_at_the_ends_are_redundant() {
    assert_eq!(whole("^a|b$"), Ok("/a|b/".to_owned()));
    assert_eq!(whole(r"a\$"), Ok(r"/a\x{24}/".to_owned()));
    assert_eq!(whole(r"a\\$"), Ok(r"/a\x{5c}/".to_owned()));
    assert_eq!(whole("a/b"), Ok(r"/a\x{2f}b/".to_owned()));
    assert_eq!(whole("^$"), Ok("\"\"".to_owned()));
}

#[test]
fn patterns_are_found_anywhere() {
    for (pattern, found, not_found) in [
        ("a", &["a", "bab", "\na\n"][..], &["", "b"][..]),
        ("^a$", &["a"], &["aa", "ba", "a\n"]),
        ("a|b", &["xa", "bx"], &["x"]),
        ("^a|b$", &["ax", "xb"], &["xa", "bx"]),
        ("^(a|b)[|]", &["a|x", "b|"], &["xa|"]),
        ("(^|,)x($|,)", &["x", "a,x", "x,b"], &["ax", "xb"]),
        ("^(?:(?:^a)|b)c", &["ac", "bc"], &["xac"]),
        ("", &["", "x"], &[]),
    ] {
        found
            .iter()
            .for_each(|text| assert!(finds(pattern, text), "{pattern}: {text}"));
        not_found
            .iter()
            .for_each(|text| assert!(!finds(pattern, text), "{pattern}: {text}"));
    }
}

#[test]
fn classes_have_no_operators() {
    for (pattern, found, not_found) in [
        ("^[a&&b]+$", &["a&b", "&"][..], &["c"][..]),
        ("^[[]$", &["["], &["a"]),
        ("^[+--b]$", &["+", ",", "-", "b"], &["a", "*"]),
        ("^[a~~b]$", &["a", "~", "b"], &["c"]),
        ("^[[:alpha:]]$", &["a]", ":]", "[]"], &["z", "z]"]),
        ("^[^]$", &["a", "\n"], &[""]),
        ("^(?:[]|a)$", &["a"], &["]", "[]"]),
        (r"^[\w-.]+$", &["a-.z"], &["a,"]),
        (r"^[a-c\-e]+$", &["b-e"], &["d"]),
        (r"^[\b]$", &["\u{8}"], &["b"]),
        ("^[a&&[^b]]$", &["a]", "&]", "[]", "^]", "b]"], &["a"]),
    ] {
        found
            .iter()
            .for_each(|text| assert!(finds(pattern, text), "{pattern}: {text}"));
        not_found
            .iter()
            .for_each(|text| assert!(!finds(pattern, text), "{pattern}: {text}"));
    }
}

#[test]
fn pattern_syntax_is_that_of_ecma_262() {
    for (pattern, found, not_found) in [
        (r"^\d$", &["1"][..], &["٣"][..]),
        (r"^\w$", &["_", "z"], &["é"]),
        (
            r"^\s$",
            &["\u{feff}", "\u{a0}", "\u{2028}"],
            &["\u{85}", "\u{1c}"],
        ),
        (r"^\S$", &["\u{85}"], &["\u{feff}", " "]),
        ("^.$", &["x", "😀", "\u{85}"], &["\n", "\r", "\u{2028}"]),
        (r"^\u0041\x42\cJ\u{43}$", &["AB\nC"], &["ABJC"]),
        (r"^\ud83d\ude00$", &["😀"], &["x"]),
        (r"^[\ud83d\ude00-\ud83d\ude0f]$", &["😀", "😏"], &["x"]),
        (r"^[\ud800-\udfff\ue000]$", &["\u{e000}"], &["x"]),
        (r"^\p{Lu}\P{Lu}$", &["Éa"], &["éa"]),
        (r"^\p{Script=Greek}+$", &["λόγος"], &["logos"]),
        (r"^\/\-\_\:$", &["/-_:"], &[]),
        ("^{a}$", &["{a}"], &["a"]),
        ("^a{2}b{1,}c{0,1}$", &["aab", "aabbc"], &["ab"]),
        ("^a+?$", &["aa"], &[""]),
        ("^(?<year>[0-9]{4})$", &["2024"], &["24"]),
        (
            "(?i)^straße[^a]$",
            &["straßeX"], // case folding is per character, so "SS" is not "ß"
            &["straßeA", "straßea"],
        ),
        ("^(?i:k)$", &["K", "k", "\u{212a}"], &["x"]),
    ] {
        found
            .iter()
            .for_each(|text| assert!(finds(pattern, text), "{pattern}: {text}"));
        not_found
            .iter()
            .for_each(|text| assert!(!finds(pattern, text), "{pattern}: {text}"));
    }
}

#[test]
fn unsupported_features_are_named() {
    for (pattern, what) in [
        ("a(?=b)", "look-ahead"),
        ("(?<!a)b", "look-behind"),
        (r"(a)\1", "a back reference"),
        (r"(?<a>a)\k<a>", "a back reference"),
        (r"\bword\b", "a word boundary"),
        ("ab\\", "a backslash at its end"),
        ("[a\\", "a backslash at its end"),
    ] {
        for result in [
            whole(pattern),
            self::pattern(pattern).map(|()| String::new()),
        ] {
            let result = result.expect_err("it is not supported");
            assert!(result.contains(what), "{result}");
        }
    }
    assert!(whole(r"[(?=]\\(?:a)[\b]").is_ok());
}

#[test]
fn invalid_and_ambiguous_expressions_are_rejected() {
    for wrong in [
        "a**",
        "*a",
        "a{2}{3}",
        "a{3,2}",
        "a{99999999999}",
        "a{4294967295}",
        "x{,5}",
        "a++",
        "(a",
        "a)",
        "[a",
        "[b-a]",
        "[a--b]",
        r"\q",
        r"\x4",
        r"\u12",
        r"\u{110000}",
        r"\ud800",
        r"\p{Nothing}",
        r"\pL",
        r"\012",
        r"\c1",
        "a^b",
        "a$b",
        "(?:^a)*",
        "(?m)^a$",
        "(?x)a",
        "(?<>a)",
        r"\A",
        r"\Z",
    ] {
        assert!(pattern(wrong).is_err(), "{wrong}");
    }
    assert!(pattern(&format!("{}a{}", "(".repeat(1000), ")".repeat(1000))).is_err());
    assert!(
        pattern(&r"\p{L}".repeat(500)).is_err(),
        "its classes have too many ranges"
    );
    for python in [
        r"\Aab\Z",
        r"\x{41}",
        r"\pL",
        "x{,5}",
        "[]a]",
        "[[:alpha:]_]",
    ] {
        assert!(whole(python).is_ok(), "{python}: {:?}", whole(python));
    }
}

/// llguidance would let an escaped quotation mark through if the class had all control characters.
#[test]
fn classes_without_the_quote_or_the_backslash_exclude_nul() {
    for lacking in ["[^\"]", r"[^\\]", r"[\x00-\x1f]", r"[^\n\\]"] {
        assert!(!finds(&format!("^{lacking}$"), "\0"), "{lacking}");
        assert!(finds(&format!("^{lacking}$"), "\u{1}"), "{lacking}");
    }
    assert!(finds("^[^a]$", "\0"));
    assert_eq!(
        search("^[^\"]$"),
        whole("[^\"]").ok(),
        "plain texts have no escapes"
    );
}

#[test]
fn caseless_letters_do_not_fold() {
    let others = class::negated(class::cased().clone());
    let mut folded = others.clone();
    folded
        .try_case_fold_simple()
        .expect("the Unicode tables are compiled in");
    assert_eq!(folded, others);
    for (letter, other) in [
        ("\u{345}", "\u{399}"),
        ("\u{2126}", "ω"),
        ("ß", "ẞ"),
        ("\u{1fbe}", "\u{399}"),
        ("Ⓐ", "ⓐ"),
    ] {
        assert!(finds(&format!("(?i)^{letter}$"), other), "{letter}");
        assert!(finds(&format!("(?i)^[{other}]$"), letter), "{letter}");
    }
}

#[test]
fn large_case_insensitive_classes_are_counted() {
    let result = pattern(&format!("(?i){}", r"\D".repeat(10_000)));
    let result = result.expect_err("it exceeds the limit");
    assert!(result.contains("ranges"), "{result}");
    let letters = "aZ".repeat(5_000);
    assert_eq!(pattern(&format!("(?i){letters}")), Ok(()));
}

#[test]
fn a_class_of_thousands_of_letters_is_accepted() {
    let codes = (0x3400..0x4db0).chain(0x4e00..0x9ff0).step_by(2);
    let letters: String = codes.filter_map(char::from_u32).collect();
    assert_eq!(pattern(&format!("^[{letters}]$")), Ok(()));
}

/// The names of groups are dropped, so these keys become equal.
#[test]
fn keys_that_become_equal_stay_distinct() {
    let keys = (0..3_000).map(|at| (format!("^(?<n{at}>a)$"), json!({})));
    let keys: serde_json::Map<String, Value> = keys.collect();
    let mut schema = json!({ "patternProperties": keys });
    quote_patterns(&mut schema);
    let keys = schema["patternProperties"].as_object().expect("an object");
    assert_eq!(keys.len(), 3_000);
    for key in keys.keys().step_by(500) {
        let regex = ::regex::Regex::new(key).expect("it is an expression");
        assert!(regex.is_match("a") && !regex.is_match("b"), "{key}");
        assert!(key.len() < 100, "{key}");
    }
}
