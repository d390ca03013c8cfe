use std::process::ExitCode;

fn main() -> ExitCode {
    underlay_gateway::main()
}
