//! The entry point of `muster-gateway`.

fn main() -> std::process::ExitCode {
    muster_gateway::app::main()
}
