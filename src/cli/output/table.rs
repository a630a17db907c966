//! Prints Markdown tables, padded for the terminal.

use super::stdout::say;

/// Prints a table, with the first column left-aligned and the others right-aligned.
pub fn print(header: &[&str], rows: &[Vec<String>]) {
    for line in lines(header, rows) {
        say(line);
    }
}

fn lines(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let header: Vec<String> = header.iter().map(|cell| (*cell).to_owned()).collect();
    let widths: Vec<usize> = (0..header.len())
        .map(|column| {
            let cells = std::iter::once(&header).chain(rows);
            let widths = cells.map(|row| row.get(column).map_or(0, |cell| cell.chars().count()));
            widths.max().unwrap_or(0).max(2)
        })
        .collect();
    let line = |row: &Vec<String>| {
        let cells = widths.iter().enumerate().map(|(column, width)| {
            let cell = row.get(column).map_or("", String::as_str);
            match column {
                0 => format!(" {cell:<width$} |"),
                _ => format!(" {cell:>width$} |"),
            }
        });
        format!("|{}", cells.collect::<String>())
    };
    let rule = widths.iter().enumerate().map(|(column, width)| {
        let dashes = "-".repeat(width + 1);
        match column {
            0 => format!("{dashes}-|"),
            _ => format!("{dashes}:|"),
        }
    });
    let rule = format!("|{}", rule.collect::<String>());
    [line(&header), rule]
        .into_iter()
        .chain(rows.iter().map(line))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [
            vec!["prefill".to_owned(), "378.0".to_owned()],
            vec!["é".to_owned()],
        ];
        assert_eq!(
            lines(&["work", "x"], &rows),
            [
                "| work    |     x |",
                "|---------|------:|",
                "| prefill | 378.0 |",
                "| é       |       |",
            ]
        );
    }
}
