//! What `check` knows of memory before anything starts.

use underlay_study::spec::Study;

fn study(memory: &str, workload: &str, data: u32) -> Result<Study, String> {
    let text = format!(
        "name = \"java\"\n[system.cassandra]\n{memory}\n[storage.hdd]\ndevices = [{{ medium = \"hdd-7200-sata\" }}]\n\
         [workload.w]\ndata = \"900 GB\"\nmixes = [\"a\"]\n{workload}\n[scale]\ndata = {data}\n"
    );
    Study::parse("java.toml", &text, false).map_err(|mistakes| mistakes.to_string())
}

#[test]
fn scaled_budget_too_small_for_java_is_refused() {
    let mistakes = study("memory = \"96 GB\"", "threads = 8", 1000).unwrap_err();
    assert!(mistakes.contains("would not run in 96 MB"), "{mistakes}");
    assert!(
        mistakes.contains("expected at least 512 MiB") && mistakes.contains("`fixed_memory`"),
        "{mistakes}"
    );
    let sound = study("memory = \"96 GB\"\nfixed_memory = \"1 GB\"", "threads = 8", 1000).unwrap();
    let [(system, plan)] = &sound.memory_here()[..] else { panic!("one system") };
    assert_eq!((system.name.as_str(), plan.processes.len()), ("cassandra", 1));
    assert_eq!(plan.budget_bytes, 1_096_000_000);
    assert!(plan.page_cache_bytes() > 300 << 20, "{plan:?}");
}

#[test]
fn requests_beyond_heap_are_refused() {
    let memory = "memory = \"96 GB\"\nfixed_memory = \"600 MB\"";
    assert!(study(memory, "threads = 85", 1000).is_ok());
    let large = "threads = 85\nrecord = { fields = 1, bytes = 1_000_000 }";
    let mistakes = study(memory, large, 1000).unwrap_err();
    assert!(mistakes.contains("85 clients") && mistakes.contains("heap"), "{mistakes}");
}

/// Of 2 GB of memory Java takes a part, and the data are no smaller than what it leaves.
#[test]
fn data_fit_in_memory_that_can_hold_them() {
    let notes = |data: &str| {
        let text = format!(
            "name = \"java\"\n[system.cassandra]\nmemory = \"2 GB\"\n[storage.hdd]\ndevices = [{{ medium = \"hdd-7200-sata\" }}]\n\
             [workload.w]\ndata = \"{data}\"\nmixes = [\"a\"]\nthreads = 8\n"
        );
        Study::parse("java.toml", &text, false).unwrap_or_else(|mistakes| panic!("{mistakes}"))
    };
    let fits =
        |data: &str| notes(data).notes.to_string().contains("fits in the memory of [system.cassandra]");
    let sound = notes("16 GB");
    let [(_, plan)] = &sound.memory_here()[..] else { panic!("one system") };
    assert!(plan.cache_bytes() < 1_900_000_000, "{plan:?}");
    assert!(!fits("1.9 GB"), "less than the memory, and more than what can hold it: {plan:?}");
    assert!(fits("200 MB"), "{plan:?}");
}

#[test]
fn batch_systems_tell_their_memory_before_they_start() {
    let text = "name = \"jobs\"\n[system.hadoop]\nmemory = \"48 GB\"\ncontainers = 4\n[storage.hdd]\n\
                devices = [{ medium = \"hdd-7200-sata\" }]\n[workload.jobs]\nkind = \"jobs\"\njobs = [\"teragen\"]\ndata = { others = \"40 GB\" }\n\
                [scale]\ndata = 20\n";
    let study = Study::parse("jobs.toml", text, false).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let [(_, plan)] = &study.memory_here()[..] else { panic!("one system") };
    assert_eq!(plan.budget_bytes, 2_400_000_000);
    let tasks = plan.processes.iter().find(|one| one.what == "task").unwrap();
    assert_eq!(tasks.count, 4);
    assert!(plan.page_cache_bytes() >= 128 << 20, "{plan:?}");
    assert!(!study.notes.to_string().contains("to cache records in"), "{}", study.notes);
}

#[test]
fn heap_taking_page_cache_is_noted() {
    // A hundredth of 96 GB: the heap and what Java needs leave 0.4 GB for pages of files, and the model has 0.85 GB.
    let notes = study("memory = \"96 GB\"", "threads = 8", 100).unwrap().notes.to_string();
    assert!(notes.contains("to cache records in") && notes.contains("fixed_memory ="), "{notes}");
    let notes =
        study("memory = \"96 GB\"\nfixed_memory = \"700 MB\"", "threads = 8", 100).unwrap().notes.to_string();
    assert!(!notes.contains("to cache records in"), "{notes}");
    assert!(!study("memory = \"96 GB\"", "threads = 8", 1).unwrap().notes.to_string().contains("to cache"));
}
