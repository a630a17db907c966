//! Checks that llguidance computes exactly with the numbers in schemas, and gives the reasons to refuse others.
//!
//! llguidance computes with doubles, then in 64 bits (32 for multiples) without overflow checks. Outside of these
//! ranges it accepts wrong numbers, or recurses without end.

use serde_json::{Map, Number, Value};

/// All integers up to this one are exact doubles.
const MAX_EXACT_INTEGER: u64 = 1 << 53;
/// Distance by which an integer that is an exclusive bound is moved. Numbers nearer to the bound are not generated.
const NUDGE: f64 = 1e-9;
const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
/// Maximum decimals of a multiple.
const MAX_DECIMALS: u32 = 8;

/// A multiple: `digits` divided by ten to the power of `decimals`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Multiple {
    digits: u64,
    decimals: u32,
}

/// The reason to refuse a number in a constant or a bound.
pub(super) fn fault(number: &Number) -> Option<String> {
    fault_beyond(number, MAX_EXACT_INTEGER)
}

/// The reason to refuse an exclusive bound. The next integer must be an exact double too.
pub(super) fn fault_of_exclusive(number: &Number) -> Option<String> {
    fault_beyond(number, MAX_EXACT_INTEGER - 1)
}

fn fault_beyond(number: &Number, largest: u64) -> Option<String> {
    let is_beyond = match (number.as_u64(), number.as_i64(), number.as_f64()) {
        (Some(number), _, _) => number > largest,
        (_, Some(number), _) => number.unsigned_abs() > largest,
        (_, _, Some(number)) => number.is_nan() || number.abs() > largest as f64,
        _ => true,
    };
    is_beyond.then(|| {
        format!(
            "the number {number} is not supported: the limit is {largest} (doubles hold all integers only up to 2^53)"
        )
    })
}

/// Whether a keyword is a bound at the limit of doubles, which generators write for fields of type double.
pub(super) fn has_no_effect(schema: &Map<String, Value>, name: &str) -> bool {
    let is_draft_4 = schema.get(name) == Some(&Value::Bool(true));
    let name = match name {
        "exclusiveMinimum" if is_draft_4 => "minimum",
        "exclusiveMaximum" if is_draft_4 => "maximum",
        name => name,
    };
    let bound = || schema.get(name).and_then(Value::as_f64);
    match name {
        "minimum" | "exclusiveMinimum" => bound().is_some_and(|bound| bound <= f64::MIN),
        "maximum" | "exclusiveMaximum" => bound().is_some_and(|bound| bound >= f64::MAX),
        _ => false,
    }
}

/// Maximum multiple, without its decimal point: llguidance searches that many remainders for 0.
const MAX_REMAINDERS: u64 = 100_000;
/// A multiple above `MAX_REMAINDERS` must be at most this without trailing zeros: remainder 0 is then found early.
const MAX_ROUND: u64 = 99;
/// Maximum decimals of a bound: llguidance nests an expression for each decimal.
const MAX_BOUND_DECIMALS: usize = 40;

/// Adjusts the bounds of one schema, or returns a keyword and the reason to refuse its bound.
///
/// llguidance wrongly accepts an integer that is an exclusive bound if the other bound is less than 1 away. So such a
/// bound is moved by [`NUDGE`] if a double can represent the result.
pub(super) fn adjust_bounds(schema: &mut Map<String, Value>) -> Option<(&'static str, String)> {
    for name in BOUNDS {
        let number = match schema.get(name) {
            Some(Value::Number(number)) => number,
            _ => continue,
        };
        let decimals = number.as_f64().map_or(0, |number| {
            let written = number.to_string();
            written
                .split_once('.')
                .map_or(0, |(_, decimals)| decimals.len())
        });
        if decimals > MAX_BOUND_DECIMALS {
            let reason = format!("the bound {number} has more than {MAX_BOUND_DECIMALS} decimals");
            return Some((name, reason));
        }
    }
    for (exclusive, plain, sign) in [
        ("exclusiveMinimum", "minimum", 1.0),
        ("exclusiveMaximum", "maximum", -1.0),
    ] {
        let is_draft_4 = schema.get(exclusive) == Some(&Value::Bool(true));
        let name = if is_draft_4 { plain } else { exclusive };
        let bound = schema.get(name).and_then(Value::as_f64);
        let Some(bound) = bound.filter(|_| accepts_exclusive_bound(&[schema])) else {
            continue;
        };
        let nudged = Number::from_f64(bound + sign * NUDGE);
        if let Some(nudged) = nudged.filter(|_| bound + sign * NUDGE != bound) {
            schema.shift_remove(exclusive);
            let other = schema
                .get(plain)
                .and_then(Value::as_f64)
                .filter(|_| !is_draft_4);
            if other.is_none_or(|other| other * sign <= bound * sign) {
                schema.insert(plain.to_owned(), nudged.into());
            }
        }
    }
    None
}

/// Whether llguidance would accept an integer that is an exclusive bound if these schemas apply together.
pub(super) fn accepts_exclusive_bound(objects: &[&Map<String, Value>]) -> bool {
    let lower = bounds(objects, "minimum", "exclusiveMinimum");
    let upper = bounds(objects, "maximum", "exclusiveMaximum");
    // The nearest bound of the other side is the next one in order.
    let next_above = |number: f64| upper.get(upper.partition_point(|up| up.number <= number));
    let next_below = |number: f64| {
        let below = lower.partition_point(|low| low.number < number);
        below.checked_sub(1).map(|at| &lower[at])
    };
    let is_exclusive = |bound: &&Bound| bound.is_exclusive && bound.number.fract() == 0.0;
    let is_near = |bound: &Bound, other: Option<&Bound>| {
        other.is_some_and(|other| (bound.number - other.number).abs() < 1.0)
    };
    let mut lower_exclusive = lower.iter().filter(is_exclusive);
    let mut upper_exclusive = upper.iter().filter(is_exclusive);
    lower_exclusive.any(|low| is_near(low, next_above(low.number)))
        || upper_exclusive.any(|up| is_near(up, next_below(up.number)))
}

struct Bound {
    number: f64,
    is_exclusive: bool,
}

fn bounds(objects: &[&Map<String, Value>], plain: &str, exclusive: &str) -> Vec<Bound> {
    let number = |object: &Map<String, Value>, name| object.get(name).and_then(Value::as_f64);
    let bounds = objects.iter().flat_map(|object| {
        let is_draft_4 = object.get(exclusive) == Some(&Value::Bool(true));
        let bound = |number, is_exclusive| Bound {
            number,
            is_exclusive,
        };
        let plain = number(object, plain).map(|number| bound(number, is_draft_4));
        plain
            .into_iter()
            .chain(number(object, exclusive).map(|number| bound(number, true)))
    });
    let mut bounds: Vec<Bound> = bounds.collect();
    bounds.sort_unstable_by(|one, other| one.number.total_cmp(&other.number));
    bounds
}

/// A count such as `maxLength` for llguidance; `None` for a maximum that no value reaches.
///
/// # Errors
/// The reason why it is not a count.
pub(super) fn count(name: &str, value: &Value) -> Result<Option<Value>, String> {
    const MAX_COUNT: u64 = u32::MAX as u64 - 1;
    let whole = value
        .as_f64()
        .filter(|count| *count >= 0.0 && count.fract() == 0.0);
    let count = value.as_u64().or(whole.map(|count| count as u64));
    match count {
        None => Err(format!(
            "{value} is not a count: expected a non-negative integer"
        )),
        Some(count) if count <= MAX_COUNT => Ok(Some(count.into())),
        Some(_) if name.starts_with("max") => Ok(None),
        Some(count) => Err(format!(
            "the count {count} is not supported, limit is {MAX_COUNT}"
        )),
    }
}

impl Multiple {
    /// Parses a multiple, if llguidance can compute with it.
    ///
    /// # Errors
    /// The reason why llguidance cannot.
    pub(super) fn new(value: &Value) -> Result<Self, String> {
        let number = value.as_f64().filter(|number| *number > 0.0);
        let number = number.ok_or_else(|| format!("{value} is not a number above 0"))?;
        let multiple = Self::of_digits(&value.to_string());
        let multiple = multiple.filter(|multiple| {
            multiple.is_searchable() && Self::of_llguidance(number) == Some(*multiple)
        });
        multiple.ok_or_else(|| {
            format!(
                "multipleOf {value} is not supported: use at most {MAX_DECIMALS} decimals and at most {MAX_REMAINDERS} \
                 without the decimal point (2.5 counts as 25), or an integer up to 300000000 with only zeros after \
                 the second digit"
            )
        })
    }

    fn of_digits(text: &str) -> Option<Self> {
        let (text, exponent) = match text.split_once(['e', 'E']) {
            Some((text, exponent)) => (text, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = format!("{whole}{fraction}").parse::<u64>().ok()?;
        let decimals = i32::try_from(fraction.len()).ok()? - exponent;
        let multiple = match u32::try_from(decimals) {
            Ok(decimals) => Self { digits, decimals },
            Err(_) => Self {
                digits: digits.checked_mul(10_u64.checked_pow(decimals.unsigned_abs())?)?,
                decimals: 0,
            },
        };
        Some(multiple.reduced())
    }

    fn reduced(mut self) -> Self {
        while self.decimals > 0 && self.digits.is_multiple_of(10) {
            self.digits /= 10;
            self.decimals -= 1;
        }
        self
    }

    /// The multiple that llguidance derives from a double, which it multiplies by ten until it is whole.
    fn of_llguidance(mut number: f64) -> Option<Self> {
        let mut decimals = 0;
        while number.fract() != 0.0 {
            number *= 10.0;
            decimals += 1;
        }
        let digits = number as u64;
        (number <= f64::from(u32::MAX)).then(|| Self { digits, decimals }.reduced())
    }

    /// Whether llguidance's remainders, times ten plus a digit, are below 2^32, and few enough to search.
    fn is_searchable(self) -> bool {
        let largest = self.digits.saturating_mul(10);
        let mut round = self.digits.max(1);
        while round.is_multiple_of(10) {
            round /= 10;
        }
        self.decimals <= MAX_DECIMALS
            && (self.digits <= MAX_REMAINDERS || round <= MAX_ROUND)
            && largest.saturating_add(9 * 10_u64.pow(self.decimals)) <= u64::from(u32::MAX)
    }

    /// The digits, scaled to `decimals`.
    fn scaled(self, decimals: u32) -> u64 {
        let more = 10_u64.checked_pow(decimals - self.decimals);
        self.digits.saturating_mul(more.unwrap_or(u64::MAX))
    }
}

/// Whether llguidance can combine these multiples in any order, even with one of them twice.
pub(super) fn can_combine(multiples: &[Multiple]) -> bool {
    let decimals = multiples.iter().map(|multiple| multiple.decimals).max();
    let Some(decimals) = decimals else {
        return true;
    };
    let digits: Vec<u64> = multiples
        .iter()
        .map(|multiple| multiple.scaled(decimals))
        .collect();
    let lcm = digits.iter().fold(1_u64, |lcm, &digits| {
        (lcm / gcd(lcm, digits).max(1)).saturating_mul(digits)
    });
    let largest = digits.iter().copied().max().unwrap_or(1);
    let digits = lcm;
    let is_searchable = Multiple { digits, decimals }.is_searchable();
    is_searchable && lcm.saturating_mul(largest) <= u64::from(u32::MAX)
}

pub(super) fn multiples(objects: &[&Map<String, Value>]) -> Vec<Multiple> {
    let values = objects.iter().filter_map(|object| object.get("multipleOf"));
    values
        .filter_map(|value| Multiple::new(value).ok())
        .collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn integers_beyond_exact_doubles_are_rejected() {
        for accepted in [
            "0",
            "-0.0",
            "9007199254740992",
            "-9007199254740992",
            "1e-320",
            "0.1",
            "9007199254740992.0",
        ] {
            let number: Number = serde_json::from_str(accepted).expect("a number");
            assert_eq!(fault(&number), None, "{accepted}");
        }
        for refused in [
            "9007199254740993",
            "-9007199254740993",
            "9223372036854775807",
            "-9223372036854775808",
            "18446744073709551615",
            "18446744073709551616",
            "1e300",
            "-1e300",
        ] {
            let number: Number = serde_json::from_str(refused).expect("a number");
            let fault = fault(&number).expect("it is refused");
            assert!(fault.contains("2^53"), "{fault}");
        }
        assert!(fault_of_exclusive(&Number::from(MAX_EXACT_INTEGER)).is_some());
    }

    /// Compares every lower bound with every upper one.
    fn any_pair_is_near(objects: &[&Map<String, Value>]) -> bool {
        let is_near = |bound: &Bound, apart: f64| {
            bound.is_exclusive && bound.number.fract() == 0.0 && apart > 0.0 && apart < 1.0
        };
        let upper = bounds(objects, "maximum", "exclusiveMaximum");
        let lower = bounds(objects, "minimum", "exclusiveMinimum");
        lower.iter().any(|low| {
            let apart = |up: &Bound| up.number - low.number;
            upper
                .iter()
                .any(|up| is_near(low, apart(up)) || is_near(up, apart(up)))
        })
    }

    #[test]
    fn exclusive_integers_are_found_near_any_bound_of_the_other_side() {
        let numbers = [
            -1.0,
            -0.5,
            -0.0,
            0.0,
            1e-320,
            0.75,
            1.0,
            9_007_199_254_740_992.0,
        ];
        let schemas: Vec<Map<String, Value>> = BOUNDS
            .iter()
            .flat_map(|name| numbers.map(|number| (*name, number)))
            .map(|(name, number)| Map::from_iter([(name.to_owned(), json!(number))]))
            .collect();
        let mut n_accepted = 0;
        for one in &schemas {
            for two in &schemas {
                for three in &schemas {
                    let objects = [one, two, three];
                    let expected = any_pair_is_near(&objects);
                    assert_eq!(accepts_exclusive_bound(&objects), expected, "{objects:?}");
                    n_accepted += usize::from(expected);
                }
            }
        }
        assert!(n_accepted > 0 && n_accepted < schemas.len().pow(3));
    }

    #[test]
    fn multiples_are_exact_or_refused() {
        for accepted in [
            json!(1),
            json!(0.01),
            json!(2.5),
            json!(100),
            json!(1e2),
            json!(400_000_000),
            json!(1e-8),
        ] {
            assert!(
                Multiple::new(&accepted).is_ok(),
                "{accepted}: {:?}",
                Multiple::new(&accepted)
            );
        }
        for refused in [
            json!(0),
            json!(-1),
            json!("1"),
            json!(1e-9),
            json!(1e-300),
            json!(4_294_967_295_u64),
            json!(1e300),
            json!(0.300_000_000_000_000_04),
            json!(-0.0),
        ] {
            assert!(Multiple::new(&refused).is_err(), "{refused}");
        }
        let of = |values: &[f64]| {
            let multiples = values.iter().map(|&value| Multiple::new(&json!(value)));
            can_combine(&multiples.collect::<Result<Vec<_>, _>>().expect("valid"))
        };
        assert!(of(&[2.0, 3.0, 0.5]) && of(&[60_000.0]));
        assert!(!of(&[100_000.0]) && !of(&[9_973.0, 9_967.0]));
        assert!(Multiple::new(&json!(86_400)).is_ok() && Multiple::new(&json!(604_800)).is_err());
        assert!(
            Multiple::new(&json!(999_983)).is_err(),
            "it takes seconds and 600 MB"
        );
    }

    #[test]
    fn counts_are_whole_and_bounded() {
        assert_eq!(count("minLength", &json!(2.0)), Ok(Some(json!(2))));
        assert_eq!(count("maxLength", &json!(1e19)), Ok(None));
        for wrong in [
            json!(-1),
            json!(1.5),
            json!("1"),
            json!(null),
            json!(4_294_967_295_u64),
        ] {
            assert!(count("minItems", &wrong).is_err(), "{wrong}");
        }
    }
}
