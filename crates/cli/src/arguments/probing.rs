//! `underlay media measure`, `verify` and `serve`

use std::path::PathBuf;

use clap::Args;
use underlay_config::units;

const MEASURE_HELP: &str = "\
Examples:
    underlay media measure /mnt/data -o our-disk.toml
    underlay media measure /dev/sdb -o sdb.toml              only reads: nothing on it is touched
    underlay media measure /dev/sdb -o sdb.toml --destroy    writes too: everything on it is gone";

#[derive(Debug, Args)]
#[command(after_help = MEASURE_HELP)]
pub(crate) struct MeasureArguments {
    /// A directory on the disk (a test file is made there and removed), a block device, or a file
    pub path: PathBuf,
    /// Write the medium to this file, and every point that was measured beside it
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
    /// Its name in studies [default: the name of the output file]
    #[arg(long)]
    pub name: Option<String>,
    /// The price of one such device, in dollars
    #[arg(long, value_name = "USD", value_parser = units::parse_dollars)]
    pub price: Option<f64>,
    /// Size of the test file, or of the part of a device to probe [default: 4 GiB at most, or all of it]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    /// At most this long, as in "2 min"; more than about 10 min is not used [default: 3 min, with --quick 40 s]
    #[arg(long, value_name = "DURATION")]
    pub time: Option<String>,
    /// Fewer points
    #[arg(long)]
    pub quick: bool,
    /// Overwrite the device or file, to measure writes
    #[arg(long)]
    pub destroy: bool,
    /// The device is a modelled one that runs this many times slower; its times are divided by this
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, hide = true)]
    pub dilation: f64,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArguments {
    /// A medium of the catalogue, or a medium's file
    #[arg(value_name = "MEDIUM")]
    pub medium: String,
    /// Slow motion [default: as slow as this machine needs to keep up]
    #[arg(long, value_name = "FACTOR", value_parser = units::parse_factor)]
    pub time: Option<f64>,
    /// In virtual time only: the model against its published figures, without a device
    #[arg(long = "virtual", conflicts_with = "time")]
    pub is_virtual: bool,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// A medium of the catalogue, or a medium's file
    #[arg(value_name = "MEDIUM")]
    pub medium: String,
    /// The size of the device
    #[arg(long, value_name = "SIZE", default_value = "2 GiB")]
    pub size: String,
    /// Slow motion [default: as slow as this machine needs to keep up]
    #[arg(long, value_name = "FACTOR", value_parser = units::parse_factor)]
    pub time: Option<f64>,
}
