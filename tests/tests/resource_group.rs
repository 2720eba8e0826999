//! The ResourceGroups of the golden files are such by kpt's CustomResourceDefinition (kpt.dev/v1alpha1) as it is published: what
//! is required is there, and nothing that an API server would drop; and the values are those that kpt's controller gives.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use jsonschema::Validator;
use muster_tests::python::interpreter;
use serde_json::{Value, json};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name)
}

/// The published schema. An API server drops fields that it does not name, so they count as wrong; `metadata` is its own.
fn schema() -> Validator {
    let text = std::fs::read_to_string(golden("resourcegroups.kpt.dev.json")).unwrap();
    let mut schema: Value = serde_json::from_str(&text).unwrap();
    close(&mut schema);
    schema["required"] = json!(["apiVersion", "kind", "metadata", "spec", "status"]);
    jsonschema::draft202012::options().should_validate_formats(true).build(&schema).unwrap()
}

fn close(schema: &mut Value) {
    if let Value::Object(fields) = schema {
        if fields.contains_key("properties") && fields.get("type") == Some(&json!("object")) {
            fields.insert("additionalProperties".to_owned(), json!(false));
        }
        fields.values_mut().for_each(close);
    }
}

/// The values of kpt's types, which its definition leaves open.
fn check_values(document: &Value, name: &str) {
    let allowed = [
        ("strategy", &["Apply", "Delete"][..]),
        ("actuation", &["Pending", "Succeeded", "Skipped", "Failed"]),
        ("reconcile", &["Pending", "Succeeded", "Skipped", "Timeout", "Failed"]),
        ("status", &["InProgress", "Failed", "Current", "Terminating", "NotFound", "Unknown"]),
    ];
    let status = &document["status"];
    let lists = [&status["resourceStatuses"], &status["subgroupStatuses"]];
    for member in lists.into_iter().filter_map(Value::as_array).flatten() {
        for (field, words) in allowed {
            let value = member[field].as_str();
            assert!(value.is_none_or(|value| words.contains(&value)), "{name}: {field} {value:?}");
        }
    }
    for condition in status["conditions"].as_array().unwrap() {
        let value = condition["status"].as_str().unwrap();
        assert!(["True", "False", "Unknown"].contains(&value), "{name}: {condition}");
        let reason = condition["reason"].as_str().unwrap();
        assert!(reason.chars().all(char::is_alphabetic), "{name}: {condition}");
    }
}

/// The golden documents by name.
fn documents() -> Vec<(String, Value)> {
    let mut read = Vec::new();
    for file in std::fs::read_dir(golden("ctl")).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if name.starts_with("resource-group-") {
            let document = serde_norway::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            read.push((name, document));
        }
    }
    assert!(read.len() >= 8, "the golden documents are elsewhere: {}", read.len());
    read
}

#[test]
fn every_resource_group_is_one_by_kpts_published_definition() {
    let schema = schema();
    for (name, document) in documents() {
        schema
            .validate(&document)
            .unwrap_or_else(|error| panic!("{name}: {error} at {}", error.instance_path()));
        assert_eq!(document["apiVersion"], "kpt.dev/v1alpha1", "{name}");
        assert_eq!(document["kind"], "ResourceGroup", "{name}");
        check_values(&document, &name);
    }
}

#[test]
fn a_group_of_groups_has_subgroups_and_their_statuses() {
    let documents = documents();
    let fleet = &documents.iter().find(|(name, _)| name == "resource-group-fleet").unwrap().1;
    let (subgroups, statuses) = (&fleet["spec"]["subgroups"], &fleet["status"]["subgroupStatuses"]);
    let names = |list: &Value| -> Vec<(Value, Value)> {
        let all = list.as_array().unwrap().iter();
        all.map(|one| (one["namespace"].clone(), one["name"].clone())).collect()
    };
    assert!(!names(subgroups).is_empty());
    assert_eq!(names(subgroups), names(statuses), "each with its status");
    assert!(fleet["spec"]["resources"].is_null() && fleet["status"]["resourceStatuses"].is_null());
    let counts = &documents.iter().find(|(name, _)| name == "resource-group-counts").unwrap().1;
    assert!(counts["spec"]["subgroups"].is_null(), "counts alone have no members: {counts}");
}

#[test]
fn a_document_that_lacks_what_is_required_or_has_what_is_unknown_is_none() {
    let good = json!({"apiVersion": "kpt.dev/v1alpha1", "kind": "ResourceGroup", "metadata": {"name": "web"},
        "spec": {}, "status": {"observedGeneration": 0}});
    assert!(schema().is_valid(&good));
    for (pointer, value) in [
        ("/status", json!({"observedGeneration": "0"})),
        ("/status", json!({"observedGeneration": 0, "conditions": [{"type": "Stalled"}]})),
        ("/spec", json!({"resources": [{"kind": "Component", "name": "web", "namespace": "plant7"}]})),
        ("/spec", json!({"subgroups": [{"name": "web"}]})),
        (
            "/status",
            json!({"subgroupStatuses": [{"name": "web", "namespace": "a", "status": "Current", "actuation": "Pending"}]}),
        ),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = value;
        assert!(!schema().is_valid(&bad), "{bad}");
    }
}

/// An API server that knows one object, as far as the example needs one: it keeps the status apart and counts generations.
struct ApiServer {
    address: SocketAddr,
    held: Arc<Mutex<(Value, Vec<String>)>>,
}

impl ApiServer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let held = Arc::new(Mutex::new((Value::Null, Vec::new())));
        let own = held.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(&stream.unwrap(), &mut own.lock().unwrap());
            }
        });
        Self { address, held }
    }

    /// Pushes a golden document; the object, and the writes that it took.
    fn push(&self, document: &Value) -> (Value, Vec<String>) {
        self.held.lock().unwrap().1.clear();
        let script = muster_tests::schemas::folder().join("examples/resourcegroup.py");
        let server = format!("http://{}", self.address);
        let mut child = Command::new(interpreter())
            .arg(script)
            .args(["--server", &server, "--namespace", "fleet"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(document.to_string().as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        let (object, writes) = self.held.lock().unwrap().clone();
        (object, writes)
    }
}

fn answer(mut stream: &TcpStream, (object, writes): &mut (Value, Vec<String>)) {
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        head.push(line.trim().to_owned());
    }
    let length =
        head.iter().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).unwrap();
    let asked = head[0].trim_end_matches(" HTTP/1.1").to_owned();
    let given: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = "/apis/kpt.dev/v1alpha1/namespaces/fleet/resourcegroups";
    let is_new = asked == format!("POST {path}");
    if !asked.starts_with("GET") {
        writes.push(asked.replace(path, ""));
    }
    if asked.ends_with("/status") {
        object["status"] = given["status"].clone();
    } else if is_new || asked.starts_with("PUT") {
        let generation = object["metadata"]["generation"].as_u64().unwrap_or(0) + 1;
        (object["apiVersion"], object["kind"]) = (given["apiVersion"].clone(), given["kind"].clone());
        (object["metadata"], object["spec"]) = (given["metadata"].clone(), given["spec"].clone());
        object["metadata"]["generation"] = json!(generation);
    }
    let code = if object.is_null() { "404 Not Found" } else { "200 OK" };
    let text = object.to_string();
    let reply =
        format!("HTTP/1.1 {code}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}", text.len());
    stream.write_all(reply.as_bytes()).unwrap();
}

#[test]
fn the_example_pushes_the_status_into_the_clusters_object() {
    let (schema, documents, server) = (schema(), documents(), ApiServer::start());
    let of = |name: &str| documents.iter().find(|(of, _)| of == name).unwrap().1.clone();
    let fleet = of("resource-group-fleet");
    let (object, writes) = server.push(&fleet);
    assert_eq!(writes, ["POST ", "PUT /packet-tap/status"], "made, and then its status");
    assert_eq!(object["spec"], fleet["spec"]);
    assert_eq!(object["status"]["subgroupStatuses"], fleet["status"]["subgroupStatuses"]);
    assert_eq!(object["status"]["observedGeneration"], object["metadata"]["generation"]);
    schema.validate(&object).unwrap();
    assert_eq!(server.push(&fleet).1, Vec::<String>::new(), "the same is not written again");
    let (object, writes) = server.push(&of("resource-group-counts"));
    assert_eq!(writes, ["PUT /packet-tap", "PUT /packet-tap/status"], "counts alone");
    assert!(object["status"]["subgroupStatuses"].is_null(), "{object}");
    assert_eq!(object["status"]["observedGeneration"], 2);
}
