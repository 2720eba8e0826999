//! Arguments of `muster quarantine`: its commands, and the filters that select reports. No IO.

use clap::{Args, Subcommand};
use muster_client::quarantine::Selection;
use muster_contract::Timestamp;
use muster_contract::quarantine::RejectionCode;

use super::device_arg::DeviceArg;
use super::time;

pub(super) const QUARANTINE_EXAMPLES: &str = "\
With filters, requeue also asks devices (with --device, that one) for the reports that QUARANTINE had no room for.

Examples:
  muster quarantine list
  muster quarantine list --all           all of them, not only the newest 50
  muster quarantine list --device plant7/press-4
  muster quarantine show 4711            one report with its payload; the number is in the list
  muster quarantine requeue 4711 4712    after a fix: judge them again, as of when they came
  muster quarantine requeue --all        after an upgrade: all, and what devices keep
  muster quarantine drop --code oldEpoch --device plant7/press-4 --reason 'its double is switched off'

Exit code 1: one of the reports stays where it is.";

/// Longest list of rejected reports.
const LIST_MAX: usize = 100_000;

/// `muster quarantine`
#[derive(Debug, Subcommand)]
pub enum QuarantineCommand {
    /// The newest rejected reports, and how many there are
    List(ListArgs),
    /// One report, with its payload
    Show {
        /// Its SEQ, as in the list
        #[arg(value_name = "SEQ", value_parser = clap::value_parser!(u64).range(1..))]
        quarantine_seq: u64,
    },
    /// Judge reports again once their cause is fixed, and ask devices for the reports that they keep
    Requeue(JudgeArgs),
    /// Drop reports that nobody needs; they stay counted as quarantined
    Drop(JudgeArgs),
}

/// `muster quarantine list`
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Which.
    #[command(flatten)]
    pub select: SelectArgs,
    /// How many at most, from 1 to 100000
    #[arg(long, default_value = "50", value_name = "N", value_parser = limit)]
    limit: usize,
    /// All of them, up to 100000
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Also the records of reports that were accepted, dropped or have expired
    #[arg(long)]
    pub settled: bool,
}

impl ListArgs {
    /// How many reports are listed at most.
    pub const fn limit(&self) -> usize {
        if self.all { LIST_MAX } else { self.limit }
    }
}

/// `muster quarantine requeue` and `drop`
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true)
    .args(["quarantine_seqs", "all", "device", "code", "since", "until"]))]
pub struct JudgeArgs {
    /// Their SEQs, as in the list
    #[arg(value_name = "SEQ", value_parser = clap::value_parser!(u64).range(1..),
        conflicts_with_all = ["all", "device", "code", "since", "until"])]
    pub quarantine_seqs: Vec<u64>,
    /// Every report
    #[arg(long)]
    pub all: bool,
    /// Which.
    #[command(flatten)]
    pub select: SelectArgs,
    /// Why, for the record
    #[arg(long)]
    pub reason: Option<String>,
}

/// The filters that select reports; a report must pass all of them.
#[derive(Debug, Clone, Default, Args)]
pub struct SelectArgs {
    /// Only those of a device, as SITE/DEVICE, or its name alone where one site has it
    #[arg(long)]
    pub device: Option<DeviceArg>,
    /// Only those rejected for a reason, such as unreadable, notSent or oldEpoch
    #[arg(long, value_parser = code)]
    pub code: Option<RejectionCode>,
    /// Only those received at a time or later
    #[arg(long, value_name = "TIME", value_parser = time::past)]
    pub since: Option<Timestamp>,
    /// Only those received before a time
    #[arg(long, value_name = "TIME", value_parser = time::past)]
    pub until: Option<Timestamp>,
}

impl SelectArgs {
    /// The filters, once the device's site is known.
    pub fn selection(self) -> Selection {
        let Self { device, code, since, until } = self;
        Selection { device: device.as_ref().and_then(DeviceArg::key).cloned(), code, since, until }
    }
}

fn code(text: &str) -> Result<RejectionCode, String> {
    let known = RejectionCode::ALL.into_iter().find(|code| code.as_str() == text);
    known
        .ok_or_else(|| format!("must be one of {}", RejectionCode::ALL.map(RejectionCode::as_str).join(", ")))
}

fn limit(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=LIST_MAX).contains(number));
    number.ok_or_else(|| format!("must be a number from 1 to {LIST_MAX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_code_selects_nothing() {
        assert_eq!(code("notSent"), Ok(RejectionCode::NotSent));
        assert_eq!(code("other"), Ok(RejectionCode::Other));
        assert!(code("notsent").unwrap_err().contains("notSent"));
    }
}
