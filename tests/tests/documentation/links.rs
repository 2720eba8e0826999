//! Links between pages: whether the file and the heading are there. Addresses on the web are not tried.

use super::markdown::Page;

/// Every link that leads nowhere.
pub(crate) fn broken(pages: &[Page], exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut broken = Vec::new();
    for page in pages {
        for (at, line) in &page.prose {
            let line = without_spans(line);
            let targets = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
            let dead = targets.filter(|target| !leads_somewhere(page, target, pages, &exists));
            broken.extend(dead.map(|target| format!("{}:{at}: '{target}' leads nowhere", page.path)));
        }
    }
    broken
}

fn without_spans(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

fn leads_somewhere(page: &Page, target: &str, pages: &[Page], exists: impl Fn(&str) -> bool) -> bool {
    if target.contains("://") || target.starts_with("mailto:") {
        return true;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() { page.path.clone() } else { joined(&page.path, path) };
    if !exists(&path) {
        return false;
    }
    let is_there = |page: &Page| page.anchors().iter().any(|other| other == anchor);
    anchor.is_empty() || pages.iter().find(|page| page.path == path).is_some_and(is_there)
}

/// A path relative to a page, from the top of the repository.
fn joined(page: &str, path: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    parts.join("/")
}
