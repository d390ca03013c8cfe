//! Plays the loads under which drives were measured against their models, in virtual time, and prints each figure.
//!
//! `measured_drives [--seconds S] [--brief | --json] [MEDIUM[=MODEL]]..`: a medium is a name of the catalogue or a
//! file; `MODEL` is another medium that is to answer in its place. Without one, all measured media of the catalogue are
//! played. `--json` prints an object for each figure that is judged, one a line.

use std::error::Error;

use underlay_storage::catalogue::{self, CatalogueMedium, LoadMeasurement};
use underlay_storage::predict::paced::{LoadFigure, compare_measured};

/// What is printed: every figure, those that are off, or lines of JSON.
#[derive(Clone, Copy, PartialEq)]
enum OutputForm {
    Whole,
    Brief,
    Json,
}

/// Figures within tolerance, and all that are judged.
#[derive(Clone, Copy, Default)]
struct FigureCount {
    within: usize,
    judged: usize,
}

impl FigureCount {
    fn add(&mut self, is_within: bool) {
        self.within += usize::from(is_within);
        self.judged += 1;
    }
}

fn medium(name: &str) -> Result<CatalogueMedium, Box<dyn Error>> {
    if name.ends_with(".toml") {
        return Ok(CatalogueMedium::parse(name, &std::fs::read_to_string(name)?)?);
    }
    Ok(catalogue::find(name)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut seconds, mut form, mut names) = (20.0, OutputForm::Whole, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seconds" => seconds = arguments.next().ok_or("--seconds needs a number")?.parse()?,
            "--brief" => form = OutputForm::Brief,
            "--json" => form = OutputForm::Json,
            _ => names.push(argument),
        }
    }
    if names.is_empty() {
        let media = catalogue::builtin().iter().filter(|medium| !medium.measured.is_empty());
        names = media.map(|medium| medium.name.clone()).collect();
    }
    // Latencies of fitted and of held-out rows, then rates.
    let mut totals = [FigureCount::default(); 3];
    for name in &names {
        let (measured, model) = name.split_once('=').unwrap_or((name, name));
        let (measured, model) = (medium(measured)?, medium(model)?);
        let mut counts = [FigureCount::default(); 3];
        for row in &measured.measured {
            let offered = row.offered_per_s();
            let role = if row.held_out { "held out" } else { "fitted" };
            let state = if row.is_saturated() { ", saturated" } else { "" };
            if form != OutputForm::Json {
                println!("{} by {}, {offered} offered, {role}{state}", measured.name, model.name);
            }
            for figure in compare_measured(&model, row, seconds, 1) {
                let is_within = figure.is_within();
                if let Some(is_within) = is_within {
                    let place = if figure.name == "writes/s" { 2 } else { usize::from(row.held_out) };
                    counts[place].add(is_within);
                    totals[place].add(is_within);
                }
                match form {
                    OutputForm::Json if is_within.is_some() => {
                        println!("{}", to_json(&measured, &model, row, &figure));
                    }
                    OutputForm::Whole => print_figure(&figure),
                    OutputForm::Brief if is_within == Some(false) => print_figure(&figure),
                    OutputForm::Brief | OutputForm::Json => {}
                }
            }
        }
        if form != OutputForm::Json {
            print_counts(&format!("{} by {}", measured.name, model.name), counts);
        }
    }
    if form != OutputForm::Json {
        print_counts("all", totals);
    }
    Ok(())
}

fn to_json(
    measured: &CatalogueMedium,
    model: &CatalogueMedium,
    row: &LoadMeasurement,
    figure: &LoadFigure,
) -> serde_json::Value {
    serde_json::json!({
        "medium": measured.name, "model": model.name, "offered_per_s": row.offered_per_s(),
        "held_out": row.held_out, "saturated": row.is_saturated(), "figure": figure.name,
        "measured": figure.measured, "modelled": figure.modelled, "ratio": figure.ratio(),
        "within": figure.is_within(),
    })
}

fn print_figure(figure: &LoadFigure) {
    let verdict = match figure.is_within() {
        Some(true) => "within",
        Some(false) => "OFF",
        None => "",
    };
    println!(
        "  {:12} {:10.0} measured {:10.1} modelled {:6.2} {verdict}",
        figure.name,
        figure.measured,
        figure.modelled,
        figure.ratio()
    );
}

fn print_counts(title: &str, [fitted, held_out, rates]: [FigureCount; 3]) {
    println!(
        "{title}: latencies within tolerance {} of {} ({} of {} fitted, {} of {} held out), rates {} of {}",
        fitted.within + held_out.within,
        fitted.judged + held_out.judged,
        fitted.within,
        fitted.judged,
        held_out.within,
        held_out.judged,
        rates.within,
        rates.judged
    );
}
