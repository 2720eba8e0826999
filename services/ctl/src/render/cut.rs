//! Text cut to a width, as a terminal counts it, between two characters that a person sees: a terminal may show a character and
//! the sign after it wider than the character alone (`#` with a variation selector). What was cut is marked by `…`.

use muster_contract::canonical::Digest;
use unicode_segmentation::UnicodeSegmentation as _;
use unicode_width::UnicodeWidthStr as _;

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
    let mut cut = head(text.graphemes(true), width.saturating_sub(1)).concat();
    cut.push(MARK);
    cut
}

/// The beginning and the end of a text: of long names, both tell.
pub fn middle(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let room = width.saturating_sub(1);
    let begin = head(text.graphemes(true), room - room / 2).concat();
    let mut tail = head(text.graphemes(true).rev(), room / 2);
    tail.reverse();
    format!("{begin}{MARK}{}", tail.concat())
}

fn head<'a>(graphemes: impl Iterator<Item = &'a str>, width: usize) -> Vec<&'a str> {
    let mut room = width;
    graphemes
        .take_while(|grapheme| {
            let wide = grapheme.width();
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
    for part in styled.graphemes(true) {
        if in_escape || part.starts_with(ESCAPE) {
            // An escape of ours ends with its only letter.
            in_escape = !part.starts_with(|first: char| first.is_ascii_alphabetic());
            cut.push_str(part);
            continue;
        }
        let wide = part.width();
        if full || wide > room {
            if !full {
                cut.push(MARK);
            }
            full = true;
            continue;
        }
        room -= wide;
        cut.push_str(part);
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

    #[test]
    fn a_sign_with_a_variation_selector_is_kept_whole_or_cut() {
        // `#` is one wide, and two with the selector that makes it an emoji.
        let text = "0123456789#\u{fe0f}abc";
        for cut in [end, middle, line] {
            for width in 1..text.width() {
                let cut = cut(text, width);
                assert!(cut.width() <= width, "{cut:?} is wider than {width}");
                assert_eq!(cut.contains('#'), cut.contains('\u{fe0f}'), "{cut:?}");
            }
        }
        assert_eq!(end(text, 12), "0123456789…");
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
