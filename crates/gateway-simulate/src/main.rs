use std::process::ExitCode;

fn main() -> ExitCode {
    underlay_gateway_simulate::cli::main()
}
