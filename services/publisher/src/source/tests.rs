//! The rules of the tree, one table each.

use super::*;

fn document(id: &str, command: &str) -> String {
    format!(
        "id: {id}\nmetadata: {{name: {id}}}\nspec: {{applicationId: app, deploymentProfile: {{type: process, \
         components: [{{name: main, properties: {{command: {command}}}}}]}}}}\n"
    )
}

/// Reads as a strict publisher does: every mistake refuses the commit.
fn read(tree: &Tree) -> Result<Fleet, Problems> {
    super::read(tree, Policy { strict: true, ..Policy::default() })
}

fn tree(files: &[(&str, &str)]) -> Tree {
    let body = |path: &str, text: &str| {
        if wants(path) { Body::Text(text.as_bytes().to_vec().into()) } else { Body::Unread }
    };
    let file = |(path, text): &(&str, &str)| File { path: (*path).to_owned(), body: body(path, text) };
    Tree { revision: "r1".to_owned(), files: files.iter().map(file).collect() }
}

/// Each device with `id=command` of what it shall run.
fn shown(fleet: &Fleet) -> Vec<String> {
    let command = |content: &Content| {
        let entry = content.targeting(muster_contract::Generation::FIRST);
        format!("{}={}", entry.id, entry.profile.components[0].properties["command"].as_str().unwrap())
    };
    let line = |(key, contents): (&DeviceKey, &Vec<Arc<Content>>)| {
        let all: Vec<_> = contents.iter().map(|content| command(content)).collect();
        format!("{key}: {}", all.join(" ")).trim_end().to_owned()
    };
    fleet.devices.iter().map(line).collect()
}

#[test]
fn each_level_reaches_its_devices_and_the_nearer_one_wins() {
    let (everywhere, site) = (document("log", "fleet"), document("web", "site"));
    let both = format!("{}---\n{}", document("log", "near"), document("own", "device"));
    let fleet = read(&tree(&[
        ("fleet/log.yaml", &everywhere),
        ("sites/a/web.yml", &site),
        ("sites/a/one/own.YAML", &both),
        ("sites/a/two/.gitkeep", ""),
        ("sites/b/three/notes/readme.md", ""),
    ]))
    .unwrap();
    assert_eq!(fleet.revision, "r1");
    assert_eq!(
        shown(&fleet),
        ["a/one: log=near own=device web=site", "a/two: log=fleet web=site", "b/three: log=fleet"]
    );
}

#[test]
fn a_device_exists_when_its_folder_does() {
    let fleet = read(&tree(&[
        ("sites/a/one/.gitkeep", ""),
        ("sites/a/notes.txt", ""),
        ("sites/readme.md", ""),
        ("readme.md", ""),
        ("deployment.yaml", "not ours: ["),
        ("docs/fleet/x.yaml", "not ours: ["),
    ]))
    .unwrap();
    assert_eq!(shown(&fleet), ["a/one:"]);
    assert_eq!(read(&tree(&[])).unwrap().devices.len(), 0);
}

#[test]
fn equal_deployments_are_held_once() {
    let same = document("log", "same");
    let files = [("sites/a/one/x.yaml", same.as_str()), ("sites/b/two/y.yaml", &same)];
    let fleet = read(&tree(&files)).unwrap();
    let held: Vec<_> = fleet.devices.values().map(|contents| Arc::as_ptr(&contents[0])).collect();
    assert_eq!(held[0], held[1]);
}

#[test]
fn what_is_in_the_wrong_place_is_named() {
    let text = document("web", "run");
    for (path, wanted) in [
        ("sites/Plant_7/one/x.yaml", "sites/Plant_7/one/x.yaml: folder 'Plant_7' is not a valid site"),
        ("sites/a/Press 4/.gitkeep", "sites/a/Press 4/.gitkeep: folder 'Press 4' is not a valid device"),
        ("sites/-/readme.md", "sites/-/readme.md: folder '-' is not a valid site"),
        ("sites/x.yaml", "sites/x.yaml: is not read here"),
        ("fleet/sub/x.yaml", "fleet/sub/x.yaml: is not read here"),
        ("sites/a/one/sub/x.yml", "sites/a/one/sub/x.yml: is not read here"),
    ] {
        let problems = read(&tree(&[(path, &text)])).unwrap_err().to_string();
        assert!(problems.starts_with(wanted), "{problems}");
    }
}

#[test]
fn what_is_no_file_or_too_long_is_named() {
    for (path, body, wanted) in [
        ("fleet/x.yaml", Body::Link, "symbolic link"),
        ("sites/a/one", Body::Link, "symbolic link"),
        ("sites/a/one", Body::Submodule, "submodule"),
        ("fleet/x.yaml", Body::TooLong(2_000_000), "2000000 bytes"),
        // Passed over, they would take everything from every device.
        ("fleet", Body::Link, "symbolic link"),
        ("sites", Body::Submodule, "submodule"),
        ("fleet", Body::Unread, "named fleet"),
        ("Fleet/x.yaml", Body::Unread, "named fleet"),
        ("SITES/a/one/x.yaml", Body::Unread, "in lower case"),
    ] {
        let file = File { path: path.to_owned(), body };
        let problems = read(&Tree { revision: "r".to_owned(), files: vec![file] }).unwrap_err().to_string();
        assert!(problems.starts_with(path) && problems.contains(wanted), "{problems}");
    }
}

#[test]
fn an_id_twice_at_one_level_names_both_places() {
    let (one, other) =
        (document("web", "a"), format!("{}---\n{}", document("log", "b"), document("web", "c")));
    let problems = read(&tree(&[("sites/a/x.yaml", &one), ("sites/a/y.yaml", &other), ("sites/a/p/k", "")]));
    assert_eq!(
        problems.unwrap_err().to_string(),
        "sites/a/y.yaml:5: id: 'web' is in sites/a/x.yaml:1 already, for the same devices"
    );
}

#[test]
fn everything_wrong_with_a_commit_is_found_in_one_reading() {
    let bad = "id: Bad\nmetadata: {name: x}\nspec: {}\n";
    let files = [("fleet/a.yaml", bad), ("sites/B/c/d.yaml", bad), ("sites/b/c/d.yaml", "- no\n")];
    let problems = read(&tree(&files)).unwrap_err().into_list();
    let places: Vec<_> = problems.iter().map(|p| (p.file.as_str(), p.field.as_str())).collect();
    assert_eq!(
        places,
        [
            ("fleet/a.yaml", "id"),
            ("fleet/a.yaml", "spec.applicationId"),
            ("fleet/a.yaml", "spec.deploymentProfile"),
            ("sites/B/c/d.yaml", ""),
            ("sites/b/c/d.yaml", ""),
        ]
    );
}

#[test]
fn a_limit_is_one_problem_of_its_file_however_many_devices_it_hits() {
    let many: Vec<_> = (0..130).map(|at| document(&format!("d{at}"), "run")).collect();
    let many = many.join("---\n");
    let long = document("long", &"x".repeat(300_000));
    let own = document("own", "run");
    let names: Vec<_> = (0..7).map(|at| format!("sites/a/device-{at}/.gitkeep")).collect();
    let devices: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
    for (files, wanted) in [
        (
            vec![("fleet/a.yaml", many.as_str())],
            "fleet/a.yaml: a/device-0 would have 130 deployments; 128 are allowed (and 6 more devices are over a limit)",
        ),
        (
            vec![("sites/a/b.yaml", long.as_str()), ("fleet/c.yaml", own.as_str())],
            "sites/a/b.yaml: with 1 file more, a/device-0 would have a document of ",
        ),
    ] {
        let problems = read(&tree(&[files, devices.clone()].concat())).unwrap_err();
        let shown = problems.to_string();
        assert!(
            shown.starts_with(wanted) && shown.ends_with("(and 6 more devices are over a limit)"),
            "{shown}"
        );
        assert_eq!(problems.into_list().len(), 1);
    }
    let alone = read(&tree(&[("sites/a/one/b.yaml", &long)])).unwrap_err().to_string();
    assert!(alone.starts_with("sites/a/one/b.yaml: a/one would have a document of 30"), "{alone}");
}

#[test]
fn a_commit_without_devices_is_refused() {
    let text = document("log", "run");
    for files in [&[][..], &[("README.md", "")], &[("fleet/log.yaml", &text)], &[("sites/a/log.yaml", &text)]]
    {
        let refused = check_not_empty(&read(&tree(files)).unwrap()).unwrap_err().to_string();
        assert!(refused.starts_with("sites: has no device folder"), "{refused}");
    }
    check_not_empty(&read(&tree(&[("sites/a/one/.gitkeep", "")])).unwrap()).unwrap();
}

/// Each device with the labels it has.
fn labelled(fleet: &Fleet) -> Vec<String> {
    let line = |(key, labels): (&DeviceKey, &Arc<Labels>)| {
        let all: Vec<_> = labels.iter().map(|(label, value)| format!("{label}={value}")).collect();
        format!("{key}: {}", all.join(" "))
    };
    fleet.labels.iter().map(line).collect()
}

#[test]
fn labels_apply_to_the_devices_of_their_folder_and_the_nearer_level_wins() {
    let fleet = read(&tree(&[
        ("fleet/labels.yaml", "owner: works\nring: stable\n"),
        ("sites/a/labels.yaml", "region: north\n"),
        ("sites/a/one/labels.yaml", "ring: canary\nmodel: mk2\n"),
        ("sites/a/two/.gitkeep", ""),
        ("sites/b/three/.gitkeep", ""),
    ]))
    .unwrap();
    assert_eq!(
        labelled(&fleet),
        [
            "a/one: model=mk2 owner=works region=north ring=canary",
            "a/two: owner=works region=north ring=stable",
            "b/three: owner=works ring=stable",
        ]
    );
    assert_eq!(fleet.devices.len(), 3, "a file of labels is no deployment");
    let quiet = read(&tree(&[("sites/a/one/.gitkeep", "")])).unwrap();
    assert!(quiet.labels.is_empty());
}

#[test]
fn unusable_labels_refuse_the_commit() {
    let many: String = (0..=muster_contract::limits::LABELS_MAX).map(|at| format!("l{at}: x\n")).collect();
    let problems = read(&tree(&[("sites/a/one/labels.yaml", &many)])).unwrap_err().to_string();
    assert!(
        problems.contains("sites/a/one/labels.yaml: ") && problems.contains("16 are allowed"),
        "{problems}"
    );
    let twice = tree(&[("sites/a/labels.yaml", "ring: one\n"), ("sites/a/labels.yml", "ring: two\n")]);
    let problems = read(&twice).unwrap_err().to_string();
    assert!(problems.contains("sites/a/labels.yml:1: ring: is in sites/a/labels.yaml already"), "{problems}");
    let lost = tree(&[("sites/a/one/more/labels.yaml", "ring: one\n")]);
    assert!(read(&lost).unwrap_err().to_string().contains("is not read here"));
    let files: Vec<(String, String)> = (0..=muster_contract::limits::LABEL_VALUES_MAX)
        .map(|at| (format!("sites/a/d{at}/labels.yaml"), format!("serial: s{at}\n")))
        .collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let problems = read(&tree(&files)).unwrap_err().to_string();
    assert!(problems.contains("serial: has more than 1000 values"), "{problems}");
    assert_eq!(problems.lines().count(), 1, "{problems}");
}

/// A commit as a publisher that is not strict reads it: its devices, those held back, and the problems.
fn taken(files: &[(&str, &str)]) -> Result<(Vec<String>, Vec<String>, String), String> {
    let fleet = super::read(&tree(files), Policy::default()).map_err(|problems| problems.to_string())?;
    let held_back = fleet.held_back.iter().map(ToString::to_string).collect();
    Ok((shown(&fleet), held_back, fleet.withheld.to_string()))
}

#[test]
fn a_mistake_that_concerns_one_device_holds_that_device_back_alone() {
    let (log, web) = (document("log", "fleet"), document("web", "site"));
    let good = [("fleet/log.yaml", log.as_str()), ("sites/a/one/web.yaml", &web)];
    let of_plan = document("web", "x").replace("applicationId: app", "applicationId: muster-plan-web");
    let many: String = (0..129).map(|at| format!("---\n{}", document(&format!("d{at}"), "x"))).collect();
    for (path, text, words) in [
        ("sites/a/two/web.yaml", "id: web\n", "sites/a/two/web.yaml"),
        ("sites/a/two/web.yaml", "a: [", "sites/a/two/web.yaml"),
        ("sites/a/two/plan.yaml", &of_plan, "plan.yaml:1: spec.applicationId: begins with 'muster-plan-'"),
        ("sites/a/two/labels.yaml", "Ring: x", "sites/a/two/labels.yaml:1: Ring"),
        ("sites/a/two/deeper/web.yaml", &web, "is not read here"),
        ("sites/a/two/many.yaml", &many, "130 deployments; 128 are allowed"),
        ("sites/a/two/device.yaml", "retired: maybe", "is neither true nor false"),
    ] {
        let (devices, held_back, why) = taken(&[&good[..], &[(path, text)]].concat()).unwrap();
        assert!(devices.contains(&"a/one: log=fleet web=site".to_owned()), "{path}: {devices:?}");
        assert_eq!(held_back, ["a/two"], "{path}");
        assert!(why.contains(words), "{path}: {why}");
        assert!(
            read(&tree(&[&good[..], &[(path, text)]].concat())).is_err(),
            "a strict publisher refuses {path}"
        );
    }
    for (path, text) in [("fleet/bad.yaml", "a: ["), ("sites/a/bad.yaml", "a: ["), ("sites/a/No/x.yaml", "")]
    {
        assert!(
            taken(&[&good[..], &[(path, text)]].concat()).is_err(),
            "{path} concerns more than one device"
        );
    }
    assert!(taken(&[("sites/a/two/web.yaml", "a: [")]).is_err(), "nobody is left");
}

#[test]
fn a_tombstone_takes_its_device_out_of_the_fleet() {
    let web = document("web", "site");
    let files = [("sites/a/one/.gitkeep", ""), ("sites/a/two/device.yaml", "retired: true\n")];
    let fleet = super::read(&tree(&files), Policy::default()).unwrap();
    assert_eq!(
        (shown(&fleet), fleet.retired),
        (vec!["a/one:".to_owned()], BTreeSet::from(["a/two".parse().unwrap()]))
    );
    let both = [&files[..], &[("sites/a/two/web.yaml", web.as_str())]].concat();
    let (_, held_back, why) = taken(&both).unwrap();
    assert_eq!(held_back, ["a/two"]);
    assert!(
        why.contains("sites/a/two/web.yaml: has a deployment for a device that device.yaml retires"),
        "{why}"
    );
}

const ROLLOUT: &str = "apiVersion: muster/v1\nkind: Rollout\n";

#[test]
fn the_nearest_rollout_governs_a_device() {
    let fleet = read(&tree(&[
        ("fleet/rollout.yaml", ROLLOUT),
        ("sites/a/rollout.yml", ROLLOUT),
        ("sites/a/one/rollout.yaml", ROLLOUT),
        ("sites/a/two/.gitkeep", ""),
        ("sites/b/three/.gitkeep", ""),
    ]))
    .unwrap();
    let governed: Vec<_> = fleet.rollouts.iter().map(|(key, file)| format!("{key}: {}", file.path)).collect();
    let wanted =
        ["a/one: sites/a/one/rollout.yaml", "a/two: sites/a/rollout.yml", "b/three: fleet/rollout.yaml"];
    assert_eq!(governed, wanted);
}

#[test]
fn an_order_that_names_an_unknown_deployment_is_refused_with_its_line() {
    let with_after = |after: &str| {
        let rollout = format!("{ROLLOUT}after:\n  {after}\n");
        let files = tree(&[
            ("fleet/web.yaml", &document("web", "run")),
            ("fleet/proxy.yaml", &document("proxy", "run")),
            ("sites/a/one/.gitkeep", ""),
            ("fleet/rollout.yaml", &rollout),
        ]);
        read(&files).map(|_| ()).map_err(|problems| problems.to_string())
    };
    assert_eq!(with_after("proxy: [web]"), Ok(()));
    for (after, words) in [
        ("proxy: [wed]", "fleet/rollout.yaml:4: after.proxy: 'wed' is no deployment of a device"),
        ("prox: [web]", "fleet/rollout.yaml:4: after.prox: 'prox' is no deployment of a device"),
    ] {
        let refused = with_after(after).unwrap_err();
        assert!(refused.contains(words), "{refused}");
    }
}

#[test]
fn a_rollout_where_none_is_read_refuses_the_commit() {
    for path in ["rollout.yaml", "sites/rollout.yaml", "sites/a/one/deep/rollout.yaml", "docs/fleet/x.yaml"] {
        let read = read(&tree(&[(path, ROLLOUT), ("sites/a/one/.gitkeep", "")]));
        let refused = read.err().map(|problems| problems.to_string());
        let is_rollout = path.ends_with("rollout.yaml");
        assert_eq!(
            refused.is_some_and(|words| words.contains("a rollout governs the devices of")),
            is_rollout,
            "{path}"
        );
    }
    let twice = tree(&[
        ("sites/a/rollout.yaml", ROLLOUT),
        ("sites/a/rollout.yml", ROLLOUT),
        ("sites/a/one/.gitkeep", ""),
    ]);
    assert!(read(&twice).unwrap_err().to_string().contains("sites/a/rollout.yaml is there already"));
}

#[test]
fn a_wave_that_matches_nobody_refuses_the_commit_unless_allowed() {
    let read = |wave: &str| {
        let rollout = format!("{ROLLOUT}waves:\n  - name: first\n    {wave}\n");
        let files = [
            ("fleet/rollout.yaml", rollout.as_str()),
            ("sites/a/labels.yaml", "ring: canary\n"),
            ("sites/a/one/.gitkeep", ""),
            ("sites/b/two/rollout.yaml", ROLLOUT),
        ];
        read(&tree(&files)).err().map(|problems| problems.to_string()).unwrap_or_default()
    };
    for good in ["selector: {ring: canary}", "site: a", "devices: [a/one]", "count: 9", "percent: 1%"] {
        assert_eq!(read(good), "", "{good}");
    }
    for (bad, words) in [
        ("selector: {ring: other}", "fleet/rollout.yaml:5: waves[0].selector: matches no device"),
        ("site: c", "fleet/rollout.yaml:5: waves[0].site: matches no device"),
        ("devices: [a/none]", "fleet/rollout.yaml:5: waves[0].devices: a/none is no device"),
        ("devices: [b/two]", "b/two is no device that this file governs"),
    ] {
        assert!(read(bad).contains(words), "{bad}: {}", read(bad));
        assert_eq!(read(&format!("{bad}\n    allowEmpty: true")), "", "{bad}");
    }
}

#[test]
fn a_device_whose_own_rollout_matches_nobody_is_held_back_alone() {
    let rollout = format!("{ROLLOUT}waves:\n  - name: first\n    site: elsewhere\n");
    let web = document("web", "site");
    let files = [
        ("sites/a/web.yaml", web.as_str()),
        ("sites/a/one/.gitkeep", ""),
        ("sites/a/two/rollout.yaml", &rollout),
    ];
    let (devices, held_back, why) = taken(&files).unwrap();
    assert_eq!((devices.len(), held_back), (2, vec!["a/two".to_owned()]));
    assert!(why.contains("sites/a/two/rollout.yaml:5: waves[0].site: matches no device"), "{why}");
    assert!(read(&tree(&files)).is_err(), "a strict publisher refuses it");
    // A retired device runs nothing: its rollout holds up nobody.
    let retired = [&files[..], &[("sites/a/two/device.yaml", "retired: true\n")]].concat();
    let (devices, held_back, why) = taken(&retired).unwrap();
    assert_eq!((devices.len(), held_back, why.as_str()), (1, Vec::new(), ""));
    let of_site = [("sites/a/rollout.yaml", rollout.as_str()), ("sites/a/one/.gitkeep", "")];
    assert!(taken(&of_site).is_err(), "it concerns more than one device");
}

#[test]
fn rollouts_that_are_ignored_are_checked_and_hold_nothing() {
    let policy = Policy { ignore_rollouts: true, ..Policy::default() };
    let files = |rollout| tree(&[("fleet/rollout.yaml", rollout), ("sites/a/one/.gitkeep", "")]);
    assert!(super::read(&files(ROLLOUT), policy).unwrap().rollouts.is_empty());
    assert!(super::read(&files("waves: 3\n"), policy).is_err());
}
