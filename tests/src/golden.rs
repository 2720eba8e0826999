//! Golden files: a text a person reviewed once, compared byte for byte ever after. A switch in the environment
//! rewrites them; nothing else does.

use std::path::Path;

/// The difference between a file and its expected text; `None` if there is none, or if the file was just rewritten.
///
/// `switch` is the environment variable that, set to anything, has the file rewritten; the answer names it.
pub fn difference(file: &Path, want: &str, switch: &str) -> Option<String> {
    if std::env::var_os(switch).is_some() {
        write(file, want);
        return None;
    }
    let have = std::fs::read_to_string(file).unwrap_or_default();
    if have == want {
        return None;
    }
    let at = have.lines().zip(want.lines()).take_while(|(have, want)| have == want).count();
    let line = |text: &str| text.lines().nth(at).unwrap_or("(ends)").to_owned();
    Some(format!(
        "{} differs in line {}:\n  file: {}\n  code: {}\n",
        file.display(),
        at + 1,
        line(&have),
        line(want)
    ))
}

fn write(file: &Path, text: &str) {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    }
    std::fs::write(file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}
