use underlay_record::LiveFigure;

use super::*;

fn history(samples: impl IntoIterator<Item = LiveSample>) -> RunHistory {
    let mut history = RunHistory::default();
    for (second, sample) in (0..).zip(samples) {
        history.add(1e9 + f64::from(second), sample, 100);
    }
    history
}

#[test]
fn hit_rate_covers_last_interval() {
    let sample_with = |hits: f64, misses: f64| {
        let figures = [("read_hits".to_owned(), hits), ("read_misses".to_owned(), misses)].into();
        let layer = LayerActivity { name: "cache.0".to_owned(), figures, ..LayerActivity::default() };
        LiveSample { layers: vec![layer], ..LiveSample::default() }
    };
    let found = history([
        sample_with(10.0, 10.0),
        sample_with(40.0, 20.0),
        sample_with(40.0, 20.0),
        sample_with(0.0, 0.0),
        sample_with(1.0, 0.0),
    ]);
    let ChartLines { lines, .. } = hit_rates(&ShownMoments::from_moments(found.moments()).all);
    let shares: Vec<f64> = lines[0].points().map(|point| point.1).collect();
    assert_eq!(shares, [0.75, 1.0]);
}

#[test]
fn lines_end_with_cell_and_skip_unmeasured_moments() {
    let sample = |position: u32, phase: &str, iops: f64| LiveSample {
        position: Some(position),
        phase: phase.to_owned(),
        preparing: phase == "filling caches",
        devices: vec![LiveDevice { id: DeviceId::new("hdd.0"), read_iops: iops, ..LiveDevice::default() }],
        ..LiveSample::default()
    };
    let mut seen = RunHistory::default();
    for (at_s, sample) in [
        (0.0, sample(0, "filling caches", 90_000.0)),
        (1.0, sample(0, "filling caches", 90_000.0)),
        (2.0, sample(0, "measuring", 110.0)),
        (3.0, sample(0, "measuring", 120.0)),
        (4.0, sample(1, "filling caches", 80_000.0)),
        (5.0, sample(1, "measuring", 115.0)),
        // The run was suspended.
        (500.0, sample(1, "measuring", 116.0)),
        (501.0, sample(1, "measuring", 117.0)),
    ] {
        seen.add(at_s, sample, 1);
    }
    let chart = CHARTS.iter().find(|chart| chart.id == "iops").unwrap();
    let shown = ShownMoments::from_moments(seen.moments());
    let ChartLines { lines, .. } = (chart.lines)(shown.select_for_chart(chart));
    let parts: Vec<Vec<f64>> =
        lines[0].parts.iter().map(|part| part.iter().map(|point| point.1).collect()).collect();
    assert_eq!(parts, [vec![110.0, 120.0], vec![115.0], vec![116.0, 117.0]]);
    let shades: Vec<(f64, f64)> =
        shades(seen.moments()).iter().map(|shade| (shade.from_s, shade.to_s)).collect();
    assert_eq!(shades, [(-1.0, 2.0), (3.0, 5.0)]);
    // Thinned, nothing is a mean over two of them.
    assert!(thinned(&lines)[0].points().all(|point| (110.0..=120.0).contains(&point.1)));
}

#[test]
fn unlike_gauges_share_no_axis() {
    let line = |name: &str, high: f64| TimeLine {
        name: name.to_owned(),
        parts: vec![vec![(0.0, high)]],
        ..TimeLine::default()
    };
    let groups = group_by_size(vec![
        line("masters", 1.0),
        line("replica lag entries", 80_000.0),
        line("compactions running", 2.0),
        line("flushes running", 1.0),
    ]);
    let names: Vec<Vec<&str>> =
        groups.iter().map(|lines| lines.iter().map(|line| line.name.as_str()).collect()).collect();
    let expected: [&[&str]; 3] =
        [&["replica lag entries"], &["compactions running", "flushes running"], &["masters"]];
    assert_eq!(names, expected);
}

#[test]
fn command_progress_is_drawn_by_figure_and_unit() {
    let sample_with = |unit: &str, value: f64| LiveSample {
        figure: Some(LiveFigure { name: "throughput".to_owned(), unit: unit.to_owned(), value }),
        ..LiveSample::default()
    };
    let seen = history([sample_with("tps", 5.0), sample_with("tps", 6.0), sample_with("ms", 700.0)]);
    let ChartLines { lines, .. } = printed(&ShownMoments::from_moments(seen.moments()).all);
    let names: Vec<(&str, usize)> =
        lines.iter().map(|line| (line.name.as_str(), line.points().count())).collect();
    assert_eq!(names, [("throughput, tps", 2), ("throughput, ms", 1)]);
    assert_eq!(group_by_size(lines).len(), 2);
}

#[test]
fn busiest_of_many_devices_are_drawn() {
    let device = |index: u32| LiveDevice {
        id: DeviceId::new(format!("d{index}")),
        read_iops: f64::from(index),
        ..LiveDevice::default()
    };
    let sample = LiveSample { devices: (0..20).map(device).collect(), ..LiveSample::default() };
    let seen = history([sample]);
    let all = ShownMoments::from_moments(seen.moments()).all;
    let ChartLines { lines, left_out } = build_device_lines(&all, |device| Some(device.read_iops));
    let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
    assert_eq!((lines.len(), names[0], names[6]), (MAX_LINES, "d19", "d13"));
    assert_eq!(left_out, 13);
    // The chart says so.
    let chart = CHARTS.iter().find(|chart| chart.id == "iops").unwrap();
    let drawn = draw(chart, ChartLines { lines, left_out }, &[], &[], (1e9, 1e9 + 20.0)).into_string();
    assert!(drawn.contains("Not drawn: 13 further lines."), "{drawn}");
}

#[test]
fn chart_with_too_many_groups_counts_rest() {
    let line = |power: i32| TimeLine {
        name: format!("gauge {power}"),
        parts: vec![vec![(1e9, 100_f64.powi(power)), (1e9 + 1.0, 100_f64.powi(power))]],
        ..TimeLine::default()
    };
    let chart = CHARTS.iter().find(|chart| chart.is_mixed).unwrap();
    let lines: ChartLines = (0..5).map(line).collect::<Vec<_>>().into();
    let drawn = draw(chart, lines, &[], &[], (1e9, 1e9 + 20.0)).into_string();
    assert_eq!(drawn.matches(r#"<svg class="chart" "#).count(), MAX_GROUPS, "{drawn}");
    assert!(drawn.contains("Not drawn: 2 further lines."), "{drawn}");
    let shown = table(
        quantity::rate,
        &[TimeLine {
            parts: vec![(0..15).map(|second| (1e9 + f64::from(second), 1.0)).collect()],
            ..TimeLine::default()
        }],
    )
    .into_string();
    assert!(shown.contains("Not shown: 3 earlier times."), "{shown}");
}
