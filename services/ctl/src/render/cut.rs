//! Text cut to a width, as a terminal counts it. What was cut is marked by `…`.

use muster_contract::canonical::Digest;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Characters of a digest that tell it apart for a person.
const DIGEST_WIDTH: usize = 20;
const MARK: char = '…';
const ESCAPE: char = '\x1b';

/// The beginning of a digest, which tells it apart for a person.
pub fn short(digest: &Digest) -> String {
    end(&digest.to_string(), DIGEST_WIDTH)
}

/// The beginning of a text.
pub fn end(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut cut = head(text.chars(), width.saturating_sub(1));
    cut.push(MARK);
    cut
}

/// The beginning and the end of a text: of long names, both tell.
pub fn middle(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let room = width.saturating_sub(1);
    let tail: String = head(text.chars().rev(), room / 2).chars().rev().collect();
    format!("{}{MARK}{tail}", head(text.chars(), room - room / 2))
}

fn head(chars: impl Iterator<Item = char>, width: usize) -> String {
    let mut room = width;
    chars
        .take_while(|char| {
            let wide = char.width().unwrap_or_default();
            let fits = wide <= room;
            room = room.saturating_sub(wide);
            fits
        })
        .collect()
}

/// The beginning of a styled line. Its escapes are all kept, so that no style runs on into the next line.
pub fn line(styled: &str, width: usize) -> String {
    if anstream::adapter::strip_str(styled).to_string().width() <= width {
        return styled.to_owned();
    }
    let (mut cut, mut room, mut in_escape, mut full) = (String::new(), width.saturating_sub(1), false, false);
    for char in styled.chars() {
        if char == ESCAPE || in_escape {
            // An escape of ours ends with its only letter.
            in_escape = !char.is_ascii_alphabetic();
            cut.push(char);
            continue;
        }
        let wide = char.width().unwrap_or_default();
        if full || wide > room {
            if !full {
                cut.push(MARK);
            }
            full = true;
            continue;
        }
        room -= wide;
        cut.push(char);
    }
    cut
}

#[cfg(test)]
mod tests {
    use proptest::{prop_assert, proptest};

    use super::*;

    #[test]
    fn names_keep_both_ends_and_sentences_their_beginning() {
        assert_eq!(middle("6f0b2a52-6c0e-4a4b-9a57", 11), "6f0b2…-9a57");
        assert_eq!(middle("web", 11), "web");
        assert_eq!(end("1 failed, 3 installed", 9), "1 failed…");
        assert_eq!(end("日本語", 4), "日…");
        assert_eq!(line("a \u{1b}[31mbcd\u{1b}[0m e", 4), "a \u{1b}[31mb…\u{1b}[0m");
    }

    proptest! {
        #[test]
        fn nothing_is_wider_than_its_room(text in "\\PC{0,40}", width in 1usize..30) {
            for cut in [end(&text, width), middle(&text, width), line(&text, width)] {
                prop_assert!(cut.width() <= width, "{cut:?}");
            }
        }
    }
}
