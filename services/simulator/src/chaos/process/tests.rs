//! Ends of an agent that are errors, and ends that are not.

use super::*;

const DEADLINE: Duration = Duration::from_secs(30);

/// An agent with a small disk which ends with an error when its file goes.
fn agent(dir: &Path) -> Process {
    std::fs::write(dir.join("stay"), "").unwrap();
    let script = format!("while [ -e {}/stay ]; do sleep 0.01; done; exit 1", dir.display());
    let args = vec!["-c".to_owned(), script];
    let spec = Spec { name: "agent".to_owned(), program: "sh".into(), args };
    let mut process = Process::new(Role::Agent(0), spec, None);
    process.disk = Some(Disk::Limited);
    process.start(dir).unwrap();
    process
}

/// How it is seen to end. The clock of the test stands still meanwhile.
fn end(mut process: Process, dir: &Path) -> Result<EndCause, Error> {
    std::fs::remove_file(dir.join("stay")).unwrap();
    let begun = std::time::Instant::now();
    loop {
        if let Some(cause) = process.end_cause()? {
            return Ok(cause);
        }
        assert!(begun.elapsed() < DEADLINE, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_excuses_an_end_until_a_moment_after_it_was_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let never = end(agent(dir), dir);
    assert!(matches!(never, Err(Error::Ended { .. })), "{never:?}");

    let mut process = agent(dir);
    process.is_full = true;
    assert_eq!(end(process, dir).unwrap(), EndCause::NoRoom);

    for (after, expected) in [(ROOM_GRACE / 2, true), (ROOM_GRACE, false)] {
        let mut process = agent(dir);
        process.is_full = true;
        process.clear_disk().unwrap();
        tokio::time::advance(after).await;
        let end = end(process, dir);
        assert_eq!(matches!(end, Ok(EndCause::NoRoom)), expected, "{after:?} after: {end:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_frozen_process_has_the_same_grace_and_a_new_one_none() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut frozen = agent(dir);
    frozen.is_full = true;
    assert!(frozen.freeze());
    frozen.clear_disk().unwrap();
    tokio::time::advance(ROOM_GRACE * 2).await;
    frozen.thaw();
    assert_eq!(end(frozen, dir).unwrap(), EndCause::NoRoom);

    let mut anew = agent(dir);
    anew.is_full = true;
    anew.clear_disk().unwrap();
    assert!(anew.kill().await.unwrap());
    anew.start(dir).unwrap();
    let end = end(anew, dir);
    assert!(matches!(end, Err(Error::Ended { .. })), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_handles_sigterm_must_end_without_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let asked = |after| async move {
        let mut early = agent(dir);
        tokio::time::advance(after).await;
        assert!(early.terminate());
        end(early, dir)
    };
    assert_eq!(asked(HANDLES_SIGTERM_AFTER / 2).await.unwrap(), EndCause::Terminated);
    let late = asked(HANDLES_SIGTERM_AFTER).await;
    assert!(matches!(late, Err(Error::Ended { .. })), "{late:?}");
}
