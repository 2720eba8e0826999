//! Resident memory of processes, sampled while something happens.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Pid;
use tokio::task::JoinHandle;

/// Time between two samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);

/// Samples processes until it is ended.
pub struct MemorySampler {
    largest: Arc<Mutex<BTreeMap<&'static str, u64>>>,
    sampling: JoinHandle<()>,
}

impl MemorySampler {
    /// Begins to sample.
    pub fn start(processes: Vec<(&'static str, Pid)>) -> Self {
        let largest = Arc::new(Mutex::new(BTreeMap::new()));
        let samples = Arc::clone(&largest);
        let sampling = tokio::spawn(async move {
            let mut tick = tokio::time::interval(SAMPLE_EVERY);
            loop {
                tick.tick().await;
                for &(name, pid) in &processes {
                    let bytes = resident_bytes(pid);
                    let mut samples = samples.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    let largest = samples.entry(name).or_insert(0);
                    *largest = bytes.max(*largest);
                }
            }
        });
        Self { largest, sampling }
    }

    /// Ends it; the largest sample of each process.
    pub fn end(self) -> BTreeMap<&'static str, u64> {
        self.sampling.abort();
        self.largest.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

/// Resident memory of a process; 0 where it is gone.
pub fn resident_bytes(pid: Pid) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_runs_has_memory() {
        assert!(resident_bytes(rustix::process::getpid()) > 1_000_000);
    }
}
