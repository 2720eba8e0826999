//! How an agent's end is judged.

use super::*;

const DEADLINE: Duration = Duration::from_secs(30);

/// An agent with a small disk which ends with an error when its file goes.
fn agent(dir: &Path) -> Member {
    std::fs::write(dir.join("stay"), "").unwrap();
    let script = format!("while [ -e {}/stay ]; do sleep 0.01; done; exit 1", dir.display());
    let args = vec!["-c".to_owned(), script];
    let spec = Spec { name: "agent".to_owned(), program: "sh".into(), args };
    let mut member = Member::new(Role::Agent(0), spec, None);
    member.disk = Some(Disk::Limited);
    member.start(dir).unwrap();
    member
}

/// How it is seen to end. The clock of the test stands still meanwhile.
fn end(mut member: Member, dir: &Path) -> Result<Fall, Error> {
    std::fs::remove_file(dir.join("stay")).unwrap();
    let begun = std::time::Instant::now();
    loop {
        if let Some(fall) = member.has_fallen()? {
            return Ok(fall);
        }
        assert!(begun.elapsed() < DEADLINE, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_is_for_want_of_room_only_while_the_disk_is_full_and_a_moment_after() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let never = end(agent(dir), dir);
    assert!(matches!(never, Err(Error::Ended { .. })), "{never:?}");

    let mut member = agent(dir);
    member.full = true;
    assert_eq!(end(member, dir).unwrap(), Fall::NoRoom);

    for (after, expected) in [(ROOM_GRACE / 2, true), (ROOM_GRACE, false)] {
        let mut member = agent(dir);
        member.full = true;
        member.clear_disk().unwrap();
        tokio::time::advance(after).await;
        let end = end(member, dir);
        assert_eq!(matches!(end, Ok(Fall::NoRoom)), expected, "{after:?} after: {end:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_was_halted_when_room_came_is_given_the_same_time_and_who_is_started_then_none() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut halted = agent(dir);
    halted.full = true;
    assert!(halted.freeze());
    halted.clear_disk().unwrap();
    tokio::time::advance(ROOM_GRACE * 2).await;
    halted.thaw();
    assert_eq!(end(halted, dir).unwrap(), Fall::NoRoom);

    let mut anew = agent(dir);
    anew.full = true;
    anew.clear_disk().unwrap();
    assert!(anew.kill().await.unwrap());
    anew.start(dir).unwrap();
    let end = end(anew, dir);
    assert!(matches!(end, Err(Error::Ended { .. })), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn who_is_asked_to_end_before_it_can_hear_ends_as_asked_and_later_has_to_end_well() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let asked = |after| async move {
        let mut deaf = agent(dir);
        tokio::time::advance(after).await;
        assert!(deaf.dismiss());
        end(deaf, dir)
    };
    assert_eq!(asked(HEARS_WITHIN / 2).await.unwrap(), Fall::Dismissed);
    let late = asked(HEARS_WITHIN).await;
    assert!(matches!(late, Err(Error::Ended { .. })), "{late:?}");
}
