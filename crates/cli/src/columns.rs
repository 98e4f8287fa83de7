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

/// A text in lines of at most `most` characters, as far as its words are not longer.
pub(crate) fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always one");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= most {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::{Side, lines, wrapped};

    #[test]
    fn long_texts_go_on_below() {
        assert_eq!(wrapped("from 10 GiB to", 7), ["from 10", "GiB to"]);
        assert_eq!(wrapped("hyperdisk-balanced", 7), ["hyperdisk-balanced"]);
        assert_eq!(wrapped("", 7), [""]);
    }

    #[test]
    fn cells_stand_under_each_other() {
        let rows = [vec!["a".to_owned(), "10".to_owned()], vec!["bcd".to_owned(), "9".to_owned()]];
        let head = [("of", Side::Left), ("n", Side::Right)];
        assert_eq!(lines(&head, &rows), ["of    n", "---  --", "a    10", "bcd   9"]);
    }
}
