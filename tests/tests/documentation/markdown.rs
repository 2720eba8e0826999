//! Markdown as the rules need it: prose lines, code blocks, code spans, headings. It knows no other syntax.

/// A page of the documentation.
#[derive(Debug)]
pub(crate) struct Page {
    /// Its path from the top of the repository.
    pub path: String,
    /// Its lines outside of code blocks, numbered from 1.
    pub prose: Vec<(usize, String)>,
    /// Its code blocks.
    pub blocks: Vec<Block>,
}

/// A fenced code block.
#[derive(Debug)]
pub(crate) struct Block {
    /// The text behind the fence.
    pub language: String,
    /// Its lines with their numbers in the page.
    pub lines: Vec<(usize, String)>,
}

impl Page {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let mut page = Self { path: path.to_owned(), prose: Vec::new(), blocks: Vec::new() };
        let mut open: Option<Block> = None;
        for (at, line) in text.lines().enumerate() {
            match (line.trim_start().strip_prefix("```"), &mut open) {
                (Some(language), None) => {
                    open = Some(Block { language: language.trim().to_owned(), lines: Vec::new() });
                }
                (Some(_), Some(_)) => page.blocks.extend(open.take()),
                (None, Some(block)) => block.lines.push((at + 1, line.to_owned())),
                (None, None) => page.prose.push((at + 1, line.to_owned())),
            }
        }
        page
    }

    /// The code spans of the prose; a span lies within a line.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (usize, &str)> {
        self.prose
            .iter()
            .flat_map(|(at, line)| line.split('`').skip(1).step_by(2).map(move |span| (*at, span)))
    }

    /// The anchors of its headings, as GitHub makes them.
    pub(crate) fn anchors(&self) -> Vec<String> {
        let (mut anchors, mut titles) = (Vec::new(), Vec::new());
        for (_, line) in &self.prose {
            let title = line.trim_start_matches('#');
            if title.len() == line.len() || !title.starts_with(' ') {
                continue;
            }
            let anchor = slug(title.trim());
            let before = titles.iter().filter(|other| **other == anchor).count();
            anchors.push(if before == 0 { anchor.clone() } else { format!("{anchor}-{before}") });
            titles.push(anchor);
        }
        anchors
    }
}

fn slug(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}
