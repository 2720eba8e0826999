//! Aligned columns of text. Widths are what a terminal shows; the last column is never padded.

use std::fmt;

use anstyle::Style;
use unicode_width::UnicodeWidthStr as _;

use super::paint::{BOLD, DIM, PLAIN};

const GAP: &str = "  ";
/// A count of zero: quieter than a digit.
const ZERO: &str = "-";

/// One cell: text in one style.
#[derive(Debug, Clone)]
pub struct Cell {
    text: String,
    style: Style,
}

/// A table with a head.
#[derive(Debug, Clone)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Row>,
}

#[derive(Debug, Clone)]
struct Row {
    cells: Vec<Cell>,
    below: String,
}

#[derive(Debug, Clone, Copy)]
struct Column {
    title: &'static str,
    right: bool,
}

impl Cell {
    /// Text in a style.
    pub fn styled(text: impl Into<String>, style: Style) -> Self {
        Self { text: text.into(), style }
    }

    /// A number; zero is a dash.
    pub fn count(count: u64) -> Self {
        Self::marked(count, PLAIN)
    }

    /// A number whose being above zero matters.
    pub fn marked(count: u64, style: Style) -> Self {
        if count == 0 { Self::styled(ZERO, DIM) } else { Self::styled(count.to_string(), style) }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::styled(text, PLAIN)
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::styled(text, PLAIN)
    }
}

impl Table {
    /// A table with these titles. A title with `>` before it stands over numbers: its column is aligned to the right.
    pub fn new(titles: &[&'static str]) -> Self {
        let column = |title: &&'static str| match title.strip_prefix('>') {
            Some(title) => Column { title, right: true },
            None => Column { title, right: false },
        };
        Self { columns: titles.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.row_above(cells, String::new());
    }

    /// Adds a row with lines of text below it, each with its line break.
    pub fn row_above(&mut self, cells: impl IntoIterator<Item = Cell>, below: String) {
        self.rows.push(Row { cells: cells.into_iter().collect(), below });
    }

    fn widths(&self) -> Vec<usize> {
        let width = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.cells.get(at)).map(|cell| cell.text.width());
            cells.chain([self.columns[at].title.width()]).max().unwrap_or_default()
        };
        (0..self.columns.len()).map(width).collect()
    }

    fn line(&self, f: &mut fmt::Formatter<'_>, cells: &[Cell], widths: &[usize]) -> fmt::Result {
        let last = cells.iter().rposition(|cell| !cell.text.is_empty()).unwrap_or_default();
        for (at, cell) in cells.iter().enumerate().take(last + 1) {
            let padding = widths[at] - cell.text.width();
            let gap = if at == 0 { "" } else { GAP };
            let (before, after) = if self.columns[at].right { (padding, 0) } else { (0, padding) };
            let after = if at == last { 0 } else { after };
            let Cell { text, style } = cell;
            write!(f, "{gap}{:before$}{style}{text}{style:#}{:after$}", "", "")?;
        }
        writeln!(f)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let head: Vec<_> = self.columns.iter().map(|column| Cell::styled(column.title, BOLD)).collect();
        self.line(f, &head, &widths)?;
        self.rows.iter().try_for_each(|row| {
            self.line(f, &row.cells, &widths)?;
            f.write_str(&row.below)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_by_what_is_seen() {
        let mut table = Table::new(&["NAME", ">COUNT", "NOTE"]);
        table.row(["press-4".into(), Cell::count(12), "ü".into()]);
        table.row(["日本".into(), Cell::count(0), "".into()]);
        let plain = anstream::adapter::strip_str(&table.to_string()).to_string();
        assert_eq!(plain, "NAME     COUNT  NOTE\npress-4     12  ü\n日本         -\n");
    }
}
