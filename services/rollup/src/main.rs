//! The door of `muster-rollup`.

fn main() -> std::process::ExitCode {
    muster_rollup::app::main()
}
