//! Messages, servers and clients of the gRPC services of MRDS (`proto.mrds`) and EMCO (at the top), and the messages of
//! Prometheus' remote-write (`prometheus`), generated from `schemas/proto`. It holds no logic: `muster-gateway` serves them, and
//! tests are their clients.

#![allow(missing_docs, unreachable_pub, clippy::all, reason = "generated code")]

include!(concat!(env!("OUT_DIR"), "/services.rs"));
