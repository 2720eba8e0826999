//! The key names that EMCO calls deprecated, for readers that were never changed: `--type` in place of `--axis`.
//!
//! It renames what [`super::status`] wrote and works nothing out. What such readers have another meaning for is left out:
//! `readyStatus` of a cluster is how it is heard (`connectivity` by its newer name), so neither clusters nor apps have the
//! statuses that are added to the newer shape. Reasons and times stay.

use serde_json::{Map, Value};

/// The newer and the old name, at the top of the shape.
const OF_THE_WHOLE: [(&str, &str); 3] =
    [("deployedStatus", "status"), ("deployedCounts", "rsyncStatus"), ("readyCounts", "clusterStatus")];

/// Likewise, of a resource.
const OF_A_RESOURCE: [(&str, &str); 2] =
    [("deployedStatus", "rsyncStatus"), ("readyStatus", "clusterStatus")];

/// Gives the shape of a deployment or of a device as a whole its old names. A logical cloud has none at EMCO.
pub fn rename(shape: &mut Value) {
    let Some(shape) = shape.as_object_mut() else { return };
    rename_keys(shape, &OF_THE_WHOLE);
    for app in members(shape, "apps") {
        remove_statuses(app);
        members(app, "clusters").for_each(rename_cluster);
    }
    if let Some(Value::Object(cluster)) = shape.get_mut("cluster") {
        rename_cluster(cluster);
        // EMCO has it in the shape of a deployment alone.
        shape.remove("readyStatus");
    }
}

fn rename_cluster(cluster: &mut Map<String, Value>) {
    remove_statuses(cluster);
    rename_keys(cluster, &[("connectivity", "readyStatus")]);
    members(cluster, "resources").for_each(|resource| rename_keys(resource, &OF_A_RESOURCE));
}

fn remove_statuses(map: &mut Map<String, Value>) {
    map.remove("deployedStatus");
    map.remove("readyStatus");
}

fn rename_keys(map: &mut Map<String, Value>, names: &[(&str, &str)]) {
    for (newer, old) in names {
        if let Some(value) = map.remove(*newer) {
            map.insert((*old).to_owned(), value);
        }
    }
}

fn members<'a>(
    map: &'a mut Map<String, Value>,
    key: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    let list = map.get_mut(key).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_object_mut)
}
