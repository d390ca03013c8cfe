use underlay_storage::catalogue::{self, Medium};
use underlay_storage::predict::{self, ClosedLoop, Pattern};
use underlay_storage::stack::InitialState;
#[test]
fn cost() {
    let mut media: Vec<Medium> = ["cloud","pmem","network","measured"].iter().map(|n| Medium::parse("x", &std::fs::read_to_string(format!("tests/kinds/{n}.toml")).unwrap()).unwrap()).collect();
    for n in ["hdd-7200-sata","ssd-sata","nvme-9300-max"] { media.push(catalogue::find(n).unwrap()); }
    for m in &media { for (pattern, n) in [(Pattern::RandomRead, 100_000), (Pattern::RandomWrite, 100_000)] { for qd in [1, 32, 128] {
        let n = if m.name.contains("hdd") { n / 10 } else { n };
        let mut model = m.model(8 << 30, 1, InitialState::Fresh);
        let t = std::time::Instant::now();
        predict::closed_loop(&mut *model, &ClosedLoop { pattern, block_bytes: 4096, queue_depth: qd, requests: n, warmup: 0, seed: 1 });
        println!("{} {pattern:?} qd{qd}: {:.0} ns", m.name, t.elapsed().as_nanos() as f64 / n as f64);
    }}}
}
