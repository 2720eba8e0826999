//! Attacks on the gRPC listener: certificates of others, roles that may not, names in messages, large messages, other protocols.

use std::net::SocketAddr;

use muster_identity::{Role, creds, jwt};
use muster_proto::proto::mrds::ledger::cluster::{
    Cluster, CreateClusterRequest, DeleteClusterRequest, ListClusterRequest,
};
use muster_proto::proto::mrds::ledger::metainstance::UpdateOperationStatusRequest;
use muster_proto::proto::mrds::ledger::node::ListNodeRequest;
use muster_tests::rollouts::PLANNER;
use muster_tests::server::free_port;
use muster_tests::wait::until;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::{Code, Request, Status};

use super::grpc::{REVOKED, Stage};
use super::grpc_client::{Authority, Clients, DOMAIN, person};
use super::login::{KEY, LoginStage};

/// A name that is longer than a message may be.
const TOO_LONG: usize = 2 * 1024 * 1024;

async fn list(clients: &Clients) -> Result<Vec<Cluster>, Status> {
    let listed = clients.clone().clusters.list(ListClusterRequest::default()).await?;
    Ok(listed.into_inner().records)
}

fn create(name: &str) -> CreateClusterRequest {
    CreateClusterRequest { name: name.into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_an_accepted_certificate_learns_nothing_over_grpc() {
    let stage = Stage::start(&[]).await;
    let (own, addr) = (&stage.authority, stage.addr);
    let foreign = Authority::create(stage.system.dir(), "foreign");
    let anna = person("operator", "anna");
    own.sign("device", &["spiffe://example.org/margo/wfm/main/client/press-1"], &[], 20);
    own.sign("domain", &["spiffe://example.com/muster/operator/anna"], &[], 21);
    own.sign("two", &[&anna, &person("viewer", "ben")], &[], 22);
    own.sign("service", &[&person("planner", "anna")], &[], 23);
    own.sign("unnamed", &[], &["localhost"], 24);
    own.sign("revoked", &[&anna], &[], REVOKED);
    foreign.sign("anna", &[&anna], &[], 7);
    for file in ["device", "domain", "two", "service", "unnamed"] {
        let refused = list(&Clients::of(own.channel(addr, own, Some(file)))).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated, "{file}: {refused:?}");
        assert!(refused.message().contains(&format!("spiffe://{DOMAIN}/muster/ROLE/NAME")), "{refused:?}");
    }
    for (what, channel) in [
        ("no certificate", own.channel(addr, own, None)),
        ("a foreign authority", foreign.channel(addr, own, Some("anna"))),
        ("a revoked certificate", own.channel(addr, own, Some("revoked"))),
    ] {
        let refused = list(&Clients::of(channel)).await.unwrap_err();
        assert_ne!(refused.code(), Code::Unauthenticated, "{what}: the handshake refuses it");
    }
    // Neither plain text nor HTTP/1.1 gets an answer.
    let mut plain = TcpStream::connect(addr).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    assert!(list(&stage.clients).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn over_grpc_no_role_exceeds_its_rights_and_no_field_names_the_caller() {
    let stage = Stage::start(&[]).await;
    let own = &stage.authority;
    for role in ["viewer", "subscriber", "approver"] {
        own.sign(role, &[&person(role, "ben")], &[], 30);
        let clients = Clients::of(own.channel(stage.addr, own, Some(role)));
        assert!(list(&clients).await.is_ok(), "{role} reads");
        let mut request = Request::new(create("north"));
        for (name, value) in
            [("authorization", "Bearer anna"), ("muster-on-behalf-of", "anna"), ("x-role", "operator")]
        {
            request.metadata_mut().insert(name, value.parse().unwrap());
        }
        let refused = clients.clone().clusters.create(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{role}: {refused:?}");
        assert!(refused.message().contains("needs the role operator"), "{refused:?}");
        let refused = clients.clone().clusters.delete(DeleteClusterRequest::default()).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{role}: {refused:?}");
        let verdict = UpdateOperationStatusRequest::default();
        let refused = clients.clone().instances.update_operation_status(verdict).await.unwrap_err();
        let expected = if role == "approver" { Code::InvalidArgument } else { Code::PermissionDenied };
        assert_eq!(refused.code(), expected, "{role}: {refused:?}");
    }
    assert!(list(&stage.clients).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_message_over_grpc_is_refused_and_later_calls_are_answered() {
    let stage = Stage::start(&[]).await;
    let mut clients = stage.clients.clone();
    let refused = clients.clusters.create(create(&"a".repeat(TOO_LONG))).await.unwrap_err();
    assert!(matches!(refused.code(), Code::OutOfRange | Code::ResourceExhausted), "{refused:?}");
    let many: Vec<String> = (0..1_000).map(|at| format!("a{at}")).collect();
    let asked = ListNodeRequest { payload_name_in: many, ..ListNodeRequest::default() };
    assert!(clients.nodes.list(asked).await.unwrap().into_inner().records.is_empty());
    let calls = (0..200).map(|_| {
        let clients = stage.clients.clone();
        tokio::spawn(async move { list(&clients).await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_over_grpc_names_the_person_of_the_certificate_and_the_gateway() {
    let mut stage = LoginStage::start().await;
    let scheduler = stage.hub.creds(Role::Scheduler).display().to_string();
    stage.spawn(Role::Planner, PLANNER, &["--plans-creds", &scheduler]);
    let authority = Authority::create(stage.hub.dir(), "authority");
    authority.sign("anna", &[&person("operator", "anna")], &[], 7);
    authority.sign("ben", &[&person("viewer", "ben")], &[], 8);
    let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let settings = authority.settings(addr);
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    stage.start_gateway_with(KEY, &settings).await;
    let anna = Clients::of(authority.channel(addr, &authority, Some("anna")));
    let ben = Clients::of(authority.channel(addr, &authority, Some("ben")));
    let made = async || anna.clone().clusters.create(create("north")).await.map_err(|status| status.code());
    let is_made = |made: &Result<_, Code>| matches!(made, Ok(_) | Err(Code::AlreadyExists));
    let _made = until("the planner makes a cluster", made, is_made).await;
    assert_eq!(list(&ben).await.unwrap().len(), 1, "a viewer reads");
    let refused = ben.clone().clusters.create(create("south")).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);

    let text = std::fs::read_to_string(stage.hub.creds(Role::Gateway)).unwrap();
    let gateway = jwt::read(creds::token(&text).unwrap()).unwrap().sub;
    let operator =
        muster_bus::Bus::connect(stage.hub.config(Role::Operator), &Default::default()).await.unwrap();
    let question = json!({ "kind": "cluster" }).to_string();
    let answer = operator.request(
        "muster.planner.inventory-list",
        question.into(),
        std::time::Duration::from_secs(10),
    );
    let answer: Value = serde_json::from_slice(&answer.await.unwrap()).unwrap();
    let by = &answer["clusters"][0]["change"]["by"];
    assert_eq!((&by["key"], &by["role"]), (&json!(gateway), &json!("gateway")), "{answer}");
    assert_eq!((&by["onBehalfOf"]["name"], &by["onBehalfOf"]["role"]), (&json!("anna"), &json!("operator")));
    assert!(by["onBehalfOf"]["key"].as_str().unwrap().starts_with("x509:"), "{answer}");
}
