fn main() -> std::process::ExitCode {
    underlay_simulate::cli::main()
}
