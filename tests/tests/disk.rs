//! The small disks that tests fill: a full one takes no byte, a cleared one does, and each ends with its value.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::io::Write;
use std::process::{Command, Stdio};

use muster_simulator::disk::{Disk, IGNORE_SIGXFSZ, unmount_below};
use muster_tests::not_run::is_mounted;
use rustix::process::Pid;

#[test]
fn a_full_disk_takes_no_byte_and_a_cleared_one_does() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::small(dir.path()).unwrap();
    if !is_mounted("a_full_disk_takes_no_byte_and_a_cleared_one_does", &disk) {
        return;
    }
    let write = || std::fs::write(dir.path().join("data"), b"x");
    write().unwrap();
    disk.fill(None).unwrap();
    std::fs::remove_file(dir.path().join("data")).unwrap();
    disk.fill(None).unwrap();
    assert_eq!(write().unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    disk.clear(None).unwrap();
    write().unwrap();
}

#[test]
fn a_process_at_its_file_size_limit_cannot_write() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Command::new(IGNORE_SIGXFSZ[0])
        .args(&IGNORE_SIGXFSZ[1..])
        .args(["sh", "-c", "read go; echo x >> data; echo $? > /dev/stdout"])
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    Disk::Limited.fill(Some(Pid::from_child(&writer))).unwrap();
    writer.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let output = writer.wait_with_output().unwrap();
    assert_ne!(String::from_utf8_lossy(&output.stdout).trim(), "0");
}

#[test]
fn a_disk_is_unmounted_with_its_value_or_by_the_next_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    if !is_mounted("a_disk_is_unmounted_with_its_value_or_by_the_next_run", &Disk::small(&path).unwrap()) {
        return;
    }
    let is_there = || std::fs::read_to_string("/proc/self/mounts").unwrap().contains(path.to_str().unwrap());
    assert!(!is_there(), "unmounted with its value");
    std::mem::forget(Disk::small(&path).unwrap());
    assert!(is_there());
    unmount_below(dir.path());
    assert!(!is_there());
}
