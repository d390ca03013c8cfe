//! A class data sharing archive for containers: classes as Java lays them out in memory, in a file in the cache. A Java
//! process that maps it doesn't have to read, verify and link thousands of classes from jars, which is most of the CPU
//! time of a short task. It is created once per version of the library and of Java.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::NAME;
use crate::artifacts::ArtifactError;
use crate::artifacts::cache::{self, make_once};
use crate::java::{ClassPath, Java};
use crate::java_server::JavaServer;
use crate::system::{LoadProgress, SystemError, SystemResources};

const DURING: &str = "archiving its classes";
/// It took 20 to 40 s. This limit only tells a stuck process from a slow one.
const LIMIT: Duration = Duration::from_secs(900);
const HEAP_BYTES: u64 = 768 << 20;
const LIST: &str = "underlay.mapreduce.ClassList";
/// The jars, without their versions, from which an application master or a task loads more than a handful of classes.
const JARS: &[&str] = &[
    "avro",
    "commons-configuration2",
    "commons-logging",
    "commons-text",
    "guice",
    "guice-servlet",
    "hadoop-auth",
    "hadoop-common",
    "hadoop-hdfs-client",
    "hadoop-mapreduce-client-app",
    "hadoop-mapreduce-client-common",
    "hadoop-mapreduce-client-core",
    "hadoop-mapreduce-examples",
    "hadoop-shaded-guava",
    "hadoop-shaded-protobuf_3_25",
    "hadoop-yarn-api",
    "hadoop-yarn-common",
    "jackson-core",
    "jackson-databind",
    "jakarta.xml.bind-api",
    "javax.servlet-api",
    "jaxb-api",
    "jaxb-impl",
    "jaxb-runtime",
    "jersey-core",
    "jersey-server",
    "jetty-http",
    "jetty-server",
    "jetty-util",
    "jetty-webapp",
    "jsr311-api",
    "reload4j",
    "slf4j-api",
    "stax2-api",
    "woodstox-core",
];

/// An archive, and the jars with which the class path of a process that maps it must start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClassArchive {
    pub file: PathBuf,
    pub jars: ClassPath,
}

impl ClassArchive {
    /// The archive for `library`, created if it isn't in the cache. `classes` are our own, which list the classes of
    /// the jars.
    pub(super) fn find_or_create(
        java: &Java,
        library: &Path,
        classes: &Path,
        progress: &dyn Fn(&LoadProgress),
    ) -> Result<ClassArchive, SystemError> {
        let of_system = |error: ArtifactError| error.into_system_error(NAME);
        let jars = jars_of(library).map_err(ArtifactError::io("read", library)).map_err(of_system)?;
        let folder = cache::root().map_err(of_system)?.join("class-archives");
        let name = format!("{NAME}-{}.jsa", digest(java, &jars));
        let file = folder.join(&name);
        let paths: Vec<PathBuf> = jars.into_iter().map(|jar| jar.path).collect();
        let archive = ClassArchive {
            file,
            // Listed one by one, because Java compares the text of the class path with that of the archive.
            jars: paths.iter().fold(ClassPath::new(), |path, jar| path.with_classes(jar)),
        };
        let messages = [
            "waiting for another process to archive Hadoop's classes",
            "archiving Hadoop's classes, once for this version of Java",
        ];
        make_once(NAME, &folder, &name, messages, progress, |staging| {
            archive.make(java, &paths, classes, staging)
        })?;
        Ok(archive)
    }

    fn make(&self, java: &Java, jars: &[PathBuf], classes: &Path, staging: &Path) -> Result<(), SystemError> {
        let tool = |name: &str, class: &str, class_path: ClassPath| JavaServer {
            system: NAME,
            name: name.to_owned(),
            class: class.to_owned(),
            arguments: Vec::new(),
            class_path,
            heap_bytes: HEAP_BYTES,
            direct_bytes: None,
            options: Vec::new(),
            environment: Vec::new(),
            quick_start: true,
            folder: staging.to_owned(),
            namespace: None,
            own_mounts: None,
        };
        let mut list = tool("class list", LIST, ClassPath::new().with_classes(classes));
        list.arguments =
            jars.iter().filter(|jar| is_listed(jar)).map(|jar| jar.display().to_string()).collect();
        let names = list.run(java, &SystemResources::unlimited(), DURING, LIMIT)?;
        let io = |action: &'static str, path: &Path| {
            let path = path.to_owned();
            move |error: std::io::Error| ArtifactError::io(action, path)(error).into_system_error(NAME)
        };
        let (names_file, made) = (staging.join("names"), staging.join("archive.jsa"));
        std::fs::write(&names_file, names).map_err(io("write", &names_file))?;
        // With -Xshare:dump Java exits before it looks for the class.
        let mut dump = tool("class archive", LIST, self.jars.clone());
        dump.options = vec![
            "-Xshare:dump".to_owned(),
            // Verifying classes recurses deeper than servers do.
            "-Xss1m".to_owned(),
            // Suppresses thousands of lines about skipped classes.
            "-Xlog:cds=error,cds+heap=error,class+load=error".to_owned(),
            format!("-XX:SharedClassListFile={}", names_file.display()),
            format!("-XX:SharedArchiveFile={}", made.display()),
        ];
        dump.run(java, &SystemResources::unlimited(), DURING, LIMIT)?;
        File::open(&made).and_then(|file| file.sync_all()).map_err(io("write out", &made))?;
        std::fs::rename(&made, &self.file).map_err(io("make", &self.file))
    }

    /// The options that make Java map it, where `further` entries of the class path follow the jars.
    pub(super) fn options(&self, further: &[&Path]) -> Vec<String> {
        let class_path = further.iter().fold(self.jars.clone(), |path, entry| path.with_classes(*entry));
        vec![
            format!("-XX:SharedArchiveFile={}", self.file.display()),
            // Map it at the address that it was created for. At another one, Java would relocate every pointer, which
            // gives each process its own copy of all pages.
            "-XX:+UnlockDiagnosticVMOptions".to_owned(),
            "-XX:ArchiveRelocationMode=0".to_owned(),
            "-cp".to_owned(),
            class_path.to_argument().to_string_lossy().into_owned(),
        ]
    }
}

struct ArchivedJar {
    path: PathBuf,
    /// The state that Java compares before it maps the archive: size and modification time.
    state: String,
}

fn jars_of(library: &Path) -> std::io::Result<Vec<ArchivedJar>> {
    let mut jars = Vec::new();
    for file in std::fs::read_dir(library)? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "jar") {
            let data = path.metadata()?;
            jars.push(ArchivedJar { state: format!("{} {}", data.len(), data.mtime()), path });
        }
    }
    jars.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(jars)
}

fn digest(java: &Java, jars: &[ArchivedJar]) -> String {
    let program = java.program.to_string_lossy();
    let paths: Vec<_> = jars.iter().map(|jar| jar.path.to_string_lossy()).collect();
    let jars = paths.iter().zip(jars).flat_map(|(path, jar)| [&**path, jar.state.as_str()]);
    cache::digest([java.version.as_str(), &program].into_iter().chain(JARS.iter().copied()).chain(jars))
}

/// Whether the classes of a jar go into the archive: its name up to `-` and a version is one of [`JARS`].
fn is_listed(jar: &Path) -> bool {
    let Some(name) = jar.file_name().and_then(|name| name.to_str()) else { return false };
    JARS.iter().any(|listed| {
        let version = name.strip_prefix(listed).and_then(|rest| rest.strip_prefix('-'));
        version.is_some_and(|version| version.starts_with(|digit: char| digit.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jars_are_listed_by_exact_name() {
        for (jar, expected) in [
            ("guice-4.2.3.jar", true),
            ("guice-servlet-4.2.3.jar", true),
            ("guice-assistedinject-4.2.3.jar", false),
            ("hadoop-shaded-protobuf_3_25-1.4.0.jar", true),
            ("hadoop-common-3.4.2-tests.jar", true),
            ("zookeeper-3.9.3.jar", false),
        ] {
            assert_eq!(is_listed(&Path::new("/cache/hadoop").join(jar)), expected, "{jar}");
        }
    }

    #[test]
    fn archive_jars_are_locked_files() {
        let files = crate::artifacts::HADOOP.files().unwrap();
        for name in JARS {
            let is_there = files.iter().any(|file| {
                let version = file.name.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
                version.is_some_and(|version| version.starts_with(|digit: char| digit.is_ascii_digit()))
            });
            assert!(is_there, "{name}");
        }
    }

    #[test]
    fn another_library_is_another_archive() {
        let folder = tempfile::TempDir::new().unwrap();
        std::fs::write(folder.path().join("b.jar"), "1").unwrap();
        std::fs::write(folder.path().join("a.jar"), "").unwrap();
        std::fs::write(folder.path().join("a.txt"), "").unwrap();
        let java = Java { program: "java".into(), version: "17.0.1".to_owned() };
        let jars = jars_of(folder.path()).unwrap();
        assert_eq!(
            jars.iter().map(|jar| jar.path.clone()).collect::<Vec<_>>(),
            [folder.path().join("a.jar"), folder.path().join("b.jar")]
        );
        let before = digest(&java, &jars);
        assert_eq!(before, digest(&java, &jars_of(folder.path()).unwrap()));
        assert_ne!(before, digest(&Java { version: "17.0.2".to_owned(), ..java.clone() }, &jars));
        std::fs::write(folder.path().join("b.jar"), "12").unwrap();
        assert_ne!(before, digest(&java, &jars_of(folder.path()).unwrap()));
    }

    #[test]
    fn options_map_archive_and_put_jars_first() {
        let archive = ClassArchive {
            file: "/cache/class-archives/hadoop-1.jsa".into(),
            jars: ClassPath::new().with_classes("/cache/a.jar"),
        };
        let options = archive.options(&[Path::new("/run/configuration"), Path::new("/cache/jobs")]);
        assert_eq!(
            options,
            [
                "-XX:SharedArchiveFile=/cache/class-archives/hadoop-1.jsa",
                "-XX:+UnlockDiagnosticVMOptions",
                "-XX:ArchiveRelocationMode=0",
                "-cp",
                "/cache/a.jar:/run/configuration:/cache/jobs"
            ]
        );
    }
}
