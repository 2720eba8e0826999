//! EMCO's notification service over gRPC, against devices that run.

use muster_proto::{
    ClusterKey, DigKey, LcKey, OutputType, StatusDeregistration, StatusNotification, StatusRegistration,
    StatusValue, status_detail, status_registration::Key,
};
use muster_tests::story;
use muster_tests::system::{System, agent_name};
use muster_tests::wait::soon;
use tonic::{Code, Status, Streaming};

use super::DEVICES;
use super::grpc::Stage;
use super::grpc_client::{Clients, person};

fn group(client_id: &str, name: &str) -> StatusRegistration {
    let key = DigKey {
        project: "plant".into(),
        composite_app: "shop".into(),
        composite_app_version: "v1".into(),
        deployment_intent_group: name.into(),
    };
    StatusRegistration {
        client_id: client_id.into(),
        key: Some(Key::DigKey(key)),
        status_type: StatusValue::Ready.into(),
        ..StatusRegistration::default()
    }
}

async fn open(clients: &Clients, asked: StatusRegistration) -> Result<Streaming<StatusNotification>, Status> {
    Ok(clients.clone().notify.status_register(asked).await?.into_inner())
}

async fn next(stream: &mut Streaming<StatusNotification>) -> Result<Option<StatusNotification>, Status> {
    soon("a notification", stream.message()).await
}

async fn value(stream: &mut Streaming<StatusNotification>) -> StatusValue {
    next(stream).await.unwrap().expect("a notification").status_value()
}

/// The next notification of this value.
async fn until_value(stream: &mut Streaming<StatusNotification>, wanted: StatusValue) -> StatusNotification {
    loop {
        let message = next(stream).await.unwrap().expect("a notification");
        if message.status_value() == wanted {
            return message;
        }
    }
}

async fn running() -> Stage {
    let mut system = System::start().await;
    muster_tests::rollouts::start_planner(&mut system);
    story::settled(&mut system, &DEVICES, "web").await;
    Stage::over(system).await
}

/// A registration for a site.
fn cloud(id: &str, site: &str) -> StatusRegistration {
    let key = LcKey { project: "plant".into(), logical_cloud: site.into() };
    StatusRegistration { key: Some(Key::LcKey(key)), ..group(id, "web") }
}

#[tokio::test(flavor = "multi_thread")]
async fn n07_a_grpc_client_gets_the_present_state_then_each_change_and_the_end() {
    let mut stage = running().await;
    let mut whole = open(&stage.clients, group("whole", "web")).await.unwrap();
    until_value(&mut whole, StatusValue::Ready).await;
    let filtered = StatusRegistration {
        clusters: vec!["plant7+press-1".into()],
        output: OutputType::All.into(),
        ..group("one", "web")
    };
    let mut one = open(&stage.clients, filtered).await.unwrap();
    let first = until_value(&mut one, StatusValue::Ready).await;
    let Some(status_detail::StatusDetail::App(app)) = &first.details[0].status_detail else {
        panic!("{first:?}")
    };
    assert_eq!((app.clusters.len(), app.clusters[0].cluster.as_str()), (1, "press-1"));
    let device = StatusRegistration {
        key: Some(Key::ClusterKey(ClusterKey {
            cluster_provider: "plant8".into(),
            cluster: "press-2".into(),
        })),
        status_type: StatusValue::Deployed.into(),
        ..group("device", "web")
    };
    let mut device = open(&stage.clients, device).await.unwrap();
    assert_eq!(value(&mut device).await, StatusValue::Deployed);
    let mut site = open(&stage.clients, cloud("site", "plant7")).await.unwrap();
    until_value(&mut site, StatusValue::Ready).await;

    stage.system.kill(&agent_name(&story::key(DEVICES[0]))).await;
    until_value(&mut one, StatusValue::NotReady).await;
    until_value(&mut whole, StatusValue::NotReady).await;
    until_value(&mut site, StatusValue::NotReady).await;
    stage.system.start_again(&agent_name(&story::key(DEVICES[0])));
    until_value(&mut one, StatusValue::Ready).await;
    std::fs::remove_file(stage.system.repository.dir().join("fleet/web.yaml")).unwrap();
    stage.system.repository.commit("Remove web").await.unwrap();
    while next(&mut whole).await.unwrap().is_some() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn n01_a_registration_over_grpc_has_an_id_once_a_person_and_ends_by_it() {
    let stage = running().await;
    let own = &stage.authority;
    own.sign("ben", &[&person("viewer", "ben")], &[], 8);
    let ben = Clients::of(own.channel(stage.addr, own, Some("ben")));
    let mut first = open(&stage.clients, group("a", "web")).await.unwrap();
    let again = open(&stage.clients, group("a", "web")).await.unwrap_err();
    assert_eq!(again.code(), Code::AlreadyExists, "{again:?}");
    let mut other = open(&ben, group("a", "web")).await.unwrap();
    until_value(&mut other, StatusValue::Ready).await;
    for (asked, code) in [
        (group("", "web"), Code::InvalidArgument),
        (group("b", "nothing"), Code::NotFound),
        (StatusRegistration { key: None, ..group("b", "web") }, Code::InvalidArgument),
        (cloud("b", "Plant 7"), Code::InvalidArgument),
        (cloud("b", "plant9"), Code::NotFound),
        (StatusRegistration { status_type: 0, ..group("b", "web") }, Code::InvalidArgument),
        (StatusRegistration { clusters: vec!["press-1".into()], ..group("b", "web") }, Code::InvalidArgument),
    ] {
        let refused = open(&stage.clients, asked.clone()).await.unwrap_err();
        assert_eq!(refused.code(), code, "{asked:?}: {refused:?}");
    }
    let end = async |clients: &Clients, id: &str| {
        let request = StatusDeregistration { client_id: id.into() };
        clients.clone().notify.status_deregister(request).await.map(drop).map_err(|status| status.code())
    };
    assert_eq!(end(&ben, "b").await, Err(Code::NotFound));
    assert_eq!(end(&ben, "a").await, Ok(()));
    let ended = loop {
        match next(&mut other).await {
            Ok(message) => assert!(message.is_some(), "a status ends the stream"),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::Cancelled);
    // The other person's stream goes on; its id is free once its client is gone.
    until_value(&mut first, StatusValue::Ready).await;
    drop(first);
    let reopened =
        async || open(&stage.clients, group("a", "web")).await.map(drop).map_err(|it| it.to_string());
    stage.system.eventually("the id is free again", reopened).await;
}
