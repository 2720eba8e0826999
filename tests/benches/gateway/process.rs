//! The gateway of the bench as a process: where it listens, its memory and its open streams. It says nothing about its clients.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use muster_simulator::child::{Child, Spec};
use muster_simulator::http;
use muster_tests::hostile::memory::resident_bytes;
use muster_tests::server::free_port;
use muster_tests::system::{GATEWAY, program};
use rustix::process::Pid;

/// A gateway that runs.
pub(crate) struct Gateway {
    child: Child,
    people: SocketAddr,
    metrics: SocketAddr,
}

impl Gateway {
    /// Starts one. It serves once it has read the views.
    pub(crate) fn start(nats: &str, dir: &Path) -> Self {
        let [people, metrics] = [(); 2].map(|()| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())));
        let (people_addr, metrics_addr) = (people.to_string(), metrics.to_string());
        let args = [
            "--nats-url",
            nats,
            "--insecure-http",
            "--people-addr",
            &people_addr,
            "--http-addr",
            &metrics_addr,
        ];
        let args = args.map(str::to_owned).into();
        let spec = Spec { name: GATEWAY.to_owned(), program: program(GATEWAY), args };
        Self { child: Child::start(spec, dir).unwrap(), people, metrics }
    }

    /// Where it serves people.
    pub(crate) const fn addr(&self) -> SocketAddr {
        self.people
    }

    pub(crate) fn pid(&self) -> Pid {
        self.child.pid().unwrap()
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        resident_bytes(self.pid())
    }

    /// Its open event streams.
    pub(crate) async fn open_streams(&self) -> usize {
        let answer = http::get(self.metrics, "/metrics").await.unwrap();
        http::metric(&answer.body, "muster_gateway_followers").unwrap() as usize
    }

    pub(crate) async fn end(self) {
        self.child.kill().await.unwrap();
    }
}
