//! Tables as text, Markdown and CSV.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// A table: a head and rows of as many cells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Above it.
    pub title: String,
    /// Its first row.
    pub head: Vec<String>,
    /// The others.
    pub rows: Vec<Vec<String>>,
}

/// How tables are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Columns aligned with blanks.
    Text,
    /// GitHub's.
    Markdown,
    /// RFC 4180.
    Csv,
}

impl Table {
    /// An empty one.
    pub fn new(title: impl Into<String>, head: &[&str]) -> Table {
        let head = head.iter().map(|cell| (*cell).to_owned()).collect();
        Table { title: title.into(), head, rows: Vec::new() }
    }

    /// Writes it.
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

    /// Whether all of a column, which is not the first, are numbers, or dashes where there are none:
    /// they stand at its right then.
    pub(crate) fn is_figures(&self, at: usize) -> bool {
        let starts_as_number =
            |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '±');
        at > 0 && self.rows.iter().filter_map(|row| row.get(at)).all(starts_as_number)
    }

    fn text(&self) -> String {
        let width = |at: usize| {
            self.lines().filter_map(|line| Some(line.get(at)?.chars().count())).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..self.head.len()).map(width).collect();
        let figures: Vec<_> = (0..self.head.len()).map(|at| self.is_figures(at)).collect();
        let mut out =
            if self.title.is_empty() { String::new() } else { format!("{}\n", self.title) };
        for line in self.lines() {
            let mut text = String::new();
            for (at, (cell, width)) in line.iter().zip(&widths).enumerate() {
                let _ = match figures.get(at).copied().unwrap_or(false) {
                    false => write!(text, "  {cell:<width$}"),
                    true => write!(text, "  {cell:>width$}"),
                };
            }
            out += text.trim_end();
            out.push('\n');
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
            .map(|at| if at == 0 { "---" } else { "---:" }.to_owned())
            .collect();
        out += &row(&rule);
        self.rows.iter().for_each(|cells| out += &row(cells));
        out
    }

    fn csv(&self) -> String {
        let cell = |text: &String| match text.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", text.replace('"', "\"\"")),
            false => text.clone(),
        };
        let row =
            |cells: &Vec<String>| cells.iter().map(cell).collect::<Vec<_>>().join(",") + "\r\n";
        self.lines().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_at_the_right() {
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
    fn three_forms() {
        let mut table = Table::new("T", &["job", "MB/s"]);
        table.rows.push(vec!["a|b".to_owned(), "1,234".to_owned()]);
        assert_eq!(table.write(Form::Text), "T\n  job   MB/s\n  a|b  1,234\n");
        assert_eq!(
            table.write(Form::Markdown),
            "**T**\n\n| job | MB/s |\n| --- | ---: |\n| a\\|b | 1,234 |\n"
        );
        assert_eq!(table.write(Form::Csv), "job,MB/s\r\na|b,\"1,234\"\r\n");
    }
}
