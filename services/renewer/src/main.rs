//! The entry point of `muster-renewer`.

fn main() -> std::process::ExitCode {
    muster_renewer::app::main()
}
