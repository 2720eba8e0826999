//! Renders the contents of a backup, and the parts that were restored from it.

use muster_contract::Timestamp;
use muster_contract::subjects::stream;

use super::colour::{UNSURE, WELL, styled};
use super::format::{age, bytes_text, plural};
use super::table::{Cell, Table};
use crate::backup::{BackupResult, RestoreResult, StreamSummary};

/// A finished backup.
pub fn saved(result: &BackupResult) -> String {
    let mut text = table(&result.streams);
    for name in &result.missing_streams {
        let reason = if name == stream::PLANS { ": a hub without plans has none" } else { "" };
        text += &format!("{name} does not exist{reason}\n");
    }
    let files = plural(result.key_files as u64, "key file");
    let databases = plural(result.rollup_files as u64, "database");
    text += &format!("{}: {files}, {databases} of a rollup\n", result.dir.display());
    text + result.sent_again + "\n"
}

/// A checked backup, and what was restored from it.
pub fn restored(result: &RestoreResult, now: Timestamp) -> String {
    let mut text = table(&result.streams);
    let (from, made) = (result.from.display(), age(now, result.created_at));
    text += &format!("{from}: every file is whole; made {made} by muster {}\n", result.made_by);
    let mut done = Vec::new();
    if !result.restored_streams.is_empty() {
        done.push(result.restored_streams.join(", "));
    }
    let dirs = result.keys.iter().chain(&result.rollup_data);
    done.extend(dirs.map(|dir| dir.display().to_string()));
    text += &if done.is_empty() {
        styled(UNSURE, "nothing was restored") + ": say --streams, --keys DIR or --rollup-data DIR\n"
    } else {
        format!("{}: {}\n", styled(WELL, "restored"), done.join("; "))
    };
    text + result.sent_again + "\n"
}

fn table(streams: &[StreamSummary]) -> String {
    if streams.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["STREAM", ">MESSAGES", ">FIRST", ">LAST", ">FILE"]);
    for stream in streams {
        let StreamSummary { name, messages, first_seq, last_seq, file_bytes } = stream;
        let counts = [messages, first_seq, last_seq].map(|count| Cell::count(*count));
        let [messages, first, last] = counts;
        table.row([name.clone().into(), messages, first, last, bytes_text(*file_bytes).into()]);
    }
    format!("{}\n", table.within(None))
}
