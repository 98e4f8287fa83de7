//! Text tables: aligned columns without borders, two spaces apart.
//!
//! Lines have no trailing spaces, so that recorded outputs survive an editor that strips them.

pub(crate) use comfy_table::CellAlignment::{self, Left, Right};
use comfy_table::{ColumnConstraint, Table, Width, presets};

/// The head and the rows, one string for each line. Each column is as wide as its widest cell.
pub(crate) fn lines(head: &[(&str, CellAlignment)], rows: &[Vec<String>]) -> Vec<String> {
    let alignments: Vec<CellAlignment> = head.iter().map(|(_, alignment)| *alignment).collect();
    let mut table = table(rows);
    table.set_header(head.iter().map(|(name, _)| *name));
    aligned(table, &alignments)
}

pub(crate) fn rows(alignments: &[CellAlignment], rows: &[Vec<String>]) -> Vec<String> {
    aligned(table(rows), alignments)
}

/// Like [`lines`], with all columns to the left and cells wrapped at `width` characters.
pub(crate) fn wrapped_lines(head: &[&str], rows: &[Vec<String>], width: u16) -> Vec<String> {
    let mut table = table(rows);
    table.set_header(head);
    wrapped(table, width)
}

pub(crate) fn wrapped_rows(rows: &[Vec<String>], width: u16) -> Vec<String> {
    wrapped(table(rows), width)
}

fn wrapped(mut table: Table, width: u16) -> Vec<String> {
    for column in table.column_iter_mut() {
        column.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(width + 2)));
    }
    let columns = table.column_count();
    aligned(table, &vec![Left; columns])
}

fn table(rows: &[Vec<String>]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).add_rows(rows);
    table
}

fn aligned(mut table: Table, alignments: &[CellAlignment]) -> Vec<String> {
    for (column, alignment) in table.column_iter_mut().zip(alignments) {
        column.set_padding((0, 2)).set_cell_alignment(*alignment);
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|cell| (*cell).to_owned()).collect()
    }

    #[test]
    fn numbers_align_to_the_right() {
        let body = [cells(&["a", "10"]), cells(&["bcd", "9"])];
        assert_eq!(lines(&[("of", Left), ("n", Right)], &body), ["of    n", "a    10", "bcd   9"]);
        assert_eq!(rows(&[Left, Right], &body), ["a    10", "bcd   9"]);
    }

    #[test]
    fn long_cells_wrap_in_their_column() {
        let body = [cells(&["a", "from 10 GiB to"]), cells(&["b", "x"])];
        let expected = ["of  n", "a   from 10", "    GiB to", "b   x"];
        assert_eq!(wrapped_lines(&["of", "n"], &body, 7), expected);
        assert_eq!(wrapped_rows(&body[..1], 7), ["a  from 10", "   GiB to"]);
    }
}
