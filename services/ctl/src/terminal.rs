//! Writes text: data to standard output, notes to standard error, colours only if they are wanted.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, BufRead, IsTerminal as _, Write};

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};

use crate::render::{cut, local};

/// Puts the cursor home; what follows is drawn over what was there.
const HOME: &str = "\x1b[H";
/// Clears the rest of the line.
const CLEAR_LINE: &str = "\x1b[K";
/// Clears everything below the cursor.
const CLEAR_BELOW: &str = "\x1b[J";

/// Standard output and standard error, or what stands for them in a test.
pub struct Terminal {
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
    /// The person's answers; none if nobody is there to answer.
    answers: Option<Box<dyn BufRead + Send>>,
    screen: ScreenSize,
    colour_out: bool,
    colour_err: bool,
}

/// The kind of output.
#[derive(Debug, Clone, Copy)]
enum ScreenSize {
    /// None: a file, or a pipe.
    None,
    /// The process's terminal, of whatever size it has at the time.
    Own,
    /// A given size, in columns and rows.
    Fixed(usize, usize),
}

impl Terminal {
    /// The process's own. `NO_COLOR` and the like are respected.
    pub fn system() -> Self {
        Self {
            screen: if io::stdout().is_terminal() { ScreenSize::Own } else { ScreenSize::None },
            colour_out: AutoStream::choice(&io::stdout()) != ColorChoice::Never,
            colour_err: AutoStream::choice(&io::stderr()) != ColorChoice::Never,
            out: Box::new(io::stdout()),
            err: Box::new(io::stderr()),
            answers: (io::stdin().is_terminal() && io::stderr().is_terminal())
                .then(|| Box::new(io::BufReader::new(io::stdin())) as Box<dyn BufRead + Send>),
        }
    }

    /// Two writers that are no terminal.
    pub fn of(out: impl Write + Send + 'static, err: impl Write + Send + 'static) -> Self {
        Self {
            out: Box::new(out),
            err: Box::new(err),
            answers: None,
            screen: ScreenSize::None,
            colour_out: false,
            colour_err: false,
        }
    }

    /// Two writers, of which the first is a screen of a given size without colours.
    pub fn screen(
        out: impl Write + Send + 'static,
        err: impl Write + Send + 'static,
        columns: usize,
        rows: usize,
    ) -> Self {
        Self { screen: ScreenSize::Fixed(columns, rows), ..Self::of(out, err) }
    }

    /// The same with a person who gives these answers, a line each.
    #[must_use]
    pub fn with_answers(self, answers: impl BufRead + Send + 'static) -> Self {
        Self { answers: Some(Box::new(answers)), ..self }
    }

    /// Asks the person a question on standard error; none if nobody is there to answer. An empty answer is one.
    ///
    /// # Errors
    /// Standard input cannot be read.
    pub fn ask(&mut self, question: &str) -> io::Result<Option<String>> {
        if self.answers.is_none() {
            return Ok(None);
        }
        self.print_note(question);
        let mut line = String::new();
        if let Some(answers) = &mut self.answers {
            answers.read_line(&mut line)?;
        }
        Ok(Some(line))
    }

    /// True where a person looks at the output as it comes.
    pub const fn is_interactive(&self) -> bool {
        !matches!(self.screen, ScreenSize::None)
    }

    /// Whether output may have colours.
    pub const fn has_colour(&self) -> bool {
        self.colour_out
    }

    /// Columns of the screen; none where there is no screen, or it does not tell.
    pub fn width(&self) -> Option<usize> {
        self.size().map(|(columns, _)| columns)
    }

    fn size(&self) -> Option<(usize, usize)> {
        match self.screen {
            ScreenSize::None => None,
            ScreenSize::Own => terminal_size::terminal_size()
                .map(|(columns, rows)| (usize::from(columns.0), usize::from(rows.0))),
            ScreenSize::Fixed(columns, rows) => Some((columns, rows)),
        }
    }

    /// Writes data for people, with times of this machine's zone.
    ///
    /// # Errors
    /// When standard output cannot be written; a reader that went away is one of these.
    pub fn print(&mut self, text: &str) -> io::Result<()> {
        self.print_document(&local::text(text))
    }

    /// Writes a document as it is.
    ///
    /// # Errors
    /// As [`Self::print`].
    pub(crate) fn print_document(&mut self, text: &str) -> io::Result<()> {
        let stripped = (!self.colour_out).then(|| strip_str(text).to_string());
        self.out.write_all(stripped.as_deref().unwrap_or(text).as_bytes())?;
        self.out.flush()
    }

    /// Writes JSON. A file or a program gets it byte for byte; on a terminal, what could steer that is escaped, which leaves
    /// it the same JSON.
    ///
    /// # Errors
    /// As [`Self::print`].
    pub fn print_json(&mut self, json: &str) -> io::Result<()> {
        let json = if self.is_interactive() { harmless(json) } else { json.into() };
        self.out.write_all(json.as_bytes())?;
        self.out.flush()
    }

    /// Clears the screen.
    ///
    /// # Errors
    /// As [`Self::print`].
    pub fn clear(&mut self) -> io::Result<()> {
        write!(self.out, "{HOME}{CLEAR_BELOW}")
    }

    /// Draws data over what was drawn before. It never scrolls: lines are cut at the edge of the screen, and lines
    /// that do not fit on it are left out, and counted.
    ///
    /// # Errors
    /// As [`Self::print`].
    pub(crate) fn redraw(&mut self, text: &str) -> io::Result<()> {
        let (columns, rows) = self.size().unwrap_or((usize::MAX, usize::MAX));
        let text = fitted(&local::text(text), columns, rows);
        let stripped = (!self.colour_out).then(|| strip_str(&text).to_string());
        // A line is cleared before it is drawn: behind one that ends at the edge there is nothing to clear.
        let lines = stripped.as_deref().unwrap_or(&text).replace('\n', &format!("\n{CLEAR_LINE}"));
        write!(self.out, "{HOME}{CLEAR_LINE}{lines}{CLEAR_BELOW}")?;
        self.out.flush()
    }

    /// Prints a note on standard error. A closed standard error is no failure.
    pub fn print_note(&mut self, text: &str) {
        let text = local::text(text);
        let stripped = (!self.colour_err).then(|| strip_str(&text).to_string());
        let _ = self.err.write_all(stripped.as_deref().unwrap_or(&text).as_bytes());
        let _ = self.err.flush();
    }
}

/// JSON without the control characters that it may hold as they are: DEL, and those of C1, of which U+009B begins what a
/// terminal does. All of them are within strings.
fn harmless(json: &str) -> Cow<'_, str> {
    let steers = |c: char| ('\u{7f}'..='\u{9f}').contains(&c);
    if !json.contains(steers) {
        return json.into();
    }
    let escaped = json.chars().fold(String::with_capacity(json.len()), |mut text, c| {
        // Writing to a string cannot fail.
        let _ = if steers(c) { write!(text, "\\u{:04x}", u32::from(c)) } else { text.write_char(c) };
        text
    });
    escaped.into()
}

/// The first lines of a text that fit into `rows`, each cut to `columns`, with a last line that says how many do not.
fn fitted(text: &str, columns: usize, rows: usize) -> String {
    let lines: Vec<_> = text.lines().map(|line| cut::line(line, columns)).collect();
    if lines.len() < rows {
        return lines.iter().map(|line| format!("{line}\n")).collect();
    }
    let shown = rows.saturating_sub(2);
    let fitted: String = lines[..shown].iter().map(|line| format!("{line}\n")).collect();
    let more = format!("… and {} more lines", lines.len() - shown);
    fitted + &cut::line(&more, columns) + "\n"
}

#[cfg(test)]
mod tests {
    use proptest::{prop_assert, proptest};
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    #[test]
    fn what_does_not_fit_is_counted() {
        assert_eq!(fitted("a\nb\n", 80, 3), "a\nb\n");
        assert_eq!(fitted("a\nb\nc\nd\n", 80, 4), "a\nb\n… and 2 more lines\n");
        assert_eq!(fitted("a\nb\n", 80, 1), "… and 2 more lines\n");
        assert_eq!(fitted("abcdef\n", 4, 3), "abc…\n");
    }

    /// A writer whose text can be read.
    #[derive(Clone, Default)]
    struct Page(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn printed(terminal: impl FnOnce(Page) -> Terminal, json: &str) -> String {
        let page = Page::default();
        terminal(page.clone()).print_json(json).unwrap();
        let bytes = page.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn json_steers_no_terminal_and_goes_to_a_program_as_it_is() {
        let json = "{\"message\":\"a\u{9b}31mred\u{85}b\u{7f}c\u{a0}日\"}\n";
        let plain = printed(|page| Terminal::of(page, io::sink()), json);
        assert_eq!(plain, json);
        let shown = printed(|page| Terminal::screen(page, io::sink(), 80, 24), json);
        assert_eq!(shown, "{\"message\":\"a\\u009b31mred\\u0085b\\u007fc\u{a0}日\"}\n");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&shown), value(json));
    }

    proptest! {
        #[test]
        fn json_on_a_terminal_is_the_same_json_without_anything_that_steers(text in proptest::prelude::any::<String>()) {
            let json = serde_json::to_string(&text).unwrap();
            let shown = harmless(&json);
            prop_assert!(!shown.chars().any(char::is_control), "{shown:?}");
            prop_assert!(serde_json::from_str::<String>(&shown).unwrap() == text);
        }

        #[test]
        fn a_picture_never_scrolls(text in "([a-z日]{0,90}\n){0,30}", columns in 4usize..100, rows in 2usize..30) {
            let fitted = fitted(&text, columns, rows);
            prop_assert!(fitted.matches('\n').count() < rows, "{fitted}");
            prop_assert!(fitted.lines().all(|line| line.width() <= columns), "{fitted}");
        }
    }
}
