//! `underlay console`

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

const AFTER_HELP: &str = "\
On a terminal it prints an address: open it in a browser within five minutes. It opens one session. Elsewhere the address goes into a \
file for you alone, whose path is printed. `underlay console --new-address` makes the next one. \
Only this host can reach it; from another one, forward the port:
    ssh -L 7100:127.0.0.1:7100 HOST
Programs of yours use its Unix socket, whose path is printed too; they may do everything:
    curl --unix-socket /run/underlay/console-7100.socket http://localhost/api/runs
Monitors send the token of --token-file as `Authorization: Bearer TOKEN`, to /api/runs, /metrics and the rest. It only reads \
(docs/console.md).";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ConsoleArguments {
    /// The directory whose runs are shown, or a run in it
    #[arg(default_value = "runs")]
    pub runs: PathBuf,
    #[command(flatten)]
    pub at: ServedAt,
    /// Where studies are edited
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub studies: PathBuf,
    /// Print a new address of the running console, and end; --listen says which if there are several
    #[arg(long)]
    pub new_address: bool,
    /// Serve a run of this process, its parent, and end with it
    #[arg(long, hide = true)]
    pub with: Option<u32>,
    /// Open on this run, which may not have begun yet
    #[arg(long, hide = true)]
    pub open: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ServedAt {
    /// Listen here; port 0 for any that is free [default: 127.0.0.1:7100, or where that is taken any free port]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// Also answer to this name of this host; may be given several times. By TLS, the first is the one in the printed
    /// address
    #[arg(long, value_name = "HOST")]
    pub name: Vec<String>,
    /// Let monitors read with the token in this file, which only you may read (mode 0600). They can see everything and
    /// change nothing
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// To listen for other hosts, TLS 1.3: the certificates, in PEM form, of the authority that signed this host's and
    /// those that browsers have to show
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub authority: Option<PathBuf>,
    /// This host's certificate in PEM form, with those between it and the authority
    #[arg(long, value_name = "FILE", requires = "key")]
    pub certificate: Option<PathBuf>,
    /// Its private key in PEM form
    #[arg(long, value_name = "FILE", requires = "authority")]
    pub key: Option<PathBuf>,
}
