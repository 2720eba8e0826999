//! The script repeats itself, does everything in the end, and ends well.

use super::*;

fn devices() -> Vec<DeviceKey> {
    ["site-1/device-1", "site-2/device-1", "site-3/device-1", "site-2/device-2"]
        .map(|text| text.parse().unwrap())
        .to_vec()
}

#[test]
fn a_seed_repeats_itself() {
    let play = |seed| {
        let mut script = Script::new(seed, &devices(), vec![1]);
        let commits: Vec<_> = (0..100).map(|_| script.step()).collect();
        (commits, script.files())
    };
    assert_eq!(play(7), play(7));
    assert_ne!(play(7).0, play(8).0);
}

#[test]
fn everything_happens_in_the_end() {
    let mut script = Script::new(1, &devices(), vec![1]);
    let mut words = String::new();
    for _ in 0..500 {
        let commit = script.step();
        words += &format!("{}\n", commit.about);
        assert_eq!(commit.bad, script.files().contains_key("fleet/slip.yaml"));
    }
    for part in ["slip", "taken back", "release", "comes", "goes", "moves", "taken out", "is back", "never"] {
        assert!(words.contains(part), "{part} never happens:\n{words}");
    }
}

#[test]
fn the_nearer_level_wins_and_who_is_gone_wants_nothing() {
    let mut script = Script::new(1, &devices(), vec![1]);
    script.release = 9;
    script.put(WEB.to_owned(), Level::Device(1), Behaviour::Steady);
    script.gone.insert(2);
    let wanted = script.wanted();
    let of = |key: &str| wanted[&key.parse::<DeviceKey>().unwrap()].clone();
    let apps = |apps: &[(&str, u64)]| apps.iter().map(|(id, release)| ((*id).to_owned(), *release)).collect();
    assert_eq!(of("site-2/device-1"), apps(&[("busy-1", 1), ("busy-site-1", 1), (WEB, 9)]));
    assert_eq!(of("site-2/device-2"), apps(&[("busy-site-1", 1), (WEB, 1)]));
    assert_eq!(of("site-3/device-1"), BTreeMap::new());
}

#[test]
fn healed_is_steady_without_a_slip() {
    let mut script = Script::new(3, &devices(), vec![1]);
    for _ in 0..200 {
        script.step();
    }
    script.repair();
    let text: String = script.files().into_values().collect();
    for bad in ["crashAfter", "failStarts", "12s", "exit 3", "\"false\"", "components: 7"] {
        assert!(!text.contains(bad), "{bad} is left:\n{text}");
    }
}

#[test]
fn nothing_is_removed_from_the_governed_site() {
    let mut script = Script::new(5, &devices(), vec![1]);
    let governed = script.governed_devices();
    assert_eq!(governed.iter().map(ToString::to_string).collect::<Vec<_>>(), ["site-3/device-1"]);
    assert!(script.files().contains_key("sites/site-3/rollout.yaml"));
    for _ in 0..300 {
        script.step();
        let loose = script.apps.iter().filter(|app| is_loose(app));
        assert!(!loose.clone().any(|app| script.is_governed(app.level)), "{:?}", script.apps);
    }
}
