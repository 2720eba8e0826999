//! Text with the styles of [`colour`](crate::render::colour) as a line of the screen. A text without a colour keeps bold and
//! dim; backgrounds are never set, so light and dark terminals keep their own.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use crate::render::local;

/// A line of styled text, with times of this machine's zone.
pub(super) fn line(text: &str, has_colour: bool) -> Line<'static> {
    let text = local::text(text);
    let mut spans = Vec::new();
    let mut style = Style::new();
    for part in text.split('\x1b') {
        let (code, words) = match part.strip_prefix('[').and_then(|rest| rest.split_once('m')) {
            Some((code, words)) if code.chars().all(|sign| sign.is_ascii_digit() || sign == ';') => {
                (code, words)
            }
            _ => ("", part),
        };
        if !code.is_empty() {
            style = code.split(';').fold(style, |style, code| applied(style, code, has_colour));
        }
        if !words.is_empty() {
            spans.push(Span::styled(words.to_owned(), style));
        }
    }
    Line::from(spans)
}

fn applied(style: Style, code: &str, has_colour: bool) -> Style {
    let coloured = |colour| if has_colour { style.fg(colour) } else { style };
    match code {
        "" | "0" => Style::new(),
        "1" => style.add_modifier(Modifier::BOLD),
        "2" => style.add_modifier(Modifier::DIM),
        "31" => coloured(Color::Red),
        "32" => coloured(Color::Green),
        "33" => coloured(Color::Yellow),
        "36" => coloured(Color::Cyan),
        _ => style,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::colour::{BAD, DIM, MOVING, PLAIN, UNSURE, WELL, styled};

    #[test]
    fn every_style_of_a_text_is_one_of_the_screen() {
        for (style, colour, modifier) in [
            (BAD, Some(Color::Red), Modifier::BOLD),
            (UNSURE, Some(Color::Yellow), Modifier::empty()),
            (MOVING, Some(Color::Cyan), Modifier::empty()),
            (WELL, Some(Color::Green), Modifier::empty()),
            (DIM, None, Modifier::DIM),
            (PLAIN, None, Modifier::empty()),
        ] {
            let text = format!("a {} c", styled(style, "b"));
            let shown = line(&text, true);
            let word = shown.spans.iter().find(|span| span.content.contains('b')).unwrap();
            assert_eq!((word.style.fg, word.style.add_modifier), (colour, modifier), "{text:?}");
            assert_eq!(shown.to_string(), "a b c");
            assert!(
                line(&text, false)
                    .spans
                    .iter()
                    .all(|span| span.style.fg.is_none() && span.style.bg.is_none())
            );
        }
    }
}
