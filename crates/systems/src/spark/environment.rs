//! The Python that jobs run on: a virtual environment in the cache, with PySpark and what else they import, each of a
//! version and a SHA-256 that this program names.
//!
//! pip runs with our rights: unlike Maven it brings no code of its own along, and it runs none of a package before it
//! has checked the hash.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::NAME;
use super::version::{SparkVersion, VERSIONS};
use crate::artifacts::cache::{self, digest, make_once};
use crate::child::ChildProcess;
use crate::program::on_path;
use crate::setting::SettingKind as _;
use crate::system::{LoadProgress, SystemError, SystemResources};

/// Pip's build tools for PySpark, and then everything else.
const BUILD_TOOLS: &str = include_str!("requirements-build.txt");
const VARIABLE: &str = "UNDERLAY_PYTHON";
const ASK: &str = "import sys, venv, ensurepip; print('%d %d %s' % (*sys.version_info[:2], sys.executable))";
const LIMIT: Duration = Duration::from_secs(1800);
/// By these pip would install elsewhere, or nothing.
const OTHER_PLACES: [&str; 5] = ["PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_DRY_RUN"];
/// Variables that users may have set for Python and for other installations of Spark. From `AWS_` Spark would take a
/// session's token, and send it to the study's store.
const PREFIXES: [&str; 6] = ["PYTHON", "PYSPARK_", "SPARK_", "HADOOP_", "YARN_", "AWS_"];

/// An environment that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PythonEnvironment {
    pub python: PathBuf,
    /// PySpark's own folder, which is a `SPARK_HOME`.
    pub spark_home: PathBuf,
    /// Of the Python: `3.11`
    pub version: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PythonProgram {
    program: PathBuf,
    version: (u32, u32),
}

/// The environment of `spark`, which is installed if it isn't there.
///
/// # Errors
/// When there is no Python of a version that fits, or pip can't get the packages.
pub(super) fn environment(
    spark: SparkVersion,
    progress: &dyn Fn(&LoadProgress),
) -> Result<PythonEnvironment, SystemError> {
    let cache = cache::root().map_err(|error| error.into_system_error(NAME))?;
    environment_in(&cache, (spark, &find_python(spark)?), progress)
}

/// The folders of jars in which a session of this version of Spark, as studies name it, has Hadoop's client and S3A.
///
/// # Errors
/// When there is no such version, or what it needs is missing and can't be fetched.
pub fn s3a_class_path(version: &str) -> Result<[PathBuf; 2], SystemError> {
    let version = VERSIONS.read(version).map_err(|problem| SystemError::Setting {
        system: NAME,
        key: "version".to_owned(),
        problem,
    })?;
    let own = environment(version, &|_| {})?.spark_home.join("jars");
    let library = version.jars().directory(&|_| {}).map_err(|error| error.into_system_error(NAME))?;
    Ok([own, library])
}

fn environment_in(
    cache: &Path,
    (spark, python): (SparkVersion, &PythonProgram),
    progress: &dyn Fn(&LoadProgress),
) -> Result<PythonEnvironment, SystemError> {
    let version = format!("{}.{}", python.version.0, python.version.1);
    let program = python.program.display().to_string();
    let name =
        format!("pyspark-{}", digest([BUILD_TOOLS, spark.packages(), version.as_str(), program.as_str()]));
    let folder = cache.join("python");
    let directory = folder.join(&name);
    let waiting = "waiting for another process that installs PySpark";
    let installing = format!("installing PySpark {} and its dependencies", spark.full().unwrap_or_default());
    make_once(NAME, &folder, &name, [waiting, &installing], progress, |staging| {
        let environment = staging.join("environment");
        install((spark, python), &environment, staging)?;
        std::fs::rename(&environment, &directory).map_err(|error| {
            SystemError::failed(
                NAME,
                "getting its programs",
                format!("can't make {}: {error}", directory.display()),
            )
        })
    })?;
    let spark_home = directory.join("lib").join(format!("python{version}")).join("site-packages/pyspark");
    Ok(PythonEnvironment { python: directory.join("bin/python"), spark_home, version })
}

/// Makes the environment. It may be renamed afterwards: only the scripts in `bin`, which nobody uses, name its place.
fn install(
    (spark, python): (SparkVersion, &PythonProgram),
    environment: &Path,
    staging: &Path,
) -> Result<(), SystemError> {
    let failed = |error: std::io::Error| {
        let problem = format!("can't write to {}: {error}", staging.display());
        SystemError::failed(NAME, "getting its programs", problem)
    };
    std::fs::create_dir_all(staging).map_err(failed)?;
    let (tools, packages) = (staging.join("requirements-build.txt"), staging.join("requirements.txt"));
    std::fs::write(&tools, BUILD_TOOLS)
        .and_then(|()| std::fs::write(&packages, spark.packages()))
        .map_err(failed)?;
    let mut venv = isolated(&python.program);
    venv.args(["-m", "venv"]).arg(environment).current_dir(staging);
    run(venv, &staging.join("venv.log"), "make a virtual environment")?;
    let pip = |requirements: &Path| {
        let mut pip = isolated(&environment.join("bin/python"));
        // Without a cache: 300 MB would be kept twice.
        pip.args([
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--no-cache-dir",
            "--no-input",
            "--no-deps",
        ])
        .args(["--no-build-isolation", "--require-hashes", "--requirement"])
        .arg(requirements)
        .current_dir(staging)
        .env("TMPDIR", staging);
        // An index of the user's is welcome; another place to install to is not.
        for name in OTHER_PLACES {
            pip.env_remove(name);
        }
        pip
    };
    run(pip(&tools), &staging.join("pip-build.log"), "install PySpark's build tools")?;
    run(pip(&packages), &staging.join("pip.log"), "install PySpark")
}

/// A Python that imports nothing from the current directory, where others may have put a `venv.py` or a `pip.py`, nor
/// from a user's own.
fn isolated(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("-I");
    command
}

fn run(mut command: Command, log: &Path, action: &str) -> Result<(), SystemError> {
    without_variables_of_the_user(&mut command);
    let child = ChildProcess::spawn_as(NAME, "pip", command, log, &SystemResources::unlimited())?;
    let state = child.state();
    if state.wait(LIMIT) && state.ended_well() {
        return Ok(());
    }
    let words = state.log_tail().map(|log| format!(" (its last words: {log})")).unwrap_or_default();
    Err(SystemError::Missing {
        system: NAME,
        missing: format!("PySpark from a package index: can't {action}: {}{words}", state.describe()),
        remedy: "run it once where pip can reach an index (a proxy or a mirror in pip's configuration is used), or copy the cache from \
                 such a machine and set UNDERLAY_CACHE to it"
            .to_owned(),
    })
}

/// Keeps what the user has set for other Pythons and other installations of Spark away from `command`.
pub(super) fn without_variables_of_the_user(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if PREFIXES.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
}

/// The first Python that fits: that of the variable, the user's, or the distribution's.
fn find_python(spark: SparkVersion) -> Result<PythonProgram, SystemError> {
    let chosen = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let candidates = match &chosen {
        Some(chosen) => vec![chosen.clone()],
        None => on_path("python3").into_iter().chain([PathBuf::from("/usr/bin/python3")]).collect(),
    };
    find_among(spark, candidates)
}

fn find_among(spark: SparkVersion, candidates: Vec<PathBuf>) -> Result<PythonProgram, SystemError> {
    let mut problem = "there is no python3".to_owned();
    for candidate in candidates {
        match look(spark, &candidate) {
            Ok(python) => return Ok(python),
            Err(reason) => problem = reason,
        }
    }
    let versions: Vec<String> =
        spark.pythons().iter().map(|(major, minor)| format!("{major}.{minor}")).collect();
    Err(SystemError::Missing {
        system: NAME,
        missing: format!("Python {} with venv ({problem})", versions.join(" or ")),
        remedy: format!("install it (Debian 12: apt install python3 python3-venv), or name it in {VARIABLE}"),
    })
}

fn look(spark: SparkVersion, program: &Path) -> Result<PythonProgram, String> {
    let mut command = isolated(program);
    without_variables_of_the_user(&mut command);
    let output = command.args(["-c", ASK]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{} can't be run: {error}", program.display()))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        let last = error.trim().lines().last().unwrap_or("it fails").to_owned();
        return Err(format!("{}: {last}", program.display()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut words = text.trim().splitn(3, ' ');
    let mut number = || words.next().and_then(|word| word.parse().ok());
    let (Some(major), Some(minor)) = (number(), number()) else {
        return Err(format!("{} does not tell its version", program.display()));
    };
    if !spark.pythons().contains(&(major, minor)) {
        return Err(format!("{} is version {major}.{minor}", program.display()));
    }
    // A launcher may choose another one tomorrow.
    let program = words.next().map_or_else(|| program.to_owned(), PathBuf::from);
    Ok(PythonProgram { program, version: (major, minor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_tools_have_versions_and_hashes() {
        let requirements = BUILD_TOOLS.replace("\\\n", " ");
        for line in requirements.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            assert!(line.contains("==") && line.contains("--hash=sha256:"), "{line}");
        }
    }

    #[test]
    fn unsuitable_python_is_named() {
        let folder = tempfile::TempDir::new().unwrap();
        let script = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
            path
        };
        let look = |program: &Path| look(SparkVersion::V3_5, program);
        let old = look(&script("old", "echo 3 6 /usr/bin/python3.6")).unwrap_err();
        assert!(old.ends_with("is version 3.6"), "{old}");
        let bare = look(&script("bare", "echo \"No module named 'ensurepip'\" >&2; exit 1")).unwrap_err();
        assert!(bare.ends_with("No module named 'ensurepip'"), "{bare}");
        assert!(look(Path::new("/no/such/python")).unwrap_err().contains("can't be run"));
        let good = look(&script("good", "echo 3 11 /usr/bin/python3.11")).unwrap();
        assert_eq!(good, PythonProgram { program: "/usr/bin/python3.11".into(), version: (3, 11) });
        // Spark 4.1 runs on fewer.
        let nine = script("nine", "echo 3 9 /usr/bin/python3.9");
        assert!(look(&nine).is_ok());
        assert!(super::look(SparkVersion::V4_1, &nine).unwrap_err().ends_with("is version 3.9"));
    }

    #[test]
    fn missing_python_is_reported_with_remedy() {
        let refusal_for = |candidates| find_among(SparkVersion::V4_1, candidates).unwrap_err().to_string();
        let none = refusal_for(Vec::new());
        assert!(none.contains("Python 3.10 or 3.11 with venv (there is no python3)"), "{none}");
        assert!(none.contains("apt install python3 python3-venv") && none.contains(VARIABLE), "{none}");
        let missing = refusal_for(vec!["/no/such/python3".into()]);
        assert!(missing.contains("/no/such/python3 can't be run"), "{missing}");
    }

    #[test]
    fn current_directory_is_never_imported_from() {
        let folder = tempfile::TempDir::new().unwrap();
        std::fs::write(folder.path().join("ensurepip.py"), "raise SystemExit('imported')").unwrap();
        let python = on_path("python3").expect("the tests need Python");
        let output =
            isolated(&python).args(["-c", "import ensurepip"]).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn broken_download_leaves_nothing_and_gives_remedy() {
        let folder = tempfile::TempDir::new().unwrap();
        let program = folder.path().join("python3");
        // It makes an environment whose pip finds no index.
        let text = "#!/bin/sh\nmkdir -p \"$4/bin\"\nprintf '#!/bin/sh\\necho no route to the index; exit 1\\n' >\"$4/bin/python\"\n\
                    chmod +x \"$4/bin/python\"\n";
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let cache = folder.path().join("cache");
        let python = PythonProgram { program, version: (3, 11) };
        let error = environment_in(&cache, (SparkVersion::V4_1, &python), &|_| {}).unwrap_err().to_string();
        assert!(error.contains("no route to the index") && error.contains("UNDERLAY_CACHE"), "{error}");
        let left: Vec<_> = std::fs::read_dir(cache.join("python")).unwrap().collect();
        assert_eq!(left.len(), 1, "the lock alone: {left:?}");
    }
}
