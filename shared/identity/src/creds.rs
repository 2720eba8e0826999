//! Reads and writes the text of credentials files: a JWT and the seed that proves it, in the format of all NATS clients.

/// The token between its lines of dashes.
pub fn token(text: &str) -> Option<&str> {
    block(text, "NATS USER JWT")
}

/// The seed between its lines of dashes.
pub fn seed(text: &str) -> Option<&str> {
    block(text, "USER NKEY SEED")
}

/// The text of a credentials file. It is secret: any client that has it can act as the user.
pub fn to_text(token: &str, seed: &str) -> String {
    format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
         Keep this file secret: its holder is this user.\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}

/// The line between `-----BEGIN <name>-----` and the next line of dashes.
fn block<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let begin = format!("BEGIN {name}");
    let mut lines = text.lines().map(str::trim).skip_while(|line| !line.contains(&begin));
    lines.next()?;
    lines.find(|line| !line.is_empty()).filter(|line| !line.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_it_is_written() {
        let text = to_text("a.b.c", "SUA");
        assert_eq!((token(&text), seed(&text)), (Some("a.b.c"), Some("SUA")));
        assert_eq!((token(""), seed("-----BEGIN USER NKEY SEED-----\n------END")), (None, None));
    }
}
