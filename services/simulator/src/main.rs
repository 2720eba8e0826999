//! The entry point of `muster-simulator`.

fn main() -> std::process::ExitCode {
    muster_simulator::app::main()
}
