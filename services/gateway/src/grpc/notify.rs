//! EMCO's notification service: each stream follows a question of people's event streams, so that clients of both share the
//! polls of a question. The present state comes first.
//!
//! A stream ends with OK when the deployment or device is gone, with UNAVAILABLE at its greatest age or when the gateway stops,
//! and with CANCELLED when its client deregisters. While no service answers, the last message is `STATUS_ERROR`. The stream checks
//! the caller's key before each message and every few seconds.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use muster_proto::status_notify_server::StatusNotify;
use muster_proto::status_registration::Key;
use muster_proto::{
    AppStatus, ClusterStatus, Gvk, OutputType, ResourceStatus, StatusDeregistration,
    StatusDeregistrationResponse, StatusDetail, StatusNotification, StatusRegistration, StatusValue,
    status_detail,
};
use serde_json::Value;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::caller::{CallGuard, GrpcCaller, split};
use super::refusals::{invalid, of_problem};
use crate::people::People;
use crate::people::emco::named::{Subject, watched};
use crate::people::emco::watched::WatchedStatus;
use crate::people::watch::polled::notices::{Notice, Notices};

/// Most open streams.
const REGISTRATIONS_MAX: usize = 1_000;
/// Most open streams of one person.
const REGISTRATIONS_OF_PERSON_MAX: usize = 256;
/// Longest id of a client, in bytes.
const CLIENT_ID_BYTES_MAX: usize = 128;
/// Longest time between two checks of the caller's key.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Age at which a stream ends; the client registers again.
const AGE_MAX: Duration = Duration::from_secs(30 * 60);
/// The end of a stream whose gateway stops.
const STOPPED: &str = "the gateway stops: register again";

// One person leaves room for others.
const _: () = assert!(REGISTRATIONS_OF_PERSON_MAX < REGISTRATIONS_MAX);

/// The key of the person who registered, and the client's id.
type RegistrationKey = (String, String);
/// The open registrations, each with the token that ends its stream.
type Registrations = Arc<Mutex<HashMap<RegistrationKey, CancellationToken>>>;

/// The service.
pub(super) struct Notifier {
    people: People,
    guard: CallGuard,
    stop: CancellationToken,
    open: Registrations,
}

impl Notifier {
    /// The service over the polled questions of people. `stop` ends all streams.
    pub(super) fn new(people: People, guard: CallGuard, stop: CancellationToken) -> Self {
        Self { people, guard, stop, open: Registrations::default() }
    }

    fn register(&self, caller: &GrpcCaller, id: &str) -> Result<Registration, Status> {
        if id.is_empty() || id.len() > CLIENT_ID_BYTES_MAX {
            return Err(invalid("clientId", format!("must have 1 to {CLIENT_ID_BYTES_MAX} bytes")));
        }
        let key = (caller.person.key.clone(), id.to_owned());
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        check_room(&open, &key.0)?;
        match open.entry(key.clone()) {
            Entry::Occupied(_) => Err(Status::already_exists(format!(
                "clientId: '{id}' is registered: deregister it, or choose another one"
            ))),
            Entry::Vacant(vacant) => {
                let ended = self.stop.child_token();
                vacant.insert(ended.clone());
                Ok(Registration { open: Arc::clone(&self.open), key, ended })
            }
        }
    }
}

/// Checks that a person may open another stream.
fn check_room(open: &HashMap<RegistrationKey, CancellationToken>, person: &str) -> Result<(), Status> {
    let own = open.keys().filter(|(key, _)| key == person).count();
    if own >= REGISTRATIONS_OF_PERSON_MAX {
        return Err(Status::resource_exhausted(format!("you have {own} open streams: deregister one")));
    }
    if open.len() >= REGISTRATIONS_MAX {
        return Err(Status::resource_exhausted(format!(
            "{REGISTRATIONS_MAX} streams are open at this gateway: register later, or at another gateway"
        )));
    }
    Ok(())
}

/// An open registration; its end frees the client's id.
struct Registration {
    open: Registrations,
    key: RegistrationKey,
    ended: CancellationToken,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

/// The messages of one client.
struct Messages {
    people: People,
    guard: CallGuard,
    caller: Arc<GrpcCaller>,
    notices: Notices,
    registration: Registration,
    stop: CancellationToken,
    ends: Instant,
    has_ended: bool,
}

impl Messages {
    /// The next message; `None` ends the stream.
    async fn next(&mut self) -> Option<Result<StatusNotification, Status>> {
        if self.has_ended {
            return None;
        }
        let next = self.wait().await;
        self.has_ended = !matches!(next, Some(Ok(_)));
        next
    }

    async fn wait(&mut self) -> Option<Result<StatusNotification, Status>> {
        loop {
            if let Err(status) = self.guard.check(&self.caller) {
                return Some(Err(status));
            }
            match self.notices.due(&self.people) {
                Some(Notice::Status(json)) => return Some(Ok(notification(&json))),
                Some(Notice::Unanswered(cause)) => {
                    tracing::debug!(cause, "cannot notify a gRPC client of the status");
                    return Some(Ok(StatusNotification::default()));
                }
                Some(Notice::Gone) => return None,
                None => {}
            }
            if Instant::now() >= self.ends {
                return Some(Err(Status::unavailable("the stream has reached its age: register again")));
            }
            tokio::select! {
                () = sleep(CHECK_INTERVAL) => {}
                changed = self.notices.changed() => {
                    if changed.is_none() {
                        return Some(Err(Status::unavailable(STOPPED)));
                    }
                }
                () = self.registration.ended.cancelled() => {
                    return Some(Err(if self.stop.is_cancelled() {
                        Status::unavailable(STOPPED)
                    } else {
                        Status::cancelled("the client has deregistered")
                    }));
                }
            }
        }
    }
}

#[tonic::async_trait]
impl StatusNotify for Notifier {
    type StatusRegisterStream = Pin<Box<dyn Stream<Item = Result<StatusNotification, Status>> + Send>>;

    async fn status_register(
        &self,
        request: Request<StatusRegistration>,
    ) -> Result<Response<Self::StatusRegisterStream>, Status> {
        let (caller, message) = split(request)?;
        let question = question(&message)?;
        let registration = self.register(&caller, &message.client_id)?;
        let notices = Notices::follow(&self.people, question).await.map_err(of_problem)?;
        let messages = Messages {
            people: self.people.clone(),
            guard: self.guard.clone(),
            caller,
            notices,
            registration,
            stop: self.stop.clone(),
            ends: Instant::now() + AGE_MAX,
            has_ended: false,
        };
        let stream = unfold(messages, async |mut messages| {
            let next = messages.next().await?;
            Some((next, messages))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn status_deregister(
        &self,
        request: Request<StatusDeregistration>,
    ) -> Result<Response<StatusDeregistrationResponse>, Status> {
        let (caller, message) = split(request)?;
        let key = (caller.person.key.clone(), message.client_id);
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = open.get(&key).cloned();
        drop(open);
        let absent = || Status::not_found(format!("there is no registration '{}' of yours", key.1));
        ended.ok_or_else(absent)?.cancel();
        Ok(Response::new(StatusDeregistrationResponse {}))
    }
}

/// The question of a registration.
fn question(message: &StatusRegistration) -> Result<WatchedStatus, Status> {
    let subject = match &message.key {
        Some(Key::DigKey(of)) => Subject::Group {
            names: [&of.project, &of.composite_app, &of.composite_app_version],
            group: &of.deployment_intent_group,
        },
        Some(Key::ClusterKey(of)) => {
            Subject::Cluster { provider: &of.cluster_provider, cluster: &of.cluster }
        }
        Some(Key::LcKey(of)) => Subject::Cloud { project: &of.project, cloud: &of.logical_cloud },
        None => return Err(invalid("key", "is missing: name a digKey, an lcKey or a clusterKey")),
    };
    let axis = match message.status_type() {
        StatusValue::Ready => "ready",
        StatusValue::Deployed => "deployed",
        _ => return Err(invalid("statusType", "is not READY or DEPLOYED")),
    };
    let output = match message.output() {
        OutputType::Summary => "summary",
        OutputType::All => "all",
    };
    let filters = [("app", &message.apps), ("cluster", &message.clusters), ("resource", &message.resources)];
    let filters =
        filters.into_iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value.as_str())));
    watched(subject, [("status", axis), ("output", output)].into_iter().chain(filters)).map_err(of_problem)
}

/// A notification from its JSON.
fn notification(json: &[u8]) -> StatusNotification {
    let value: Value = serde_json::from_slice(json).unwrap_or_default();
    StatusNotification { status_value: status_value(&value), details: all(&value["details"], detail) }
}

fn detail(value: &Value) -> StatusDetail {
    let status_detail = match value.get("cluster") {
        Some(of) => status_detail::StatusDetail::Cluster(cluster(of)),
        None => status_detail::StatusDetail::App(app(&value["app"])),
    };
    StatusDetail { status_detail: Some(status_detail) }
}

fn app(value: &Value) -> AppStatus {
    AppStatus {
        app: text(&value["app"]),
        status_value: status_value(value),
        clusters: all(&value["clusters"], cluster),
    }
}

fn cluster(value: &Value) -> ClusterStatus {
    ClusterStatus {
        cluster_provider: text(&value["clusterProvider"]),
        cluster: text(&value["cluster"]),
        status_value: status_value(value),
        resources: all(&value["resources"], resource),
    }
}

fn resource(value: &Value) -> ResourceStatus {
    let of = &value["gvk"];
    let gvk = Gvk { group: text(&of["group"]), version: text(&of["version"]), kind: text(&of["kind"]) };
    ResourceStatus { name: text(&value["name"]), gvk: Some(gvk), status_value: status_value(value) }
}

fn all<T>(list: &Value, convert: impl Fn(&Value) -> T) -> Vec<T> {
    list.as_array().map(|items| items.iter().map(convert).collect()).unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn status_value(value: &Value) -> i32 {
    let named = value["statusValue"].as_str().and_then(StatusValue::from_str_name);
    named.unwrap_or(StatusValue::StatusError).into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_notification_has_all_that_its_json_has() {
        let resource = json!({ "name": "main", "gvk": { "group": "muster", "version": "v1", "kind": "Component" },
            "statusValue": "NOT_READY" });
        let cluster = json!({ "clusterProvider": "plant7", "cluster": "press-1", "statusValue": "NOT_READY",
            "resources": [resource] });
        let whole = json!({ "statusValue": "NOT_READY", "details": [
            { "app": { "app": "web", "statusValue": "READY", "clusters": [cluster] } },
            { "cluster": cluster },
        ] });
        let message = notification(whole.to_string().as_bytes());
        assert_eq!((message.status_value(), message.details.len()), (StatusValue::NotReady, 2));
        let Some(status_detail::StatusDetail::App(app)) = &message.details[0].status_detail else { panic!() };
        let Some(status_detail::StatusDetail::Cluster(of)) = &message.details[1].status_detail else {
            panic!()
        };
        assert_eq!((app.app.as_str(), app.status_value(), &app.clusters[0]), ("web", StatusValue::Ready, of));
        assert_eq!((of.cluster_provider.as_str(), of.cluster.as_str()), ("plant7", "press-1"));
        let gvk = Gvk { group: "muster".into(), version: "v1".into(), kind: "Component".into() };
        assert_eq!((of.resources[0].name.as_str(), &of.resources[0].gvk), ("main", &Some(gvk)));
        assert_eq!(of.resources[0].status_value(), StatusValue::NotReady);
        assert_eq!(notification(b"no JSON").status_value(), StatusValue::StatusError);
    }

    #[test]
    fn one_person_leaves_room_for_streams_of_others() {
        let mut open = HashMap::new();
        let mut add = |person: &str, count: usize| {
            let keys = (0..count).map(|id| (person.to_owned(), id.to_string()));
            open.extend(keys.map(|key| (key, CancellationToken::new())));
            let check = |person| check_room(&open, person).map_err(|status| status.message().to_owned());
            (check("anna"), check("ben"))
        };
        assert_eq!(add("anna", REGISTRATIONS_OF_PERSON_MAX - 1), (Ok(()), Ok(())));
        let (anna, ben) = add("anna", REGISTRATIONS_OF_PERSON_MAX);
        assert_eq!((anna.unwrap_err().as_str(), ben), ("you have 256 open streams: deregister one", Ok(())));
        for person in ["b", "c", "d"] {
            let _ = add(person, REGISTRATIONS_OF_PERSON_MAX);
        }
        let (_, ben) = add("e", 0);
        assert!(ben.unwrap_err().starts_with("1000 streams are open at this gateway"));
    }

    #[test]
    fn a_registration_names_a_deployment_device_or_site_and_one_axis() {
        let named = |key: Option<Key>, axis: StatusValue| {
            let message =
                StatusRegistration { key, status_type: axis.into(), ..StatusRegistration::default() };
            question(&message).map_err(|status| status.code())
        };
        let group = |name: &str| {
            Some(Key::DigKey(muster_proto::DigKey {
                project: "plant".into(),
                composite_app: "shop".into(),
                composite_app_version: "v1".into(),
                deployment_intent_group: name.into(),
            }))
        };
        assert!(named(group("web"), StatusValue::Ready).is_ok());
        assert!(named(group("web"), StatusValue::Deployed).is_ok());
        let cloud = |name: &str| {
            Some(Key::LcKey(muster_proto::LcKey { project: "plant".into(), logical_cloud: name.into() }))
        };
        assert!(named(cloud("plant7"), StatusValue::Ready).is_ok());
        for (key, axis, code) in [
            (group("web"), StatusValue::StatusError, tonic::Code::InvalidArgument),
            (group("web"), StatusValue::NotReady, tonic::Code::InvalidArgument),
            (group("W E B"), StatusValue::Ready, tonic::Code::InvalidArgument),
            (None, StatusValue::Ready, tonic::Code::InvalidArgument),
            (cloud("Plant 7"), StatusValue::Ready, tonic::Code::InvalidArgument),
        ] {
            assert_eq!(named(key.clone(), axis).err(), Some(code), "{key:?}");
        }
    }
}
