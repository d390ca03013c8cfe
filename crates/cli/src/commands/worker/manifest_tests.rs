//! The manifests that are shipped, held against the program and against one another.

use std::path::{Path, PathBuf};

use clap::Parser as _;
use underlay_hosts::{HostAddress, SharedToken};
use yaml_rust2::{Yaml, YamlLoader};

use crate::arguments::{CliArguments, CliCommand, WorkerArguments, YcsbArguments};
use crate::commands::ycsb::words::translated;

fn manifest(name: &str) -> Vec<Yaml> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes").join(name);
    let text = std::fs::read_to_string(file).unwrap();
    YamlLoader::load_from_str(&text).unwrap()
}

fn find_kind<'a>(documents: &'a [Yaml], kind: &str) -> &'a Yaml {
    let found: Vec<&Yaml> = documents.iter().filter(|one| one["kind"].as_str() == Some(kind)).collect();
    assert_eq!(found.len(), 1, "{kind}");
    found[0]
}

/// The one container of a Job.
fn container(job: &Yaml) -> &Yaml {
    let containers = job["spec"]["template"]["spec"]["containers"].as_vec().unwrap();
    assert_eq!(containers.len(), 1);
    &containers[0]
}

/// The program's reading of a container's arguments.
fn command(job: &Yaml) -> CliCommand {
    let words = container(job)["args"].as_vec().unwrap().iter().map(|word| {
        // A number or a truth would be refused as an argument by Kubernetes.
        word.as_str().unwrap_or_else(|| panic!("{word:?} is no text")).into()
    });
    let all = std::iter::once("underlay".into()).chain(words);
    CliArguments::try_parse_from(translated(all)).unwrap_or_else(|error| panic!("{error}")).command
}

fn workers() -> (Vec<Yaml>, WorkerArguments) {
    let documents = manifest("workers.yaml");
    match command(find_kind(&documents, "Job")) {
        CliCommand::Worker(arguments) => (documents, arguments),
        other => panic!("{other:?}"),
    }
}

fn run() -> (Vec<Yaml>, YcsbArguments) {
    let documents = manifest("run.yaml");
    match command(find_kind(&documents, "Job")) {
        CliCommand::Ycsb(arguments) => (documents, arguments),
        other => panic!("{other:?}"),
    }
}

/// The mounts of a container: where, and the volume there.
fn mounts(job: &Yaml) -> Vec<(PathBuf, &Yaml)> {
    let volumes = job["spec"]["template"]["spec"]["volumes"].as_vec().unwrap();
    let mounts = container(job)["volumeMounts"].as_vec().unwrap().iter();
    mounts
        .map(|mount| {
            let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
            (PathBuf::from(mount["mountPath"].as_str().unwrap()), volume)
        })
        .collect()
}

#[test]
fn worker_listens_on_service_port() {
    let (documents, arguments) = workers();
    let (job, service) = (find_kind(&documents, "Job"), find_kind(&documents, "Service"));
    let listen = arguments.listen.unwrap();
    let (address, port) = listen.rsplit_once(':').unwrap();
    let port: i64 = port.parse().unwrap();
    assert_eq!(address, "0.0.0.0");
    assert_eq!(container(job)["ports"][0]["containerPort"].as_i64(), Some(port));
    assert_eq!(service["spec"]["ports"][0]["port"].as_i64(), Some(port));
    let template = &job["spec"]["template"];
    let chosen = service["spec"]["selector"].as_hash().unwrap();
    assert!(
        chosen
            .iter()
            .all(|(key, value)| template["metadata"]["labels"].as_hash().unwrap().get(key) == Some(value))
    );
    // Without a cluster address the service is nothing but names, and the pods have theirs in it.
    assert_eq!(service["spec"]["clusterIP"].as_str(), Some("None"));
    assert_eq!(template["spec"]["subdomain"], service["metadata"]["name"]);
    assert_eq!(job["spec"]["completionMode"].as_str(), Some("Indexed"));
    assert_eq!(job["spec"]["completions"], job["spec"]["parallelism"]);
    // A Job that nobody ends would hold its nodes forever.
    assert!(arguments.end_when_idle.unwrap() > 0.0);
}

#[test]
fn run_names_all_workers() {
    let (documents, _) = workers();
    let job = find_kind(&documents, "Job");
    let (_, arguments) = run();
    let port = container(job)["ports"][0]["containerPort"].as_i64().unwrap();
    let (name, domain) = (&job["metadata"]["name"], &job["spec"]["template"]["spec"]["subdomain"]);
    let expected: Vec<String> = (0..job["spec"]["completions"].as_i64().unwrap())
        .map(|index| format!("{}-{index}.{}:{port}", name.as_str().unwrap(), domain.as_str().unwrap()))
        .collect();
    assert_eq!(arguments.from.workers, expected);
    for worker in &arguments.from.workers {
        HostAddress::parse(worker, "underlay").unwrap();
    }
    let threads = arguments.threads.unwrap() as usize;
    assert!(threads >= expected.len());
    assert!(underlay_systems::find(&arguments.system).is_some());
    assert_eq!(super::shared::check(&arguments.system, &std::collections::BTreeMap::new()), Ok(()));
}

#[test]
fn token_comes_from_a_secret() {
    let (documents, worker) = workers();
    let (run_documents, run) = run();
    let secret = find_kind(&documents, "Secret");
    let token = secret["stringData"]["token"].as_str().unwrap();
    assert!(SharedToken::new(token).is_err(), "a token that everybody knows is none");
    let files = [worker.trust.token_file.unwrap(), run.from.trust.token_file.unwrap()];
    let jobs = [find_kind(&documents, "Job"), find_kind(&run_documents, "Job")];
    for (file, job) in files.iter().zip(jobs) {
        let mounts = mounts(job);
        let (_, volume) = mounts.iter().find(|(path, _)| Some(path.as_path()) == file.parent()).unwrap();
        assert_eq!(volume["secret"]["secretName"], secret["metadata"]["name"]);
        assert!(secret["stringData"][file.file_name().unwrap().to_str().unwrap()].as_str().is_some());
        let mode = volume["secret"]["defaultMode"].as_i64().unwrap();
        assert_eq!(mode & 0o007, 0, "the program refuses a token that everybody can read");
        assert_ne!(mode & 0o040, 0, "fsGroup reads it by the group");
    }
}

#[test]
fn containers_may_do_no_more_than_they_need() {
    for documents in [workers().0, run().0] {
        let job = find_kind(&documents, "Job");
        let pod = &job["spec"]["template"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"].as_bool(), Some(false));
        let context = &pod["securityContext"];
        assert_eq!(context["runAsNonRoot"].as_bool(), Some(true));
        assert!(context["runAsUser"].as_i64().unwrap() > 0);
        assert_eq!(context["fsGroup"], context["runAsGroup"]);
        assert_eq!(context["seccompProfile"]["type"].as_str(), Some("RuntimeDefault"));
        let container = container(job);
        // All sides have to be of one version, and the documentation builds this one.
        assert_eq!(container["image"].as_str(), Some(concat!("underlay:", env!("CARGO_PKG_VERSION"))));
        let context = &container["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"].as_bool(), Some(false));
        assert_eq!(context["readOnlyRootFilesystem"].as_bool(), Some(true));
        assert_eq!(context["capabilities"]["drop"][0].as_str(), Some("ALL"));
        for resource in ["cpu", "memory"] {
            for bound in ["requests", "limits"] {
                assert!(container["resources"][bound][resource].as_str().is_some(), "{bound} {resource}");
            }
        }
        // It writes only to a volume.
        let runtime = &container["env"][0];
        assert_eq!(runtime["name"].as_str(), Some(underlay_attach::registry::RUNTIME_DIR_VARIABLE));
        let mounts = mounts(job);
        for written in [runtime["value"].as_str().unwrap(), "/tmp"] {
            let is_there = |(path, volume): &(PathBuf, &Yaml)| {
                Path::new(written).starts_with(path) && !volume["emptyDir"].is_badvalue()
            };
            assert!(mounts.iter().any(is_there), "{written}");
        }
    }
}
