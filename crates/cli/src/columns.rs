//! Columns that stand under each other.

/// The side on which a column's cells begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// The head, a rule of dashes and the rows, as lines without spaces at their ends. Rows have as many
/// cells as the head; each column is as wide as its widest cell.
pub(crate) fn lines(head: &[(&str, Side)], rows: &[Vec<String>]) -> Vec<String> {
    let widths: Vec<usize> = head
        .iter()
        .enumerate()
        .map(|(column, (name, _))| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([name.chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &[String]| {
        let padded =
            cells.iter().zip(head).zip(&widths).map(|((cell, (_, side)), width)| match side {
                Side::Left => format!("{cell:<width$}"),
                Side::Right => format!("{cell:>width$}"),
            });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let names: Vec<String> = head.iter().map(|(name, _)| (*name).to_owned()).collect();
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let mut out = vec![line(&names), line(&rule)];
    out.extend(rows.iter().map(|row| line(row)));
    out
}

#[cfg(test)]
mod tests {
    use super::{Side, lines};

    #[test]
    fn cells_stand_under_each_other() {
        let rows = [vec!["a".to_owned(), "10".to_owned()], vec!["bcd".to_owned(), "9".to_owned()]];
        let head = [("of", Side::Left), ("n", Side::Right)];
        assert_eq!(lines(&head, &rows), ["of    n", "---  --", "a    10", "bcd   9"]);
    }
}
