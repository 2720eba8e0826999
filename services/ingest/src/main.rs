//! The door of `muster-ingest`.

fn main() -> std::process::ExitCode {
    muster_ingest::app::main()
}
