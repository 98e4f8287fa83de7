//! An aligned table with groups of columns: text to the left in the first group, numbers to the
//! right in the others.

/// See the module.
#[derive(Clone, Debug)]
pub struct Table {
    /// Title and number of columns of each group.
    groups: Vec<(String, usize)>,
    /// `None` is a rule.
    rows: Vec<Option<Vec<String>>>,
}

/// Between columns.
const GAP: &str = "  ";
/// Between groups.
const BAR: &str = "  │  ";
const BAR_AT_RULE: &str = "──┼──";

impl Table {
    /// A table without rows; each group has a title and so many columns.
    pub fn new(groups: &[(&str, usize)]) -> Table {
        let groups = groups.iter().map(|(title, columns)| ((*title).to_owned(), *columns));
        Table { groups: groups.collect(), rows: Vec::new() }
    }

    /// Adds a row: a cell for each column.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.groups.iter().map(|group| group.1).sum::<usize>());
        self.rows.push(Some(cells));
    }

    /// Adds a line.
    pub fn rule(&mut self) {
        self.rows.push(None);
    }

    /// As text, every line of one width and ended.
    pub fn render(&self) -> String {
        let widths = self.widths();
        let mut text = self.titles(&widths);
        for row in &self.rows {
            let mut at = 0;
            let mut groups = Vec::new();
            for (index, (_, columns)) in self.groups.iter().enumerate() {
                let cells = at..at + columns;
                at = cells.end;
                groups.push(match row {
                    None => "─".repeat(group_width(&widths[cells])),
                    Some(row) => join(&row[cells.clone()], &widths[cells], index == 0),
                });
            }
            let bar = if row.is_none() { BAR_AT_RULE } else { BAR };
            text += groups.join(bar).trim_end();
            text.push('\n');
        }
        text
    }

    fn titles(&self, widths: &[usize]) -> String {
        let mut at = 0;
        let titles: Vec<String> = self
            .groups
            .iter()
            .map(|(title, columns)| {
                let width = group_width(&widths[at..at + columns]);
                at += columns;
                format!("{title:^width$}")
            })
            .collect();
        titles.join(BAR).trim_end().to_owned() + "\n"
    }

    /// The width of each column; the first of a group is widened for a title that is wider.
    fn widths(&self) -> Vec<usize> {
        let columns = self.groups.iter().map(|(_, columns)| columns).sum();
        let mut widths = vec![0; columns];
        for row in self.rows.iter().flatten() {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut at = 0;
        for (title, columns) in &self.groups {
            let missing =
                title.chars().count().saturating_sub(group_width(&widths[at..at + columns]));
            widths[at] += missing;
            at += columns;
        }
        widths
    }
}

fn group_width(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1)
}

fn join(cells: &[String], widths: &[usize], text: bool) -> String {
    let aligned = cells.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
        // The last column of the first group is a number too.
        if text && column + 1 < cells.len() {
            format!("{cell:<width$}")
        } else {
            format!("{cell:>width$}")
        }
    });
    aligned.collect::<Vec<_>>().join(GAP)
}

/// A number without decimals, its thousands apart.
pub fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::with_capacity(digits.len() + 4);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_titles_centred() {
        let mut table = Table::new(&[("", 2), ("local disk", 2)]);
        table.row(["rw", "depth", "IOPS", "µs"].map(str::to_owned).to_vec());
        table.rule();
        table.row(["read", "1", "9", "1.5"].map(str::to_owned).to_vec());
        let expected = "             │  local disk\n\
                        rw    depth  │   IOPS   µs\n\
                        ─────────────┼────────────\n\
                        read      1  │      9  1.5\n";
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn thousands_are_apart() {
        for (value, text) in [(0.0, "0"), (999.4, "999"), (1000.0, "1,000"), (1.5e6, "1,500,000")] {
            assert_eq!(grouped(value), text);
        }
    }
}
