//! Generates messages, servers and clients from schemas/proto, without a `protoc` on the machine.

use std::error::Error;
use std::path::Path;

/// The folder of the files, from this package.
const FOLDER: &str = "../../schemas/proto";
/// The files; each imports `mrds/metadata.proto` at most.
const FILES: [&str; 7] = [
    "emco/statusnotify.proto",
    "mrds/cluster.proto",
    "mrds/computecapability.proto",
    "mrds/deploymentplan.proto",
    "mrds/metainstance.proto",
    "mrds/node.proto",
    "prometheus/remote.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={FOLDER}");
    let descriptors = protox::compile(FILES, [Path::new(FOLDER)])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .include_file("services.rs")
        .compile_fds(descriptors)?;
    Ok(())
}
