use std::time::{Duration, Instant};
use underlay_systems::rocksdb::Rocksdb;
use underlay_systems::system::*;
use underlay_workload::client::*;
fn main() {
    let dir = tempfile::TempDir::new_in(std::env::args().nth(1).unwrap()).unwrap();
    let prog = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("underlay-engine");
    let sys = Rocksdb::with_program(prog);
    let paths = StoragePaths { data: vec![dir.path().into()], scratch: dir.path().join("s") };
    let budget: u64 = std::env::args().nth(2).map(|v| v.parse().unwrap()).unwrap_or(64) << 20;
    let mem = Memory { budget_bytes: budget, cgroup_procs: std::env::args().nth(3).map(Into::into).into_iter().collect() };
    let set = Settings { fields: 10, field_bytes: 100, timeout: Duration::from_secs(10), ..Default::default() };
    for _ in 0..3 {
        let t = Instant::now();
        let r = sys.start(&paths, &mem, &set).unwrap();
        let a = t.elapsed();
        let t = Instant::now();
        r.stop().unwrap();
        println!("start {a:?} stop {:?}", t.elapsed());
    }
    let r = sys.start(&paths, &mem, &set).unwrap();
    let rss = |r: &dyn Running| { let t = std::fs::read_to_string(format!("/proc/{}/status", r.processes()[0])).unwrap(); t.lines().filter(|l| l.starts_with("Rss") || l.starts_with("Threads")).map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(", ") };
    println!("{}", rss(r.as_ref()));
    println!("rss empty {} MiB", r.figures().unwrap()["current_resident_bytes"] / 1048576.0);
    let mut c = r.connect().unwrap();
    let mut v = FieldValues::default();
    for f in 0..10 { v.push_zeroed(f, 100); }
    let n = budget / 1000 * 4;
    let t = Instant::now();
    for i in 0..n { c.insert(format!("user{:020}", i * 7919 % n).as_bytes(), &v).unwrap(); }
    println!("insert {:.2} us n {n}", t.elapsed().as_secs_f64() * 1e6 / n as f64);
    let t = Instant::now();
    r.settle(Duration::from_secs(60)).unwrap();
    println!("{}", rss(r.as_ref()));
    println!("settle {:?}", t.elapsed());
    for m in [1u64, 4096] {
        let t = Instant::now();
        for i in 0..100_000u64 { c.read(format!("user{:020}", i % m).as_bytes(), Fields::All, &mut v).unwrap(); }
        println!("read of {m} hot {:.2} us", t.elapsed().as_secs_f64() * 1e6 / 1e5);
    }
    std::thread::scope(|s| { let t = Instant::now(); let hs: Vec<_> = (0..16u64).map(|w| { let mut c = r.connect().unwrap(); s.spawn(move || { let mut v = FieldValues::default(); for i in 0..10_000u64 { c.read(format!("user{:020}", (i * 31 + w * 1237) * 7919 % n).as_bytes(), Fields::All, &mut v).unwrap(); } }) }).collect(); for h in hs { h.join().unwrap(); } println!("16 threads uniform {:.0}/s", 160_000.0 / t.elapsed().as_secs_f64()); });
    let f = r.figures().unwrap();
    println!("{}", rss(r.as_ref()));
    println!("cache {} mem {}", f["current_block_cache_bytes"], f["current_memtables_bytes"]);
    println!("{:?}", sys.versions());
    r.stop().unwrap();
}
