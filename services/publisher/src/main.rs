//! The entry point of `muster-publisher`.

fn main() -> std::process::ExitCode {
    muster_publisher::app::main()
}
