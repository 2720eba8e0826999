//! Files that a page shows whole: a comment `<!-- include: PATH -->` stands before a code block that has the file's text. With
//! `UPDATE_SCHEMAS=1` the block is written from the file.

use super::repository;

const MARK: &str = "<!-- include: ";

/// A page with each included block as its file is, and the files.
pub(crate) fn filled(page: &str, read: impl Fn(&str) -> String) -> (String, Vec<String>) {
    let (mut text, mut files) = (String::new(), Vec::new());
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        text += &format!("{line}\n");
        let Some(path) = line.strip_prefix(MARK).and_then(|rest| rest.strip_suffix(" -->")) else { continue };
        let fence = lines.next().unwrap_or_default();
        assert!(fence.starts_with("```") && fence.len() > 3, "{path}: a code block follows its comment");
        // The old block is passed over.
        assert!(lines.any(|line| line == "```"), "{path}: the block ends");
        text += &format!("{fence}\n{}```\n", read(path));
        files.push(path.to_owned());
    }
    (text, files)
}

/// Pages whose blocks differ from their files; they are written anew if that is wanted.
pub(crate) fn outdated(update: bool) -> Vec<String> {
    let mut outdated = Vec::new();
    for path in repository::files("", "md") {
        let page = repository::read(&path);
        let (text, files) = filled(&page, repository::read);
        if files.is_empty() || text == page {
            continue;
        }
        if update {
            repository::write(&path, &text);
        } else {
            outdated
                .push(format!("{path}: {} differs; run this test with UPDATE_SCHEMAS=1", files.join(", ")));
        }
    }
    outdated
}
