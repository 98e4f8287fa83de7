//! Tables as text, Markdown and CSV.

use flagstone_units::columns::{self, Left, Right};
use serde::{Deserialize, Serialize};

/// A table: a head and rows of the same number of cells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    pub title: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// Cell of an unknown or missing value.
pub const UNKNOWN: &str = "-";

pub(crate) fn is_known(cell: &str) -> bool {
    cell != UNKNOWN
}

/// Columns of a terminal that text fits.
const WIDTH: u16 = 100;
/// A number and its percent sign are one word.
const PERCENT: [&str; 2] = [" %", "\u{a0}%"];

/// Lines that fit a terminal, and the text before each.
fn paragraph(text: &str, before: &str) -> String {
    let width = WIDTH - before.len() as u16;
    let lines = columns::paragraph(&text.replace(PERCENT[0], PERCENT[1]), width);
    lines.join(&format!("\n{before}")).replace(PERCENT[1], PERCENT[0])
}

/// A list item that fits a terminal.
pub fn list_item(text: &str) -> String {
    format!("- {}\n", paragraph(text, "  "))
}

/// End of the columns from `from` on that fit beside the first, at least one.
fn fitting(lines: &[Vec<String>], from: usize, columns: usize) -> usize {
    let least = |at: usize| {
        let cells = lines.iter().filter_map(|line| line.get(at));
        cells.map(|cell| columns::least_width(cell)).max().unwrap_or(0)
    };
    let mut used = least(0);
    let mut end = from;
    while end < columns && (end == from || used.saturating_add(least(end)) <= WIDTH) {
        used = used.saturating_add(least(end));
        end += 1;
    }
    end.max(from + 1)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Text,
    Markdown,
    /// RFC 4180.
    Csv,
}

impl Table {
    pub fn new(title: impl Into<String>, head: &[&str]) -> Table {
        let head = head.iter().map(|cell| (*cell).to_owned()).collect();
        Table { title: title.into(), head, rows: Vec::new() }
    }

    pub fn write(&self, form: Form) -> String {
        match form {
            Form::Text => self.text(),
            Form::Markdown => self.markdown(),
            Form::Csv => self.csv(),
        }
    }

    fn lines(&self) -> impl Iterator<Item = &Vec<String>> {
        std::iter::once(&self.head).chain(&self.rows)
    }

    /// Whether a column other than the first holds only numbers, or dashes in place of unknown
    /// ones. Such columns are right-aligned.
    pub(crate) fn is_figures(&self, at: usize) -> bool {
        let starts_as_number =
            |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit() || "+-±".contains(c));
        at > 0 && self.rows.iter().filter_map(|row| row.get(at)).all(starts_as_number)
    }

    /// Aligned columns. Where they exceed [`WIDTH`], the widest wrap between words; columns that
    /// fit even so no longer follow below, after the first column again.
    fn text(&self) -> String {
        let mut out = String::new();
        if !self.title.is_empty() {
            out = paragraph(&self.title, "") + "\n";
        }
        let words = |cell: &String| cell.replace(PERCENT[0], PERCENT[1]);
        let lines: Vec<Vec<String>> =
            self.lines().map(|line| line.iter().map(words).collect()).collect();
        let mut from = 1;
        while from == 1 || from < self.head.len() {
            let end = fitting(&lines, from, self.head.len());
            let shown = || std::iter::once(0).chain(from..end);
            if from > 1 {
                out.push('\n');
            }
            let part = |line: &Vec<String>| {
                shown().map(|at| line.get(at).cloned().unwrap_or_default()).collect()
            };
            let rows: Vec<Vec<String>> = lines.iter().map(part).collect();
            let alignments: Vec<_> =
                shown().map(|at| if self.is_figures(at) { Right } else { Left }).collect();
            for line in columns::fitted_rows(&alignments, &rows, WIDTH) {
                out += &line.replace(PERCENT[1], PERCENT[0]);
                out.push('\n');
            }
            from = end;
        }
        out
    }

    fn markdown(&self) -> String {
        let row = |cells: &[String]| {
            let cells: Vec<_> =
                cells.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut out =
            if self.title.is_empty() { String::new() } else { format!("**{}**\n\n", self.title) };
        out += &row(&self.head);
        let rule: Vec<_> = (0..self.head.len())
            .map(|at| if self.is_figures(at) { "---:" } else { "---" }.to_owned())
            .collect();
        out += &row(&rule);
        self.rows.iter().for_each(|cells| out += &row(cells));
        out
    }

    /// CSV for programs: numbers without separators, units in the head, unknown values empty, and
    /// an interval in separate columns.
    fn csv(&self) -> String {
        let quoted = |text: &String| match text.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", text.replace('"', "\"\"")),
            false => text.clone(),
        };
        let columns: Vec<_> = (0..self.head.len()).flat_map(|at| self.csv_columns(at)).collect();
        let row = |at: usize| {
            let cells = columns.iter().map(|column| column.get(at).map_or(String::new(), quoted));
            cells.collect::<Vec<_>>().join(",") + "\r\n"
        };
        (0..=self.rows.len()).map(row).collect()
    }

    /// A column in CSV, head first; three columns if it has intervals.
    fn csv_columns(&self, at: usize) -> Vec<Vec<String>> {
        let head = self.head[at].clone();
        let cells: Vec<&str> =
            self.rows.iter().map(|row| row.get(at).map_or("", String::as_str)).collect();
        let known = || cells.iter().filter(|cell| is_known(cell));
        let column = |head: String, pick: &dyn Fn(&str) -> Option<String>| {
            let body = cells.iter().map(|cell| match *cell {
                UNKNOWN => String::new(),
                cell => pick(cell).unwrap_or_default(),
            });
            std::iter::once(head).chain(body).collect()
        };
        if at == 0 || known().next().is_none() {
            return vec![column(head, &|cell| Some(cell.to_owned()))];
        }
        if known().all(|cell| number(cell).is_some()) {
            return vec![column(head, &number)];
        }
        let percent = |cell: &str| number(cell.strip_suffix(" %")?);
        if known().all(|cell| percent(cell).is_some()) {
            return vec![column(format!("{head}, %"), &percent)];
        }
        let part = |cell: &str, at: usize| -> Option<String> {
            let (median, bounds) = cell.strip_suffix(']')?.split_once(" [")?;
            let (low, high) = bounds.split_once('–').unwrap_or_default();
            number([median, low, high][at])
        };
        if known().all(|cell| number(cell).or_else(|| part(cell, 0)).is_some()) {
            return vec![
                column(head.clone(), &|cell| number(cell).or_else(|| part(cell, 0))),
                column(format!("{head}, low"), &|cell| part(cell, 1)),
                column(format!("{head}, high"), &|cell| part(cell, 2)),
            ];
        }
        vec![column(head, &|cell| Some(cell.to_owned()))]
    }
}

/// A cell for a value, or for an unknown one.
pub(crate) fn cell(value: Option<f64>, text: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), text)
}

fn number(text: &str) -> Option<String> {
    // A tolerance (`± 2.1`) is a number too.
    let plain = text.trim_start_matches("± ").replace(',', "");
    let is_plain = plain.chars().all(|c| c.is_ascii_digit() || ".-+".contains(c));
    (is_plain && plain.parse::<f64>().is_ok()).then_some(plain)
}

/// Several tables as one text. CSV has no headings, so a line `# title` precedes each table.
pub fn write_all(tables: &[Table], form: Form) -> String {
    let text = |table: &Table| match form {
        Form::Csv => format!("# {}\r\n{}", table.title, table.write(form)),
        Form::Text | Form::Markdown => table.write(form),
    };
    tables.iter().map(text).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numeric_columns_are_right_aligned() {
        let mut table = Table::new("", &["what", "noise", "another run", "why"]);
        for (noise, another, why) in [("0.9 %", "± 2.1 %", "1st"), ("-", "± 11.6 %", "none")] {
            let cells = ["8K", noise, another, why];
            table.rows.push(cells.map(str::to_owned).into());
        }
        assert_eq!(
            table.write(Form::Text),
            "  what  noise  another run  why\n  8K    0.9 %      ± 2.1 %  1st\n  \
             8K        -     ± 11.6 %  none\n"
        );
    }

    #[test]
    fn wide_tables_fit_100_columns() {
        let long = "/dev/disk/by-id/nvme-of-a-cloud-provider-with-a-long-name [EMULATED]";
        let verdict = "no difference shown (p = 0.42; 12.5 % would be)";
        let head = ["job", "base", long, "ratio", "overhead", "verdict"].map(str::to_owned);
        let figure = "1,888.42 [858.30–1,648.51]";
        let row = ["randread-4k-d32", figure, figure, "0.608 [0.600–0.612]", "39.18 %", verdict];
        let rows = vec![row.map(str::to_owned).to_vec()];
        let mut table = Table { title: "T".to_owned(), head: head.into(), rows };
        for _ in 0..3 {
            let text = table.write(Form::Text);
            assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
            for word in row.iter().flat_map(|cell| cell.split(' ')) {
                assert!(text.contains(word), "{word}: {text}");
            }
            for column in 2..6 {
                table.head.push(table.head[column].clone());
                let cell = table.rows[0][column].clone();
                table.rows[0].push(cell);
            }
        }
        let text = table.write(Form::Text);
        let blocks = text.matches("randread-4k-d32").count();
        assert!(blocks >= 2 && text.matches("\n\n").count() == blocks - 1, "{text}");
        assert!(list_item(verdict.repeat(5).as_str()).lines().all(|l| l.chars().count() <= 100));
    }

    #[test]
    fn table_as_text_markdown_and_csv() {
        let mut table = Table::new("T", &["job", "MB/s"]);
        table.rows.push(vec!["a|b".to_owned(), "1,234".to_owned()]);
        assert_eq!(table.write(Form::Text), "T\n  job   MB/s\n  a|b  1,234\n");
        assert_eq!(
            table.write(Form::Markdown),
            "**T**\n\n| job | MB/s |\n| --- | ---: |\n| a\\|b | 1,234 |\n"
        );
        assert_eq!(table.write(Form::Csv), "job,MB/s\r\na|b,1234\r\n");
        assert_eq!(write_all(&[table.clone()], Form::Csv), "# T\r\njob,MB/s\r\na|b,1234\r\n");
        assert_eq!(
            write_all(&[table.clone(), table.clone()], Form::Text).matches("T\n").count(),
            2
        );
    }

    #[test]
    fn csv_has_plain_numbers_and_units_in_head() {
        let head = ["job", "on", "noise", "MB/s", "ratio", "verdict"];
        let mut table = Table::new("T", &head);
        let rows = [
            ["1,2", "a, b", "± 6.3 %", "1,888.42 [858.30–1,648.51]", "-", "differs (p = 0.03)"],
            ["3", "c", "-", "2.5 [n=2]", "-1.25", "no \"difference\" shown"],
        ];
        table.rows.extend(rows.map(|row| row.map(str::to_owned).to_vec()));
        assert_eq!(
            table.write(Form::Csv),
            "job,on,\"noise, %\",MB/s,\"MB/s, low\",\"MB/s, high\",ratio,verdict\r\n\
             \"1,2\",\"a, b\",6.3,1888.42,858.30,1648.51,,differs (p = 0.03)\r\n\
             3,c,,2.5,,,-1.25,\"no \"\"difference\"\" shown\"\r\n"
        );
        assert!(table.write(Form::Markdown).contains("| --- | --- | ---: | ---: | ---: | --- |"));
    }
}
