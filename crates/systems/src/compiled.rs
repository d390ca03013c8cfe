//! Our own Java sources, compiled by the user's `javac` when they are needed. The sources are embedded in the program,
//! so that an installed one needs no checkout. The classes stay in the cache of artifacts, in a folder for each version
//! of the sources and of the libraries that they were compiled against.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::artifacts::ArtifactError;
use crate::artifacts::cache::{self, make_once};
use crate::child::ChildProcess;
use crate::java::{ClassPath, Java, VERSION, without_options_of_the_user};
use crate::system::{LoadProgress, SystemError, SystemResources};

const DURING: &str = "compiling its Java part";
/// The compiler runs before anything is measured. It is kept small, because other runs may be measuring on this
/// machine.
const MACHINE: [&str; 3] = ["-J-Xmx384m", "-J-XX:+UseSerialGC", "-J-XX:TieredStopAtLevel=1"];
/// `-proc:none` keeps annotation processors that happen to be on the class path from running.
const OPTIONS: [&str; 5] =
    ["-g", "-proc:none", "-Xlint:all,-processing,-classfile,-path", "-encoding", "UTF-8"];

/// Sources that are compiled together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JavaSources {
    /// The name of the folder, also used in messages: `jvm-child`.
    pub name: &'static str,
    /// The path of each file below the root of the sources (`underlay/jvm/CacheServer.java`), and its text.
    pub files: &'static [(&'static str, &'static str)],
}

impl JavaSources {
    /// The folder of the compiled classes, for a [`ClassPath`]. They are compiled if they aren't in the cache.
    pub(crate) fn classes(
        &self,
        system: &'static str,
        class_path: &ClassPath,
        progress: &dyn Fn(&LoadProgress),
    ) -> Result<PathBuf, SystemError> {
        let cache = cache::root().map_err(|error| error.into_system_error(system))?;
        self.classes_in(&cache, system, class_path, progress)
    }

    /// Like [`classes`](Self::classes), in a cache other than the user's.
    pub(crate) fn classes_in(
        &self,
        cache: &Path,
        system: &'static str,
        class_path: &ClassPath,
        progress: &dyn Fn(&LoadProgress),
    ) -> Result<PathBuf, SystemError> {
        let failed = |problem: String| SystemError::failed(system, DURING, problem);
        let contents = class_path
            .contents()
            .map_err(|error| failed(format!("can't read the folders of its class path: {error}")))?;
        let (folder, name) = (cache.join("classes"), format!("{}-{}", self.name, self.digest(&contents)));
        let directory = folder.join(&name);
        cache::check(&folder).map_err(|error| error.into_system_error(system))?;
        // It gets this name only after everything in it has been synced.
        if directory.is_dir() {
            return Ok(directory);
        }
        let compiler = Java::compiler(system)?;
        let waiting = format!("waiting for another process that compiles {}", self.name);
        let compiling = format!("compiling {}, {} Java files", self.name, self.files.len());
        make_once(system, &folder, &name, [&waiting, &compiling], progress, |staging| {
            let classes = self.compile(&compiler, system, class_path, staging)?;
            std::fs::rename(&classes, &directory)
                .map_err(|error| failed(format!("can't make {}: {error}", directory.display())))
        })?;
        Ok(directory)
    }

    fn digest(&self, class_path: &[String]) -> String {
        let files = self.files.iter().flat_map(|&(path, text)| [path, text]);
        cache::digest(files.chain(["class path"]).chain(class_path.iter().map(String::as_str)))
    }

    /// Compiles into a folder of `staging` and syncs all of it to disk.
    fn compile(
        &self,
        compiler: &Java,
        system: &'static str,
        class_path: &ClassPath,
        staging: &Path,
    ) -> Result<PathBuf, SystemError> {
        let io = |action: &'static str, path: &Path| {
            let path = path.to_owned();
            move |error: std::io::Error| ArtifactError::io(action, path)(error).into_system_error(system)
        };
        let (sources, classes) = (staging.join("sources"), staging.join("classes"));
        std::fs::create_dir_all(&classes).map_err(io("make", &classes))?;
        let mut command = Command::new(&compiler.program);
        command.args(MACHINE).args(OPTIONS).arg("--release").arg(VERSION.to_string());
        // Without -cp, javac would search what CLASSPATH names, or the current directory.
        let path = if class_path.is_empty() { classes.clone().into() } else { class_path.to_argument() };
        command.arg("-cp").arg(path).arg("-d").arg(&classes);
        for (name, text) in self.files {
            let file = sources.join(name);
            let parent = file.parent().unwrap_or(&sources);
            std::fs::create_dir_all(parent).map_err(io("make", parent))?;
            std::fs::write(&file, text).map_err(io("write", &file))?;
            command.arg(&file);
        }
        without_options_of_the_user(&mut command);
        let javac =
            ChildProcess::spawn(system, command, &staging.join("javac.log"), &SystemResources::unlimited())?;
        javac.state().wait(std::time::Duration::MAX);
        if !javac.state().ended_well() {
            let problem = format!("{} did not compile {}", compiler.program.display(), self.name);
            return Err(javac.state().failed(DURING, problem));
        }
        write_out(&classes).map_err(io("write out", &classes))?;
        Ok(classes)
    }
}

fn write_out(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => write_out(&entry.path())?,
            false => File::open(entry.path())?.sync_all()?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const HELLO: JavaSources = JavaSources {
        name: "hello",
        files: &[
            (
                "a/Hello.java",
                "package a; class Hello { public static void main(String[] a) { System.out.print(b.Name.OF); } }",
            ),
            ("b/Name.java", "package b; public class Name { public static final String OF = \"Käthe\"; }"),
        ],
    };

    #[test]
    fn sources_are_compiled_once_also_by_many_at_once() {
        let cache = tempfile::TempDir::new().unwrap();
        let compile = || HELLO.classes_in(cache.path(), "test", &ClassPath::new(), &|_| {}).unwrap();
        let folders: Vec<PathBuf> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(compile)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let made = folders[0].join("a/Hello.class").metadata().unwrap().modified().unwrap();
        assert!(folders.iter().all(|folder| *folder == folders[0]));
        assert_eq!(compile().join("a/Hello.class").metadata().unwrap().modified().unwrap(), made);
        let output = Command::new("java")
            .arg("-Dfile.encoding=UTF-8")
            .arg("-cp")
            .arg(ClassPath::new().with_classes(&folders[0]).to_argument())
            .arg("a.Hello")
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "Käthe");
        let left: Vec<_> = std::fs::read_dir(cache.path().join("classes")).unwrap().collect();
        assert_eq!(left.len(), 2, "the classes and the lock: {left:?}");
    }

    #[test]
    fn another_text_or_another_library_is_another_folder() {
        let other = JavaSources { files: &[("a/Hello.java", "")], ..HELLO };
        let same = HELLO.digest(&[]);
        assert_eq!(same, HELLO.digest(&[]));
        for digest in
            [other.digest(&[]), HELLO.digest(&["a.jar 1".to_owned()]), HELLO.digest(&["a.jar 2".to_owned()])]
        {
            assert_ne!(digest, same);
        }
    }

    #[test]
    fn compiler_errors_are_reported_and_leave_nothing_behind() {
        const WRONG: JavaSources =
            JavaSources { name: "wrong", files: &[("A.java", "class A { int a = \"x\"; }")] };
        let cache = tempfile::TempDir::new().unwrap();
        let error =
            WRONG.classes_in(cache.path(), "test", &ClassPath::new(), &|_| {}).unwrap_err().to_string();
        assert!(error.contains("did not compile wrong") && error.contains("incompatible types"), "{error}");
        let left: Vec<_> = std::fs::read_dir(cache.path().join("classes")).unwrap().collect();
        assert_eq!(left.len(), 1, "the lock alone: {left:?}");
    }
}
