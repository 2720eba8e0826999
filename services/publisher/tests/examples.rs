//! The sample fleet that ships with the publisher is one that it takes.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::Path;

use muster_contract::Generation;
use muster_publisher::source::{self, Body, File, Tree};

fn walk(root: &Path, folder: &Path, files: &mut Vec<File>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(root, &path, files);
        } else {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let body = if source::wants(&name) {
                Body::Text(std::fs::read(&path).unwrap().into())
            } else {
                Body::Unread
            };
            files.push(File { path: name, body });
        }
    }
}

#[test]
fn the_sample_fleet_is_accepted_and_needs_only_a_shell() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/fleet");
    let mut tree = Tree { revision: "sample".to_owned(), files: Vec::new() };
    walk(&root, &root, &mut tree.files);
    let fleet = source::read(&tree, source::Policy { strict: true, ..source::Policy::default() })
        .unwrap_or_else(|problems| panic!("{problems}"));
    let shown = fleet.devices.iter().map(|(key, contents)| {
        let ids: Vec<_> = contents.iter().map(|content| content.id().as_str()).collect();
        format!("{key}: {}", ids.join(" "))
    });
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [
            "harbour/pump-1: node-clock",
            "north-mill/press-1: line-recorder node-clock",
            "north-mill/press-2: line-recorder node-clock",
            "south-yard/crane-1: node-clock",
            "south-yard/gate-1: 6f0b2a52-6c0e-4a4b-9a57-5c1d8f1e2a10 gate-camera node-clock",
        ]
    );
    for content in fleet.devices.values().flatten() {
        for component in content.targeting(Generation::FIRST).profile.components {
            assert!(["sh", "sleep"].contains(&component.properties["command"].as_str().unwrap()));
        }
    }
}
