//! The files of a payload that is a container image: a Compose file, or manifests of Kubernetes, each with the ports, volumes, cores
//! and memory (GiB) of its application. JSON is YAML. Pure.

use muster_contract::plans::{Coordinates, PlanApplication, Resources};
use serde_json::{Map, Value, json};

/// The Compose file. The engine does not bound the capacity of a volume: the scheduler accounts for it.
pub(super) fn compose_file(application: &PlanApplication, image: &Value, of: &Coordinates) -> String {
    let mut service = json!({ "image": image });
    if let Some((command, args)) = command(of) {
        (service["entrypoint"], service["command"]) = (command, args);
    }
    let Resources { cores, memory } = application.resources;
    if cores > 0 {
        service["cpus"] = json!(cores);
    }
    if memory > 0 {
        service["mem_limit"] = json!(format!("{memory}g"));
    }
    let ports = application.ports.iter();
    let ports: Vec<_> =
        ports.map(|port| format!("{0}:{0}/{1}", port.port, port.protocol.to_ascii_lowercase())).collect();
    if !ports.is_empty() {
        service["ports"] = json!(ports);
    }
    let mut file = json!({});
    let volumes: Vec<_> = names_of_volumes(application).collect();
    if !volumes.is_empty() {
        let mounts = volumes.iter().map(|(name, path)| format!("{name}:{path}"));
        service["volumes"] = mounts.collect();
        file["volumes"] =
            volumes.iter().map(|(name, _)| (name.clone(), json!({}))).collect::<Map<_, _>>().into();
    }
    file["services"] = json!({ application.payload_name.as_str(): service });
    file.to_string()
}

/// The manifests: a Deployment of one pod, a Service if it has ports, and a claim for each volume.
pub(super) fn manifests(application: &PlanApplication, image: &Value, of: &Coordinates) -> String {
    let name = application.payload_name.as_str();
    let labels = json!({ "app": name });
    let mut container = json!({ "name": name, "image": image });
    if let Some((command, args)) = command(of) {
        (container["command"], container["args"]) = (command, args);
    }
    let mut limits = Map::new();
    let Resources { cores, memory } = application.resources;
    if cores > 0 {
        limits.insert("cpu".to_owned(), json!(cores.to_string()));
    }
    if memory > 0 {
        limits.insert("memory".to_owned(), json!(format!("{memory}Gi")));
    }
    container["resources"] = json!({ "limits": limits });
    let port = |port: u16, protocol: &str| {
        let protocol = protocol.to_ascii_uppercase();
        (json!({ "containerPort": port, "protocol": protocol }), port, protocol)
    };
    let ports: Vec<_> = application.ports.iter().map(|it| port(it.port, &it.protocol)).collect();
    container["ports"] = ports.iter().map(|(of_container, ..)| of_container.clone()).collect();
    let volumes: Vec<_> = names_of_volumes(application).collect();
    let mount = |(volume, path): &(String, &str)| json!({ "name": volume, "mountPath": path });
    container["volumeMounts"] = volumes.iter().map(mount).collect();
    let claimed = |(volume, _): &(String, &str)| json!({ "name": volume, "persistentVolumeClaim": { "claimName": format!("{name}-{volume}") } });
    let pod = json!({
        "metadata": { "labels": labels },
        "spec": { "containers": [container], "volumes": volumes.iter().map(claimed).collect::<Vec<_>>() },
    });
    let mut objects = vec![json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name },
        // A volume is mounted once, and the scheduler has given room for one pod.
        "spec": { "replicas": 1, "strategy": { "type": "Recreate" }, "selector": { "matchLabels": labels }, "template": pod },
    })];
    if !ports.is_empty() {
        let of_service = |(_, port, protocol): &(Value, u16, String)| json!({ "name": format!("{}-{port}", protocol.to_ascii_lowercase()), "port": port, "protocol": protocol });
        objects.push(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
            "spec": { "selector": labels, "ports": ports.iter().map(of_service).collect::<Vec<_>>() },
        }));
    }
    for ((volume, _), of) in volumes.iter().zip(&application.persistent_volumes) {
        objects.push(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": format!("{name}-{volume}") },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": of.storage_class,
                "resources": { "requests": { "storage": format!("{}Gi", of.capacity) } },
            },
        }));
    }
    json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string()
}

/// The command and arguments that replace the image's own program: the coordinates `command` and `args`, as for a process.
fn command(of: &Coordinates) -> Option<(Value, Value)> {
    let command = of.get("command").filter(|command| command.is_string())?;
    let args = of.get("args").filter(|args| args.is_array());
    Some((json!([command]), args.cloned().unwrap_or_else(|| json!([]))))
}

/// The name and the path of each volume.
fn names_of_volumes(application: &PlanApplication) -> impl Iterator<Item = (String, &str)> {
    let volumes = application.persistent_volumes.iter().enumerate();
    volumes.map(|(nth, volume)| (format!("volume-{nth}"), volume.mount_path.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn application() -> PlanApplication {
        serde_json::from_value(json!({
            "payloadName": "main", "resources": { "cores": 2, "memory": 4 },
            "ports": [{ "protocol": "TCP", "port": 8080 }],
            "persistentVolumes": [{ "storageClass": "ssd", "capacity": 10, "mountPath": "/data" }],
        }))
        .unwrap()
    }

    fn parsed(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    fn none() -> Coordinates {
        Coordinates::default()
    }

    #[test]
    fn a_command_runs_in_place_of_the_images_own_program() {
        let of: Coordinates = serde_json::from_value(json!({ "command": "sleep", "args": ["9"] })).unwrap();
        let service = &parsed(&compose_file(&application(), &json!("a"), &of))["services"]["main"];
        assert_eq!((&service["entrypoint"], &service["command"]), (&json!(["sleep"]), &json!(["9"])));
        let list = parsed(&manifests(&application(), &json!("a"), &of));
        let container = &list["items"][0]["spec"]["template"]["spec"]["containers"][0];
        assert_eq!((&container["command"], &container["args"]), (&json!(["sleep"]), &json!(["9"])));
    }

    #[test]
    fn a_compose_file_has_the_ports_volumes_and_limits_of_its_application() {
        let service = json!({
            "image": "nginx:1", "cpus": 2, "mem_limit": "4g", "ports": ["8080:8080/tcp"], "volumes": ["volume-0:/data"],
        });
        let expected = json!({ "services": { "main": service }, "volumes": { "volume-0": {} } });
        assert_eq!(parsed(&compose_file(&application(), &json!("nginx:1"), &none())), expected);
        let plain = serde_json::from_value(json!({ "payloadName": "main", "resources": {} })).unwrap();
        let expected = json!({ "services": { "main": { "image": "nginx:1" } } });
        assert_eq!(parsed(&compose_file(&plain, &json!("nginx:1"), &none())), expected);
    }

    #[test]
    fn manifests_have_the_ports_volumes_and_limits_of_their_application() {
        let list = parsed(&manifests(&application(), &json!("nginx:1"), &none()));
        let kinds: Vec<_> =
            list["items"].as_array().unwrap().iter().map(|it| it["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["Deployment", "Service", "PersistentVolumeClaim"]);
        let pod = &list["items"][0]["spec"]["template"]["spec"];
        let expected = json!({
            "name": "main", "image": "nginx:1", "resources": { "limits": { "cpu": "2", "memory": "4Gi" } },
            "ports": [{ "containerPort": 8080, "protocol": "TCP" }],
            "volumeMounts": [{ "name": "volume-0", "mountPath": "/data" }],
        });
        assert_eq!(pod["containers"][0], expected);
        assert_eq!(pod["volumes"][0]["persistentVolumeClaim"]["claimName"], "main-volume-0");
        assert_eq!(list["items"][2]["spec"]["resources"]["requests"]["storage"], "10Gi");
    }
}
