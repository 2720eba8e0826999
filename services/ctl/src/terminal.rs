//! Where text goes: data to standard output, talk to standard error, colours only where they are wanted.

use std::io::{self, IsTerminal as _, Write};

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};

/// Puts the cursor home; what follows is drawn over what was there.
const HOME: &str = "\x1b[H";
/// Clears the rest of the line.
const CLEAR_LINE: &str = "\x1b[K";
/// Clears everything below the cursor.
const CLEAR_BELOW: &str = "\x1b[J";

/// Standard output and standard error, or what stands for them in a test.
pub struct Terminal {
    out: Box<dyn Write>,
    err: Box<dyn Write>,
    interactive: bool,
    colour_out: bool,
    colour_err: bool,
}

impl Terminal {
    /// The process's own. `NO_COLOR` and the like are respected.
    pub fn system() -> Self {
        Self {
            interactive: io::stdout().is_terminal(),
            colour_out: AutoStream::choice(&io::stdout()) != ColorChoice::Never,
            colour_err: AutoStream::choice(&io::stderr()) != ColorChoice::Never,
            out: Box::new(io::stdout()),
            err: Box::new(io::stderr()),
        }
    }

    /// Two writers that are no terminal.
    pub fn of(out: impl Write + 'static, err: impl Write + 'static) -> Self {
        Self {
            out: Box::new(out),
            err: Box::new(err),
            interactive: false,
            colour_out: false,
            colour_err: false,
        }
    }

    /// True where a person looks at the output as it comes.
    pub const fn is_interactive(&self) -> bool {
        self.interactive
    }

    /// Writes data.
    ///
    /// # Errors
    /// When standard output cannot be written; a reader that went away is one of these.
    pub fn print(&mut self, text: &str) -> io::Result<()> {
        let stripped = (!self.colour_out).then(|| strip_str(text).to_string());
        self.out.write_all(stripped.as_deref().unwrap_or(text).as_bytes())?;
        self.out.flush()
    }

    /// Clears the screen.
    ///
    /// # Errors
    /// As [`Self::print`].
    pub fn clear(&mut self) -> io::Result<()> {
        write!(self.out, "{HOME}{CLEAR_BELOW}")
    }

    /// Draws data over what was drawn before; what does not fit on the screen is left out, and counted.
    ///
    /// # Errors
    /// As [`Self::print`].
    pub fn redraw(&mut self, text: &str) -> io::Result<()> {
        let rows = terminal_size::terminal_size().map_or(usize::MAX, |(_, rows)| usize::from(rows.0));
        let text = fitted(text, rows);
        let stripped = (!self.colour_out).then(|| strip_str(&text).to_string());
        let lines = stripped.as_deref().unwrap_or(&text).replace('\n', &format!("{CLEAR_LINE}\n"));
        write!(self.out, "{HOME}{lines}{CLEAR_BELOW}")?;
        self.out.flush()
    }

    /// Says something to the person. That nobody listens is no failure.
    pub fn say(&mut self, text: &str) {
        let stripped = (!self.colour_err).then(|| strip_str(text).to_string());
        let _ = self.err.write_all(stripped.as_deref().unwrap_or(text).as_bytes());
        let _ = self.err.flush();
    }
}

/// The first lines of a text that fit into `rows`, with a last line that says how many do not.
fn fitted(text: &str, rows: usize) -> String {
    let lines: Vec<_> = text.lines().collect();
    if lines.len() < rows {
        return lines.iter().map(|line| format!("{line}\n")).collect();
    }
    let shown = rows.saturating_sub(2);
    let mut fitted: String = lines[..shown].iter().map(|line| format!("{line}\n")).collect();
    fitted += &format!("… and {} more lines\n", lines.len() - shown);
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted() {
        assert_eq!(fitted("a\nb\n", 3), "a\nb\n");
        assert_eq!(fitted("a\nb\nc\nd\n", 4), "a\nb\n… and 2 more lines\n");
        assert_eq!(fitted("a\nb\n", 1), "… and 2 more lines\n");
    }
}
