//! Leaves secrets out of a text: keys, tokens, passwords in addresses, values of names that say they are secret.
//!
//! It rather leaves out too much: what looks like a random string of 32 characters or more goes, whatever it is. Digests,
//! public keys and identifiers stay.

/// Stands for what is left out.
const LEFT_OUT: &str = "[left out]";
/// Parts of names whose values are secret.
const NAMES: [&str; 12] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "api_key",
    "api-key",
    "authorization",
    "seed",
    "private",
    "credential",
];
/// Words between a name and its value.
const SCHEMES: [&str; 3] = ["bearer", "basic", "token"];
/// Shortest seed of NATS.
const SEED_BYTES_MIN: usize = 50;
/// Shortest string that counts as random.
const RANDOM_BYTES_MIN: usize = 32;
/// Shortest token of the form JWT.
const JWT_BYTES_MIN: usize = 20;

/// The text without its secrets.
pub(super) fn redact(text: &str) -> String {
    let (mut out, mut in_key) = (String::with_capacity(text.len()), false);
    for line in text.split_inclusive('\n') {
        let (begins, ends) = (line.contains("--BEGIN "), line.contains("--END "));
        if in_key || begins {
            if begins {
                out += LEFT_OUT;
                out.push('\n');
            }
            in_key = !ends;
            continue;
        }
        redact_line(line, &mut out);
    }
    out
}

fn redact_line(line: &str, out: &mut String) {
    let mut rest = line;
    while !rest.is_empty() {
        let word_end = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(word_end);
        let gap_end = after.find(is_of_word).unwrap_or(after.len());
        let (gap, next) = after.split_at(gap_end);
        out.push_str(if is_secret(word) { LEFT_OUT } else { word });
        out.push_str(gap);
        rest = next;
        if gap.contains("://") {
            rest = without_login(next, out);
        } else if is_secret_name(word) && introduces_value(word, gap) {
            rest = without_value(gap, next, out);
        }
    }
}

const fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '.' | '~')
}

/// Leaves `user:password@` of an address out; the rest of the line.
fn without_login<'a>(address: &'a str, out: &mut String) -> &'a str {
    let end = address
        .find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '/' | ','))
        .unwrap_or(address.len());
    match address[..end].rfind('@') {
        Some(at) => {
            out.push_str(LEFT_OUT);
            &address[at..]
        }
        None => address,
    }
}

fn is_secret_name(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    NAMES.iter().any(|name| word.contains(name))
}

/// Whether what follows a name is its value: `name=`, `name: `, `"name": "`, `--name `.
fn introduces_value(word: &str, gap: &str) -> bool {
    let plain = gap.trim_matches(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '\\'));
    plain == "=" || plain == ":" || (word.starts_with("--") && plain.is_empty())
}

/// Leaves the value after a name out; the rest of the line.
fn without_value<'a>(gap: &str, value: &'a str, out: &mut String) -> &'a str {
    let quote = gap.chars().last().filter(|c| matches!(c, '"' | '\''));
    let end_of = |text: &str| match quote {
        Some(quote) => text.find(quote),
        None => text.find(|c: char| c.is_whitespace() || matches!(c, ',' | ';' | '&' | '}' | ')')),
    };
    let mut end = end_of(value).unwrap_or(value.trim_end().len());
    // `Authorization: Bearer …` has its value after one more word.
    if SCHEMES.contains(&value[..end].to_ascii_lowercase().as_str()) {
        let next = value[end..].trim_start();
        let start = value.len() - next.len();
        end = start + end_of(next).unwrap_or(next.trim_end().len());
    }
    out.push_str(LEFT_OUT);
    &value[end..]
}

fn is_secret(word: &str) -> bool {
    let is_jwt = word.starts_with("eyJ") && word.len() >= JWT_BYTES_MIN;
    is_jwt || word.split(['.', '/']).any(|part| is_seed(part) || is_random(part))
}

fn is_seed(part: &str) -> bool {
    let mut chars = part.chars();
    chars.next() == Some('S')
        && chars.next().is_some_and(|kind| "NCXOAU".contains(kind))
        && part.len() >= SEED_BYTES_MIN
        && chars.all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
}

fn is_random(part: &str) -> bool {
    let has = |is: fn(&char) -> bool| part.chars().any(|c| is(&c));
    part.len() >= RANDOM_BYTES_MIN
        && has(char::is_ascii_lowercase)
        && has(char::is_ascii_uppercase)
        && has(char::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_every_form_are_left_out() {
        let seed = format!("SU{}", "A".repeat(56));
        for (text, secret) in [
            (format!("loaded {seed}\n"), seed.as_str()),
            ("jwt eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ.e30.x\n".to_owned(), "eyJ0eXAi"),
            ("nats://hub:hunter2@top:4222 refused".to_owned(), "hunter2"),
            ("password=hunter2 next".to_owned(), "hunter2"),
            (r#"{"password": "hun ter,2", "a": 1}"#.to_owned(), "ter,2"),
            ("Authorization: Bearer hunter2".to_owned(), "hunter2"),
            ("muster-publisher --git-token hunter2 --x".to_owned(), "hunter2"),
            ("MUSTER_GIT_TOKEN='hunter2'".to_owned(), "hunter2"),
            ("key ghp_16C7e42F292c6912E7710c838347Ae178B4a".to_owned(), "ghp_16C7"),
            ("-----BEGIN PRIVATE KEY-----\nMIIEvQ\n-----END PRIVATE KEY-----\n".to_owned(), "MIIEvQ"),
            ("-----BEGIN PRIVATE KEY-----\\nMIIEvQ\\n-----END PRIVATE KEY-----".to_owned(), "MIIEvQ"),
        ] {
            let left = redact(&text);
            assert!(!left.contains(secret) && left.contains(LEFT_OUT), "{text}: {left}");
        }
    }

    #[test]
    fn what_helps_stays() {
        for text in [
            "2026-11-26T03:00:00Z  INFO muster_ingest: took a partition partition=3 ledger.seq=4711\n",
            "digest sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n",
            "muster_renewer_tokens 12\n",
            "deployment 6f0b2a52-6c0e-4a4b-9a57-5c1d8f1e2a10 on plant7/press-4\n",
            "nats://hub:4222 is up; its token ends soon\n",
        ] {
            assert_eq!(redact(text), text);
        }
        let key = format!("key U{}\n", "B".repeat(55));
        assert_eq!(redact(&key), key, "a public key");
        assert_eq!(redact("password=x next\n"), format!("password={LEFT_OUT} next\n"));
    }
}
