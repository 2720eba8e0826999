//! Makes texts that devices report harmless for a person's screen.

/// One line of what a device says. Control characters and marks that turn the direction of text would let a device
/// write over the person's screen: each becomes a space.
pub fn clean(text: &str) -> String {
    harmless(text).trim().to_owned()
}

/// A text with a space in place of each hostile character.
pub fn harmless(text: &str) -> String {
    text.chars().map(|char| if is_hostile(char) { ' ' } else { char }).collect()
}

/// True of control characters, of marks that turn or hide text, and of characters that mean something on one machine only.
pub fn is_hostile(char: char) -> bool {
    char.is_control()
        || matches!(
            char,
            '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{e000}'..='\u{f8ff}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffc}'
        )
}
