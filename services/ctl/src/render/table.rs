//! Aligned columns of text. Widths are what a terminal shows; the last column is never padded.
//!
//! A table that has to fit into a width first loses the columns in which every row has a dash, then those that matter
//! least (and says so), and then cells are shortened: names in their middle, other text at its end. Numbers never are.

use std::fmt;

use anstyle::Style;
use unicode_width::UnicodeWidthStr as _;

use super::colour::{BOLD, DIM, PLAIN, styled};
use super::cut;
use super::local;

const GAP: &str = "  ";
/// A count of zero: quieter than a digit.
const ZERO: &str = "-";
/// Least widths to which a column of text is shortened: a column that is never left out (every verdict fits), and any other.
const NAME_LEAST: usize = 16;
const TEXT_LEAST: usize = 12;
/// Columns that are never left out: the name and its first property.
const KEPT: usize = 2;

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
    left_out: Vec<&'static str>,
    room: usize,
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
    spare: bool,
}

impl Cell {
    /// Text in a style.
    pub(crate) fn styled(text: impl Into<String>, style: Style) -> Self {
        // Before widths are taken: a time with an offset is wider.
        let text = local::text(&text.into()).into_owned();
        Self { text, style }
    }

    /// The text as it stands outside a table.
    pub fn alone(&self) -> String {
        styled(self.style, &self.text)
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
    /// One with `?` before that is left out first where there is no room.
    pub fn new(titles: &[&'static str]) -> Self {
        let column = |title: &&'static str| {
            let (spare, title) = title.strip_prefix('?').map_or((false, *title), |title| (true, title));
            let (right, title) = title.strip_prefix('>').map_or((false, title), |title| (true, title));
            Column { title, right, spare }
        };
        let columns = titles.iter().map(column).collect();
        Self { columns, rows: Vec::new(), left_out: Vec::new(), room: usize::MAX }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.row_above(cells, String::new());
    }

    /// Adds a row with lines of text below it, each with its line break.
    pub(crate) fn row_above(&mut self, cells: impl IntoIterator<Item = Cell>, below: String) {
        self.rows.push(Row { cells: cells.into_iter().collect(), below });
    }

    /// The table made to fit into a width, as far as that can be; as it is where there is none.
    pub fn within(mut self, width: Option<usize>) -> Self {
        let Some(room) = width else { return self };
        self.room = room;
        if total(&self.widths()) > room {
            self.drop_dashes();
            while self.columns.len() > KEPT && total(&self.least()) > room {
                let spare = self.columns.iter().rposition(|column| column.spare);
                self.drop_column(spare.unwrap_or(self.columns.len() - 1));
            }
            self.shorten();
        }
        self
    }

    fn drop_dashes(&mut self) {
        for at in (KEPT..self.columns.len()).rev() {
            let mut cells = self.rows.iter().filter_map(|row| row.cells.get(at));
            if cells.all(|cell| cell.text.is_empty() || cell.text == ZERO) {
                self.drop_column(at);
                self.left_out.pop();
            }
        }
    }

    fn drop_column(&mut self, at: usize) {
        self.left_out.push(self.columns.remove(at).title);
        self.rows.iter_mut().filter(|row| at < row.cells.len()).for_each(|row| _ = row.cells.remove(at));
    }

    /// The least widths that columns can have.
    fn least(&self) -> Vec<usize> {
        let least = |(at, width): (usize, usize)| match (self.columns[at].right, at) {
            (true, _) => width,
            (false, ..KEPT) => width.min(NAME_LEAST),
            (false, _) => width.min(TEXT_LEAST),
        };
        self.widths().into_iter().enumerate().map(least).collect()
    }

    /// Shortens the widest cells until every line fits.
    fn shorten(&mut self) {
        let (mut widths, least) = (self.widths(), self.least());
        while total(&widths) > self.room {
            let widest = (0..widths.len()).filter(|at| widths[*at] > least[*at]).max_by_key(|at| widths[*at]);
            let Some(widest) = widest else { break };
            widths[widest] -= 1;
        }
        for row in &mut self.rows {
            for (at, cell) in row.cells.iter_mut().enumerate() {
                let cut = if at == 0 { cut::middle } else { cut::end };
                cell.text = cut(&cell.text, widths[at]);
            }
        }
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
        })?;
        if self.left_out.is_empty() {
            return Ok(());
        }
        let words = format!("no room for {}", self.left_out.join(", "));
        writeln!(f, "{}", styled(DIM, &cut::end(&words, self.room)))
    }
}

/// Width of a line.
fn total(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(table: &Table) -> String {
        anstream::adapter::strip_str(&table.to_string()).to_string()
    }

    #[test]
    fn a_table_fits_its_room_and_says_what_it_left_out() {
        let mut table = Table::new(&["NAME", "VERDICT", "?>COUNT", "STATES", ">STALE", ">NEVER"]);
        let states = "1 failed, 1 waiting, 3 installed";
        let row = |name: &str| [name.into(), "failing".into(), Cell::count(6), states.into()];
        table.row(row("6f0b2a52-6c0e-4a4b-9a57").into_iter().chain([Cell::count(12), Cell::count(0)]));
        table.row(row("web").into_iter().chain([Cell::count(0), Cell::count(0)]));
        let whole = plain(&table.clone().within(None));
        assert!(whole.contains("NEVER") && whole.contains(states), "{whole}");
        assert_eq!(plain(&table.clone().within(Some(200))), whole, "where there is room nothing is lost");
        let fitted = plain(&table.clone().within(Some(60)));
        assert!(!fitted.contains("NEVER") && !fitted.contains("no room"), "{fitted}");
        assert!(fitted.contains("6f0b2a52") && fitted.contains("9a57  failing"), "{fitted}");
        let narrow = plain(&table.clone().within(Some(40)));
        assert!(narrow.ends_with("no room for COUNT, STALE\n") && narrow.contains("STATES"), "{narrow}");
        for room in 25..120 {
            let fitted = plain(&table.clone().within(Some(room)));
            assert!(fitted.lines().all(|line| line.width() <= room), "{room}:\n{fitted}");
        }
    }

    #[test]
    fn columns_line_up_by_what_is_seen() {
        let mut table = Table::new(&["NAME", ">COUNT", "NOTE"]);
        table.row(["press-4".into(), Cell::count(12), "ü".into()]);
        table.row(["日本".into(), Cell::count(0), "".into()]);
        let plain = anstream::adapter::strip_str(&table.to_string()).to_string();
        assert_eq!(plain, "NAME     COUNT  NOTE\npress-4     12  ü\n日本         -\n");
    }
}
