//! The entry point of `muster-planner`.

fn main() -> std::process::ExitCode {
    muster_planner::app::main()
}
