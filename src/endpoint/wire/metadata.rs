//! The client metadata in the first hello, for the server's logs (MongoDB Handshake, "Hello Command").

use std::iter::once;

use bson::raw::cstr;
use bson::{RawDocument, RawDocumentBuf};

use crate::endpoint::options::{DriverInfo, InvalidOption};
use crate::text::printable::floor_char_boundary;

/// The maximum length of the metadata document, in bytes, including all of BSON's overhead.
pub const MAX_METADATA: usize = 512;

/// A client's description of itself.
///
/// ```
/// use wharf::unstable::wire::metadata::{ClientMetadata, OperatingSystem};
///
/// let os = OperatingSystem { kind: "Linux", ..OperatingSystem::default() };
/// let metadata = ClientMetadata { os, platform: "Rust ".repeat(200), ..ClientMetadata::default() };
/// let document = metadata.to_document();
/// assert_eq!(document.as_bytes().len(), 512);
/// assert_eq!(document.get_document("driver")?.get_str("name")?, "wharf");
/// # Ok::<(), bson::error::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientMetadata {
    /// `application.name`: the application's own name, of at most 128 bytes.
    pub app_name: Option<String>,
    /// The libraries that wrap wharf, in the order in which they were appended.
    pub libraries: Vec<DriverInfo>,
    /// `os`: the operating system.
    pub os: OperatingSystem,
    /// `platform`: what the client was built with and runs on. Truncation keeps the beginning.
    pub platform: String,
    /// `env`: the environment in which the process runs.
    pub environment: FunctionEnvironment,
}

/// The operating system. An empty field means that the value is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperatingSystem {
    /// `os.type`, such as `Linux` or `Darwin`. If it is empty, `unknown` is sent.
    pub kind: &'static str,
    /// `os.name`: the distribution, for example.
    pub name: String,
    /// `os.architecture`, such as `x86_64`.
    pub architecture: String,
    /// `os.version`.
    pub version: String,
}

/// The environment in which the process runs, if that is a function service or a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FunctionEnvironment {
    /// `env.name`: the function service.
    pub service: Option<&'static str>,
    /// `env.timeout_sec`: the function's time limit, in seconds.
    pub timeout_sec: Option<i32>,
    /// `env.memory_mb`: the function's memory, in megabytes.
    pub memory_mb: Option<i32>,
    /// `env.region`: the function's region.
    pub region: Option<String>,
    /// `env.container.runtime`.
    pub container_runtime: Option<&'static str>,
    /// `env.container.orchestrator`.
    pub container_orchestrator: Option<&'static str>,
}

impl ClientMetadata {
    /// Appends a library that wraps wharf ("Appending metadata"), unless it was already appended. An empty field is
    /// treated as missing.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidOption`] if the name is empty, if a field contains the character that separates libraries, or
    /// if the document would exceed its limit. In that case nothing is appended.
    pub fn append(&mut self, library: DriverInfo) -> Result<(), InvalidOption> {
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let DriverInfo { name, version, platform } = library;
        let library = DriverInfo { name, version: given(version), platform: given(platform) };
        if library.name.is_empty() {
            return Err(InvalidOption::because("driverInfo.name", "must not be empty"));
        }
        let fields = [
            ("driverInfo.name", Some(&library.name)),
            ("driverInfo.version", library.version.as_ref()),
            ("driverInfo.platform", library.platform.as_ref()),
        ];
        for (option, value) in fields {
            if let Some(value) = value.filter(|value| value.contains(SEPARATOR)) {
                let must = format!("without {SEPARATOR:?}, which separates libraries");
                return Err(InvalidOption::new(option, must, format!("{value:?}")));
            }
        }
        if self.libraries.contains(&library) {
            return Ok(());
        }
        self.libraries.push(library);
        let length = self.to_document().as_bytes().len();
        if length <= MAX_METADATA {
            return Ok(());
        }
        self.libraries.pop();
        let must = format!("short enough for metadata of at most {MAX_METADATA} bytes");
        Err(InvalidOption::new("driverInfo", must, format!("{length} bytes")))
    }

    /// Returns the `client` document, of at most [`MAX_METADATA`] bytes.
    ///
    /// If the document would be too long, fields are left out in the specification's order: first all of `env` except
    /// its name, then all of `os` except its type, then `env`, and finally the end of `platform`. The names and
    /// versions of libraries are never left out, which is why [`append`](Self::append) refuses libraries that are too
    /// long.
    #[must_use]
    pub fn to_document(&self) -> RawDocumentBuf {
        let fits = |document: &RawDocumentBuf| document.as_bytes().len() <= MAX_METADATA;
        let mut metadata = self.clone();
        let document = metadata.untruncated();
        if fits(&document) {
            return document;
        }

        metadata.environment =
            FunctionEnvironment { service: self.environment.service, ..FunctionEnvironment::default() };
        let document = metadata.untruncated();
        if fits(&document) {
            return document;
        }

        metadata.os = OperatingSystem { kind: self.os.kind, ..OperatingSystem::default() };
        let document = metadata.untruncated();
        if fits(&document) {
            return document;
        }

        metadata.environment = FunctionEnvironment::default();
        let document = metadata.untruncated();
        if fits(&document) {
            return document;
        }

        let excess = document.as_bytes().len() - MAX_METADATA;
        let mut platform = metadata.platform_with_libraries();
        platform.truncate(floor_char_boundary(&platform, platform.len().saturating_sub(excess)));
        metadata.with_platform(&platform)
    }

    fn untruncated(&self) -> RawDocumentBuf {
        self.with_platform(&self.platform_with_libraries())
    }

    fn platform_with_libraries(&self) -> String {
        let own = (!self.platform.is_empty()).then_some(self.platform.as_str());
        separated(own.into_iter().chain(self.libraries.iter().filter_map(|library| library.platform.as_deref())))
    }

    fn with_platform(&self, platform: &str) -> RawDocumentBuf {
        let mut client = RawDocumentBuf::new();
        if let Some(app_name) = &self.app_name {
            let mut application = RawDocumentBuf::new();
            application.append(cstr!("name"), app_name.as_str());
            client.append(cstr!("application"), application);
        }
        let mut driver = RawDocumentBuf::new();
        let names = self.libraries.iter().map(|library| library.name.as_str());
        driver.append(cstr!("name"), separated(once("wharf").chain(names)));
        let versions = self.libraries.iter().filter_map(|library| library.version.as_deref());
        driver.append(cstr!("version"), separated(once(env!("CARGO_PKG_VERSION")).chain(versions)));
        client.append(cstr!("driver"), driver);
        client.append(cstr!("os"), self.os.to_document());
        if !platform.is_empty() {
            client.append(cstr!("platform"), platform);
        }
        let environment = self.environment.to_document();
        if !is_empty(&environment) {
            client.append(cstr!("env"), environment);
        }
        client
    }
}

/// The separator between the values of different libraries.
const SEPARATOR: char = '|';

fn separated<'a>(values: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    for value in values {
        if !text.is_empty() {
            text.push(SEPARATOR);
        }
        text.push_str(value);
    }
    text
}

impl OperatingSystem {
    fn to_document(&self) -> RawDocumentBuf {
        let mut os = RawDocumentBuf::new();
        os.append(cstr!("type"), if self.kind.is_empty() { "unknown" } else { self.kind });
        let optional = [
            (cstr!("name"), &self.name),
            (cstr!("architecture"), &self.architecture),
            (cstr!("version"), &self.version),
        ];
        for (field, value) in optional {
            if !value.is_empty() {
                os.append(field, value.as_str());
            }
        }
        os
    }
}

impl FunctionEnvironment {
    fn to_document(&self) -> RawDocumentBuf {
        let mut env = RawDocumentBuf::new();
        if let Some(service) = self.service {
            env.append(cstr!("name"), service);
        }
        if let Some(seconds) = self.timeout_sec {
            env.append(cstr!("timeout_sec"), seconds);
        }
        if let Some(megabytes) = self.memory_mb {
            env.append(cstr!("memory_mb"), megabytes);
        }
        if let Some(region) = &self.region {
            env.append(cstr!("region"), region.as_str());
        }
        let mut container = RawDocumentBuf::new();
        if let Some(runtime) = self.container_runtime {
            container.append(cstr!("runtime"), runtime);
        }
        if let Some(orchestrator) = self.container_orchestrator {
            container.append(cstr!("orchestrator"), orchestrator);
        }
        if !is_empty(&container) {
            env.append(cstr!("container"), container);
        }
        env
    }
}

fn is_empty(document: &RawDocument) -> bool {
    document.iter_elements().next().is_none()
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};
    use proptest::prelude::*;

    use super::*;

    fn full() -> ClientMetadata {
        ClientMetadata {
            app_name: Some("shop".into()),
            libraries: Vec::new(),
            os: OperatingSystem {
                kind: "Linux",
                name: "Debian".into(),
                architecture: "x86_64".into(),
                version: "12".into(),
            },
            platform: "Rust".into(),
            environment: FunctionEnvironment {
                service: Some("aws.lambda"),
                timeout_sec: Some(60),
                memory_mb: Some(1024),
                region: Some("eu".into()),
                container_runtime: Some("docker"),
                container_orchestrator: Some("kubernetes"),
            },
        }
    }

    fn document(metadata: &ClientMetadata) -> Document {
        Document::try_from(metadata.to_document()).unwrap()
    }

    #[test]
    fn all_known_fields_are_sent() {
        let expected = doc! {
            "application": { "name": "shop" },
            "driver": { "name": "wharf", "version": env!("CARGO_PKG_VERSION") },
            "os": { "type": "Linux", "name": "Debian", "architecture": "x86_64", "version": "12" },
            "platform": "Rust",
            "env": {
                "name": "aws.lambda", "timeout_sec": 60, "memory_mb": 1024, "region": "eu",
                "container": { "runtime": "docker", "orchestrator": "kubernetes" },
            },
        };
        assert_eq!(document(&full()), expected);
    }

    #[test]
    fn unknown_fields_are_omitted_except_the_type_of_the_operating_system() {
        let expected = doc! {
            "driver": { "name": "wharf", "version": env!("CARGO_PKG_VERSION") },
            "os": { "type": "unknown" },
        };
        assert_eq!(document(&ClientMetadata::default()), expected);
    }

    #[test]
    fn excess_fields_are_omitted_in_the_order_of_the_specification() {
        let mut metadata = full();
        metadata.environment.region = Some("e".repeat(400));
        assert_eq!(document(&metadata).get("env"), Some(&doc! { "name": "aws.lambda" }.into()));
        assert_eq!(document(&metadata).get_document("os").unwrap().len(), 4);

        metadata.os.name = "D".repeat(400);
        assert_eq!(document(&metadata).get("os"), Some(&doc! { "type": "Linux" }.into()));
        assert!(document(&metadata).contains_key("env"));

        // With the environment's name, the document is one byte too long. Without it, the whole platform fits.
        let without_platform =
            ClientMetadata { platform: String::new(), environment: FunctionEnvironment::default(), ..full() };
        let os_type_only = OperatingSystem { kind: "Linux", ..OperatingSystem::default() };
        let base = ClientMetadata { os: os_type_only, ..without_platform }.to_document().as_bytes().len();
        let platform_element = 1 + "platform\0".len() + 4 + 1;
        metadata.platform = "R".repeat(MAX_METADATA - base - platform_element);
        assert!(!document(&metadata).contains_key("env"));
        assert_eq!(document(&metadata).get_str("platform").unwrap(), metadata.platform);

        metadata.platform.push('!');
        assert_eq!(document(&metadata).get_str("platform").unwrap().len(), metadata.platform.len() - 1);
    }

    fn library(name: &str, version: Option<&str>, platform: Option<&str>) -> DriverInfo {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        DriverInfo { name: name.to_owned(), version: owned(version), platform: owned(platform) }
    }

    /// Returns the name, the version and the platform, without wharf's own values.
    fn libraries(metadata: &ClientMetadata) -> [String; 3] {
        let document = document(metadata);
        let driver = document.get_document("driver").unwrap();
        let values = [
            driver.get_str("name").unwrap(),
            driver.get_str("version").unwrap(),
            document.get_str("platform").unwrap(),
        ];
        values.map(|value| value.split_once('|').map_or("", |(_, libraries)| libraries).to_owned())
    }

    #[test]
    fn libraries_are_appended_to_existing_ones() {
        let cases = [
            (
                Some("2.0"),
                Some("Framework Platform"),
                ["library|framework", "1.2|2.0", "Library Platform|Framework Platform"],
            ),
            (Some("2.0"), None, ["library|framework", "1.2|2.0", "Library Platform"]),
            (None, Some("Framework Platform"), ["library|framework", "1.2", "Library Platform|Framework Platform"]),
            (None, None, ["library|framework", "1.2", "Library Platform"]),
        ];
        for (version, platform, expected) in cases {
            let mut metadata = full();
            metadata.append(library("library", Some("1.2"), Some("Library Platform"))).unwrap();
            assert_eq!(libraries(&metadata), ["library", "1.2", "Library Platform"]);
            let before = document(&metadata);
            metadata.append(library("framework", version, platform)).unwrap();
            assert_eq!(libraries(&metadata), expected);
            for field in ["application", "os", "env"] {
                assert_eq!(document(&metadata).get(field), before.get(field));
            }
            assert!(document(&metadata).get_document("driver").unwrap().get_str("name").unwrap().starts_with("wharf|"));
        }
    }

    #[test]
    fn library_is_appended_once_and_empty_fields_count_as_not_given() {
        let mut metadata = full();
        metadata.append(library("library", Some("1.2"), None)).unwrap();
        metadata.append(library("framework", Some("1.2"), None)).unwrap();
        let before = document(&metadata);
        metadata.append(library("library", Some("1.2"), Some(""))).unwrap();
        metadata.append(library("framework", Some("1.2"), None)).unwrap();
        assert_eq!(document(&metadata), before);
        metadata.append(library("library", Some(""), None)).unwrap();
        metadata.append(library("library", None, None)).unwrap();
        assert_eq!(libraries(&metadata), ["library|framework|library", "1.2|1.2", ""]);
    }

    #[test]
    fn invalid_library_is_refused_and_changes_nothing() {
        let mut metadata = full();
        let refusals = [
            (library("", None, None), "driverInfo.name", "must not be empty"),
            (library("a|b", None, None), "driverInfo.name", "must be without '|', which separates libraries"),
            (library("a", Some("1|2"), None), "driverInfo.version", "must be without '|', which separates libraries"),
            (library("a", None, Some("|")), "driverInfo.platform", "must be without '|', which separates libraries"),
        ];
        for (library, option, problem) in refusals {
            let error = metadata.append(library).unwrap_err();
            assert_eq!((error.option, &*error.problem), (option, problem));
        }
        let error = metadata.append(library(&"x".repeat(490), None, None)).unwrap_err();
        assert_eq!(error.option, "driverInfo");
        assert_eq!(error.problem, "must be short enough for metadata of at most 512 bytes");
        assert_eq!(metadata, full());
        // An overlong platform is truncated instead.
        metadata.append(library("a", None, Some(&"x".repeat(400)))).unwrap();
        assert_eq!(metadata.to_document().as_bytes().len(), MAX_METADATA);
    }

    proptest! {
        #[test]
        fn document_never_exceeds_its_limit(
            app_name in proptest::option::of("[a-zé€😀]{0,32}"),
            name in ".{0,300}",
            platform in "[aé€😀]{0,300}",
            region in proptest::option::of(".{0,300}"),
        ) {
            let mut metadata = full();
            (metadata.app_name, metadata.os.name, metadata.platform) = (app_name, name, platform.clone());
            metadata.environment.region = region;
            let document = metadata.to_document();
            prop_assert!(document.as_bytes().len() <= MAX_METADATA);
            let kept = document.get_str("platform").unwrap_or("");
            prop_assert!(platform.starts_with(kept));
        }
    }
}
