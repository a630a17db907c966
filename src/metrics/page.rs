//! Sorts a Prometheus page, so that pages can be compared and compress well.

/// The lines of one family: its help and type, then its samples.
#[derive(Default)]
struct Lines<'a> {
    name: &'a str,
    head: Vec<&'a str>,
    samples: Vec<&'a str>,
}

/// Sorts the families of a page by name, and the samples of counters and gauges by their labels.
///
/// Recorders keep series in hash maps, so each page has another order, which prevents comparison and compresses badly.
/// The samples of a histogram keep their order. A page without `HELP` and `TYPE` lines is left unchanged.
pub fn in_order(page: &str) -> String {
    if !page.lines().any(|line| described_family(line).is_some()) {
        return page.to_owned();
    }
    let mut families: Vec<Lines<'_>> = Vec::new();
    for line in page.lines().filter(|line| !line.is_empty()) {
        let Some(name) = described_family(line) else {
            match families.last_mut() {
                Some(family) => family.samples.push(line),
                None => families.push(Lines {
                    samples: vec![line],
                    ..Lines::default()
                }),
            }
            continue;
        };
        match families.last_mut() {
            Some(family) if family.name == name && family.samples.is_empty() => {
                family.head.push(line);
            }
            _ => families.push(Lines {
                name,
                head: vec![line],
                samples: Vec::new(),
            }),
        }
    }
    families.sort_by_key(|family| family.name);
    let mut ordered = String::with_capacity(page.len() + families.len());
    for family in &mut families {
        let is_sortable = |line: &&str| {
            let is_plain = line.ends_with(" counter") || line.ends_with(" gauge");
            is_plain && line.starts_with("# TYPE ")
        };
        if family.head.iter().any(is_sortable) {
            family.samples.sort_by_key(|sample| series(sample));
        }
        for line in family.head.iter().chain(&family.samples) {
            ordered.extend([line, "\n"]);
        }
        ordered.push('\n');
    }
    ordered
}

/// The family of a `HELP` or `TYPE` line.
fn described_family(line: &str) -> Option<&str> {
    let comment = line
        .strip_prefix("# HELP ")
        .or_else(|| line.strip_prefix("# TYPE "))?;
    comment.split(' ').next()
}

/// A sample without its value.
fn series(sample: &str) -> &str {
    sample.rsplit_once(' ').map_or(sample, |(series, _)| series)
}

#[cfg(test)]
mod tests {
    use super::in_order;

    #[test]
    fn families_and_series_are_sorted_and_histograms_stay_together() {
        let page = "# HELP b Says b.\n# TYPE b gauge\nb{x=\"2\"} 1\nb{x=\"1\"} 9\n\n\
                    # TYPE c histogram\nc_bucket{le=\"2\"} 1\nc_bucket{le=\"+Inf\"} 1\nc_sum 2\nc_count 1\n\n\
                    # TYPE a counter\na 3\n\n";
        let ordered = "# TYPE a counter\na 3\n\n\
                       # HELP b Says b.\n# TYPE b gauge\nb{x=\"1\"} 9\nb{x=\"2\"} 1\n\n\
                       # TYPE c histogram\nc_bucket{le=\"2\"} 1\nc_bucket{le=\"+Inf\"} 1\nc_sum 2\nc_count 1\n\n";
        assert_eq!(in_order(page), ordered);
        assert_eq!(in_order(ordered), ordered);
    }

    #[test]
    fn a_page_without_descriptions_is_kept() {
        assert_eq!(in_order(""), "");
        assert_eq!(in_order("up 1"), "up 1");
    }
}
