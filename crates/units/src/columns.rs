//! Text tables: aligned columns without borders, two spaces apart.
//!
//! Lines have no trailing spaces, so that recorded outputs survive an editor that strips them.

pub use comfy_table::CellAlignment::{self, Left, Right};
use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};

/// The head and the rows, one string for each line. Each column is as wide as its widest cell.
pub fn lines(head: &[(&str, CellAlignment)], rows: &[Vec<String>]) -> Vec<String> {
    let alignments: Vec<CellAlignment> = head.iter().map(|(_, alignment)| *alignment).collect();
    let mut table = table(rows);
    table.set_header(head.iter().map(|(name, _)| *name));
    aligned(table, &alignments)
}

/// Rows without a head, as [`lines`] writes them.
pub fn rows(alignments: &[CellAlignment], rows: &[Vec<String>]) -> Vec<String> {
    aligned(table(rows), alignments)
}

/// Like [`lines`], with all columns to the left and cells wrapped at `width` characters.
pub fn wrapped_lines(head: &[&str], rows: &[Vec<String>], width: u16) -> Vec<String> {
    let mut table = table(rows);
    table.set_header(head);
    wrapped(table, width)
}

/// Rows without a head, as [`wrapped_lines`] writes them.
pub fn wrapped_rows(rows: &[Vec<String>], width: u16) -> Vec<String> {
    wrapped(table(rows), width)
}

/// Spaces before each column of [`fitted_rows`].
const INDENT: u16 = 2;

/// Rows whose lines have at most `width` characters where that is possible without breaking a word:
/// the widest cells wrap. Each column is indented.
pub fn fitted_rows(alignments: &[CellAlignment], rows: &[Vec<String>], width: u16) -> Vec<String> {
    let mut table = table(rows);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    for (at, column) in table.column_iter_mut().enumerate() {
        let least = rows.iter().filter_map(|row| row.get(at)).map(|cell| least_width(cell)).max();
        let least = Width::Fixed(least.unwrap_or(0));
        column.set_constraint(ColumnConstraint::LowerBoundary(least)).set_padding((INDENT, 0));
    }
    trimmed(table, alignments)
}

/// Characters of a column of [`fitted_rows`] that holds this cell: its longest word and the indent.
pub fn least_width(cell: &str) -> u16 {
    let longest = cell.split(' ').map(|word| word.chars().count()).max().unwrap_or(0);
    u16::try_from(longest).unwrap_or(u16::MAX).saturating_add(INDENT)
}

/// A text in lines of at most `width` characters, broken between words.
pub fn paragraph(text: &str, width: u16) -> Vec<String> {
    wrapped_rows(&[vec![text.to_owned()]], width)
}

/// Text in lines of at most `width` characters, broken at spaces only: a longer word stays whole.
pub fn filled(text: &str, width: usize) -> String {
    let mut out = String::new();
    let mut used = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if used > 0 {
            let fits = used + 1 + length <= width;
            out.push(if fits { ' ' } else { '\n' });
            used = if fits { used + 1 } else { 0 };
        }
        out += word;
        used += length;
    }
    out
}

/// Text in lines of at most `width` characters, broken at spaces and, in longer words, at hyphens.
pub fn folded(text: &str, width: usize) -> String {
    let mut out = String::new();
    let mut used = 0;
    for word in text.split(' ') {
        let whole = word.chars().count();
        if used > 0 && used + 1 + whole > width {
            out.push('\n');
            used = 0;
        } else if used > 0 {
            out.push(' ');
            used += 1;
        }
        let pieces: Vec<&str> = match whole > width {
            true => word.split_inclusive('-').collect(),
            false => vec![word],
        };
        for piece in pieces {
            let length = piece.chars().count();
            if used > 0 && used + length > width {
                out.push('\n');
                used = 0;
            }
            out += piece;
            used += length;
        }
    }
    out
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
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    trimmed(table, alignments)
}

fn trimmed(mut table: Table, alignments: &[CellAlignment]) -> Vec<String> {
    for (column, alignment) in table.column_iter_mut().zip(alignments) {
        column.set_cell_alignment(*alignment);
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
    fn folded_text_breaks_at_spaces_and_long_words_at_hyphens() {
        assert_eq!(folded("1 x 20 GiB pd-ssd", 10), "1 x 20 GiB\npd-ssd");
        assert_eq!(
            filled("a source: https://x-y.org/z now", 10),
            "a source:\nhttps://x-y.org/z\nnow"
        );
        assert_eq!(folded("of a-long-name, b", 7), "of\na-long-\nname, b");
        assert_eq!(folded("short", 10), "short");
        assert_eq!(folded("", 10), "");
    }

    #[test]
    fn long_cells_wrap_in_their_column() {
        let body = [cells(&["a", "from 10 GiB to"]), cells(&["b", "x"])];
        let expected = ["of  n", "a   from 10", "    GiB to", "b   x"];
        assert_eq!(wrapped_lines(&["of", "n"], &body, 7), expected);
        assert_eq!(wrapped_rows(&body[..1], 7), ["a  from 10", "   GiB to"]);
        assert_eq!(paragraph("from 10 GiB to 1 TiB", 10), ["from 10", "GiB to 1", "TiB"]);
    }

    #[test]
    fn widest_cells_wrap_to_fit_a_width() {
        let body = [cells(&["a", "1", "from 10 GiB to 1 TiB"]), cells(&["bcd", "10", "x"])];
        let expected = ["  a     1  from 10 GiB", "           to 1 TiB", "  bcd  10  x"];
        assert_eq!(fitted_rows(&[Left, Right, Left], &body, 23), expected);
        let whole = fitted_rows(&[Left], &[cells(&["long-word x"])], 5);
        assert_eq!(whole, ["  long-word", "  x"]);
    }
}
