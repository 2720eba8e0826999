//! A scripted API server: lists, watches with bookmarks, server-side apply as a merge, deletions, and faults that a test sets. It
//! stores objects by path.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// Kinds: group and version, kind, plural, whether it is namespaced.
const KINDS: [(&str, &str, &str, bool); 9] = [
    ("v1", "Namespace", "namespaces", false),
    ("v1", "ConfigMap", "configmaps", true),
    ("v1", "Secret", "secrets", true),
    ("v1", "Service", "services", true),
    ("v1", "Pod", "pods", true),
    ("apps/v1", "Deployment", "deployments", true),
    ("batch/v1", "Job", "jobs", true),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", false),
    ("kpt.dev/v1alpha1", "ResourceGroup", "resourcegroups", true),
];
/// The kind that needs a definition first.
const DEFINED: &str = "kpt.dev/v1alpha1";
const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/resourcegroups.kpt.dev";

#[derive(Default)]
struct Objects {
    version: u64,
    /// By path.
    objects: BTreeMap<String, Value>,
    /// Events that watches can still read, by version.
    events: Vec<(u64, &'static str, String, Value)>,
    /// Versions up to this one are compacted.
    compacted: u64,
    /// The number of requests to refuse, and the status code.
    refusals: (usize, u16),
    /// The reason why objects of a path with this part cannot be written.
    forbidden: Option<(&'static str, &'static str)>,
    /// The other field manager of an object, by path: to apply such an object is a conflict.
    other_managers: BTreeMap<String, String>,
    /// Methods and paths of requests.
    requests: Vec<String>,
    /// Watches of an epoch before this one end.
    epoch: u64,
}

#[derive(Clone)]
struct Shared {
    objects: Arc<Mutex<Objects>>,
    changes: watch::Sender<u64>,
}

/// A running scripted API server.
pub struct ScriptedApi {
    shared: Shared,
    address: SocketAddr,
    serving: Option<JoinHandle<()>>,
}

impl ScriptedApi {
    /// Starts one without objects.
    pub async fn start() -> Self {
        let shared = Shared { objects: Arc::default(), changes: watch::Sender::new(0) };
        let mut api = Self { shared, address: SocketAddr::from(([127, 0, 0, 1], 0)), serving: None };
        api.resume().await;
        api
    }

    /// Serves again at the same address.
    pub async fn resume(&mut self) {
        let listener = loop {
            match tokio::net::TcpListener::bind(self.address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            }
        };
        self.address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(self.shared.clone());
        self.serving = Some(tokio::spawn(async move { axum::serve(listener, router).await.unwrap() }));
    }

    /// Kills the server with its connections. Its objects stay.
    pub fn kill(&mut self) {
        self.cut_watches();
        if let Some(serving) = self.serving.take() {
            serving.abort();
        }
        // Idle connections would still be served.
        self.refuse_next(usize::MAX, 503);
    }

    /// Refuses no more requests.
    pub fn serve_all(&self) {
        self.refuse_next(0, 0);
    }

    /// The server's URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Refuses the next requests with a code.
    pub fn refuse_next(&self, count: usize, code: u16) {
        self.shared.objects.lock().unwrap().refusals = (count, code);
    }

    /// Refuses to write objects whose path has this part, as the API server does for a quota or missing rights.
    pub fn forbid(&self, part: &'static str, reason: &'static str) {
        self.shared.objects.lock().unwrap().forbidden = Some((part, reason));
    }

    /// Allows again what was forbidden.
    pub fn allow_all(&self) {
        self.shared.objects.lock().unwrap().forbidden = None;
    }

    /// Ends all watches, and compacts the versions from which they would resume: the answer is 410.
    pub fn compact(&self) {
        let mut objects = self.shared.objects.lock().unwrap();
        objects.compacted = objects.version;
        objects.events.clear();
        objects.version += 1;
        drop(objects);
        self.cut_watches();
    }

    /// Ends all watches.
    pub fn cut_watches(&self) {
        self.shared.objects.lock().unwrap().epoch += 1;
        self.shared.changes.send_modify(|count| *count += 1);
    }

    /// Makes another field manager own a field of an object.
    pub fn set_other_manager(&self, path: &str, manager: &str) {
        self.shared.objects.lock().unwrap().other_managers.insert(path.to_owned(), manager.to_owned());
    }

    /// An object.
    pub fn object(&self, path: &str) -> Option<Value> {
        self.shared.objects.lock().unwrap().objects.get(path).cloned()
    }

    /// The paths of all objects.
    pub fn paths(&self) -> Vec<String> {
        self.shared.objects.lock().unwrap().objects.keys().cloned().collect()
    }

    /// Methods and paths of the requests since the last call.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.objects.lock().unwrap().requests)
    }

    /// Puts an object, as a controller or a person does.
    pub fn put(&self, path: &str, object: Value) {
        self.shared.write(path, object);
    }

    /// Sets the status of an object, as its controller does.
    pub fn set_status(&self, path: &str, mut status: Value) {
        let mut object = self.object(path).unwrap_or_else(|| panic!("there is no {path}"));
        if let Some(generation) = object["metadata"].get("generation") {
            status["observedGeneration"] = generation.clone();
        }
        object["status"] = status;
        self.shared.write(path, object);
    }

    /// Starts a controller that makes each version of a Deployment ready, unless its image is `never`.
    pub fn start_controller(&self) -> JoinHandle<()> {
        let (shared, mut changes) = (self.shared.clone(), self.shared.changes.subscribe());
        tokio::spawn(async move {
            loop {
                changes.mark_unchanged();
                shared.make_ready();
                if changes.changed().await.is_err() {
                    return;
                }
            }
        })
    }

    /// Deletes an object, as a person does.
    pub fn delete(&self, path: &str) {
        self.shared.remove(path);
    }
}

impl Drop for ScriptedApi {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Shared {
    fn make_ready(&self) {
        let all = self.objects.lock().unwrap().objects.clone();
        let is_deployment = |path: &&String| path.contains("/deployments/");
        for path in all.keys().filter(is_deployment) {
            let (mut object, replicas) = (all[path].clone(), all[path]["spec"]["replicas"].clone());
            let image = object.pointer("/spec/template/spec/containers/0/image").and_then(Value::as_str);
            let generation = object["metadata"]["generation"].clone();
            if image == Some("never") || object["status"]["observedGeneration"] == generation {
                continue;
            }
            object["status"] = json!({"observedGeneration": generation, "replicas": replicas,
                "updatedReplicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas});
            self.write(path, object);
        }
    }

    fn write(&self, path: &str, mut object: Value) -> Value {
        let mut objects = self.objects.lock().unwrap();
        objects.version += 1;
        let version = objects.version;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let before = objects.objects.insert(path.to_owned(), object.clone());
        let generation = before.as_ref().map_or(0, |it| it["metadata"]["generation"].as_u64().unwrap_or(0));
        let is_new_spec = before.as_ref().is_none_or(|it| it["spec"] != object["spec"]);
        if object.get("spec").is_some() && is_new_spec {
            object["metadata"]["generation"] = json!(generation + 1);
            objects.objects.insert(path.to_owned(), object.clone());
        }
        let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
        objects.events.push((version, kind, path.to_owned(), object.clone()));
        drop(objects);
        self.changes.send_modify(|count| *count += 1);
        object
    }

    fn remove(&self, path: &str) -> Option<Value> {
        let mut objects = self.objects.lock().unwrap();
        let prefix = format!("/namespaces/{}/", path.rsplit('/').next().unwrap_or_default());
        let is_namespace = path.starts_with("/api/v1/namespaces/") && path.split('/').count() == 5;
        let paths: Vec<String> =
            objects.objects.keys().filter(|it| is_namespace && it.contains(&prefix)).cloned().collect();
        let mut found = None;
        for path in paths.iter().map(String::as_str).chain([path]) {
            found = objects.objects.remove(path);
            let Some(mut object) = found.clone() else { continue };
            objects.version += 1;
            let version = objects.version;
            object["metadata"]["resourceVersion"] = json!(version.to_string());
            objects.events.push((version, "DELETED", path.to_owned(), object));
        }
        drop(objects);
        self.changes.send_modify(|count| *count += 1);
        found
    }
}

async fn answer(State(shared): State<Shared>, method: Method, uri: Uri, body: Bytes) -> Response {
    let (path, query) = (uri.path().to_owned(), uri.query().unwrap_or_default().to_owned());
    {
        let mut objects = shared.objects.lock().unwrap();
        objects.requests.push(format!("{method} {path}?{query}"));
        if objects.refusals.0 > 0 {
            objects.refusals.0 -= 1;
            return status(objects.refusals.1, "Refused", "the test refuses it");
        }
        let is_write = matches!(method, Method::PATCH | Method::PUT | Method::POST);
        if let Some((_, reason)) = objects.forbidden.filter(|(part, _)| is_write && path.contains(part)) {
            return status(403, "Forbidden", reason);
        }
    }
    if let Some(found) = discovery(&shared, &path) {
        return found;
    }
    let body = || serde_json::from_slice::<Value>(&body).unwrap_or_default();
    match method {
        Method::GET if is_collection(&path) && query.contains("watch=true") => watched(shared, path, &query),
        Method::GET if is_collection(&path) => listed(&shared, &path, &query),
        Method::GET => match shared.objects.lock().unwrap().objects.get(&path) {
            Some(object) => object.to_string().into_response(),
            None => status(404, "NotFound", &format!("{path} not found")),
        },
        Method::PATCH | Method::PUT => applied(&shared, &path, &body()),
        Method::DELETE => match shared.remove(&path) {
            Some(object) => object.to_string().into_response(),
            None => status(404, "NotFound", &format!("{path} not found")),
        },
        _ => status(405, "MethodNotAllowed", "the scripted API server does not do that"),
    }
}

fn status(code: u16, reason: &str, message: &str) -> Response {
    let body = json!({"kind": "Status", "code": code, "reason": reason, "message": message}).to_string();
    (StatusCode::from_u16(code).unwrap(), body).into_response()
}

fn is_collection(path: &str) -> bool {
    KINDS.iter().any(|(_, _, plural, _)| path.ends_with(&format!("/{plural}")))
}

fn discovery(shared: &Shared, path: &str) -> Option<Response> {
    let of = path.strip_prefix("/apis/").or_else(|| path.strip_prefix("/api/"))?;
    let is_defined = shared.objects.lock().unwrap().objects.contains_key(DEFINITION);
    let kinds = KINDS.iter().filter(|kind| is_defined || kind.0 != DEFINED);
    let resource =
        |kind: &(&str, &str, &str, bool)| json!({"name": kind.2, "kind": kind.1, "namespaced": kind.3});
    let of_version: Vec<_> = kinds.clone().filter(|kind| kind.0 == of).map(resource).collect();
    if !of_version.is_empty() {
        return Some(json!({"resources": of_version}).to_string().into_response());
    }
    if of.contains('/') {
        return (of == DEFINED && !is_defined).then(|| status(404, "NotFound", "no such group"));
    }
    let versions: Vec<_> = kinds
        .filter(|kind| kind.0.split_once('/').is_some_and(|(group, _)| group == of))
        .map(|kind| json!({"groupVersion": kind.0}))
        .collect();
    Some(json!({"versions": versions}).to_string().into_response())
}

/// Whether an object is in a collection: `/api/v1/secrets` has those of every namespace.
fn is_in(collection: &str, path: &str) -> bool {
    let (parent, plural) = collection.rsplit_once('/').unwrap();
    let own = path.rsplit_once('/').map(|(own, _)| own).unwrap_or_default();
    own == collection
        || (own.starts_with(parent)
            && own.ends_with(&format!("/{plural}"))
            && !collection.contains("/namespaces/"))
}

fn is_selected(query: &str, object: &Value) -> bool {
    let selector = query.split('&').find_map(|pair| pair.strip_prefix("labelSelector=")).unwrap_or_default();
    let wanted = selector.replace("%3D", "=");
    wanted.split(',').filter(|it| !it.is_empty()).all(|pair| {
        let (name, value) = pair.split_once('=').unwrap();
        object["metadata"]["labels"][name] == value
    })
}

fn listed(shared: &Shared, path: &str, query: &str) -> Response {
    let objects = shared.objects.lock().unwrap();
    if path.contains("kpt.dev") && !objects.objects.contains_key(DEFINITION) {
        return status(404, "NotFound", "the server could not find the requested resource");
    }
    let items = objects.objects.iter().filter(|(at, object)| is_in(path, at) && is_selected(query, object));
    // As a real server, it omits kind and version in the items of a list.
    let mut items: Vec<Value> = items.map(|(_, object)| without_kind(object)).collect();
    let number = |name| query.split('&').find_map(|pair| pair.strip_prefix(name)?.parse::<usize>().ok());
    let from = number("continue=").unwrap_or(0).min(items.len());
    let through = items.len().min(from + number("limit=").unwrap_or(items.len()));
    let next = if through < items.len() { through.to_string() } else { String::new() };
    items = items.drain(from..through).collect();
    let kind = KINDS.iter().find(|(_, _, plural, _)| path.ends_with(&format!("/{plural}")));
    let (version, kind) = kind.map_or(("v1", "Object"), |kind| (kind.0, kind.1));
    let metadata = json!({"resourceVersion": objects.version.to_string(), "continue": next});
    json!({"apiVersion": version, "kind": format!("{kind}List"), "metadata": metadata, "items": items})
        .to_string()
        .into_response()
}

fn without_kind(object: &Value) -> Value {
    let mut object = object.clone();
    let fields = object.as_object_mut().unwrap();
    fields.remove("kind");
    fields.remove("apiVersion");
    object
}

fn applied(shared: &Shared, path: &str, object: &Value) -> Response {
    let before = {
        let objects = shared.objects.lock().unwrap();
        if let Some(manager) = objects.other_managers.get(path) {
            let message =
                format!("Apply failed with 1 conflict: conflict with \"{manager}\": .spec.replicas");
            return status(409, "Conflict", &message);
        }
        objects.objects.get(path).cloned().unwrap_or_else(|| Value::Object(Map::new()))
    };
    let mut merged = before;
    for (field, value) in object.as_object().cloned().unwrap_or_default() {
        if field == "metadata" {
            for (field, value) in value.as_object().cloned().unwrap_or_default() {
                merged["metadata"][field] = value;
            }
        } else {
            merged[field] = value;
        }
    }
    if path == DEFINITION {
        merged["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
    }
    shared.write(path, merged).to_string().into_response()
}

fn watched(shared: Shared, path: String, query: &str) -> Response {
    let from = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion="));
    let mut from: u64 = from.and_then(|from| from.parse().ok()).unwrap_or_default();
    let (sender, receiver) = mpsc::channel::<Result<Bytes, std::io::Error>>(64);
    tokio::spawn(async move {
        let mut changes = shared.changes.subscribe();
        let epoch = shared.objects.lock().unwrap().epoch;
        loop {
            let (lines, is_over) = lines_since(&shared, &path, &mut from, epoch);
            if !lines.is_empty() && sender.send(Ok(Bytes::from(lines))).await.is_err() {
                return;
            }
            if is_over || changes.changed().await.is_err() {
                return;
            }
        }
    });
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|item| (item, receiver))
    });
    Body::from_stream(stream).into_response()
}

/// The events of a collection since a version, and whether the watch ends.
fn lines_since(shared: &Shared, path: &str, from: &mut u64, epoch: u64) -> (String, bool) {
    let objects = shared.objects.lock().unwrap();
    if objects.epoch != epoch {
        return (String::new(), true);
    }
    if *from <= objects.compacted && objects.compacted > 0 {
        let gone = json!({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}});
        return (format!("{gone}\n"), true);
    }
    let (mut lines, since) = (String::new(), *from);
    for (version, kind, at, object) in objects.events.iter().filter(|event| event.0 > since) {
        if is_in(path, at) {
            lines.push_str(&format!("{}\n", json!({"type": kind, "object": object})));
        }
        *from = *version;
    }
    let bookmark =
        json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": objects.version.to_string()}}});
    lines.push_str(&format!("{bookmark}\n"));
    (lines, false)
}
