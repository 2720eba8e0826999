//! The streams: which exist, and where they differ from this release.

use super::colour::{BAD, UNSURE, WELL};
use super::table::{Cell, Table};
use crate::streams::{FoundStream, StreamsAnswer};

/// A line for each stream, and one for each setting that differs.
pub fn answer(answer: &StreamsAnswer) -> String {
    let mut table = Table::new(&["STREAM", "STATE", "SETTING", "FOUND", "THIS RELEASE"]);
    for stream in &answer.streams {
        rows(&mut table, stream, answer.upgraded);
    }
    table.to_string()
}

fn rows(table: &mut Table, stream: &FoundStream, upgraded: bool) {
    let name = || stream.name.clone().into();
    if stream.differences.is_empty() {
        let state =
            if stream.exists { Cell::styled("current", WELL) } else { Cell::styled("missing", UNSURE) };
        table.row([name(), state, "".into(), "".into(), "".into()]);
    }
    for difference in &stream.differences {
        let state = if upgraded { Cell::styled("upgraded", WELL) } else { Cell::styled("differs", BAD) };
        let cells =
            [&difference.field, &difference.found, &difference.wanted].map(|text| Cell::from(text.clone()));
        let [field, found, wanted] = cells;
        table.row([name(), state, field, found, wanted]);
    }
}
