//! The client metadata about the process and its machine.

use std::env::consts;
use std::path::Path;
use std::sync::OnceLock;

use crate::endpoint::wire::metadata::{ClientMetadata, FunctionEnvironment, OperatingSystem};

/// Returns the metadata of this process, without an application name. It is determined once, because it does not
/// change.
pub(super) fn metadata() -> ClientMetadata {
    static METADATA: OnceLock<ClientMetadata> = OnceLock::new();
    METADATA
        .get_or_init(|| {
            let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
            ClientMetadata {
                app_name: None,
                libraries: Vec::new(),
                os: operating_system(&std::fs::read_to_string("/etc/os-release").unwrap_or_default()),
                platform: format!("Rust {}, tokio", consts::FAMILY),
                environment: environment(variable, Path::new("/.dockerenv").exists()),
            }
        })
        .clone()
}

/// Returns whether the process runs as a cloud function (MongoDB Handshake, "client.env").
pub(crate) fn is_function() -> bool {
    metadata().environment.service.is_some()
}

/// Describes the operating system. `os_release` is the content of `/etc/os-release`, or empty if the file cannot be
/// read.
fn operating_system(os_release: &str) -> OperatingSystem {
    let value = |name: &str| {
        let value = os_release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_default().trim().trim_matches(['"', '\'']).to_owned()
    };
    OperatingSystem {
        kind: match consts::OS {
            "linux" | "android" => "Linux",
            "macos" | "ios" => "Darwin",
            "windows" => "Windows",
            "freebsd" => "FreeBSD",
            "netbsd" => "NetBSD",
            "openbsd" => "OpenBSD",
            other => other,
        },
        name: value("PRETTY_NAME"),
        architecture: consts::ARCH.to_owned(),
        version: value("VERSION_ID"),
    }
}

/// Detects the function service and the container, according to the handshake specification ("client.env").
fn environment(variable: impl Fn(&str) -> Option<String>, docker: bool) -> FunctionEnvironment {
    let is_set = |name: &str| variable(name).is_some();
    let number = |name: &str| variable(name).and_then(|value| value.parse::<i32>().ok());
    let container = FunctionEnvironment {
        container_runtime: docker.then_some("docker"),
        container_orchestrator: is_set("KUBERNETES_SERVICE_HOST").then_some("kubernetes"),
        ..FunctionEnvironment::default()
    };

    let lambda = variable("AWS_EXECUTION_ENV").is_some_and(|value| value.starts_with("AWS_Lambda_"));
    let services = [
        ("aws.lambda", lambda || is_set("AWS_LAMBDA_RUNTIME_API")),
        ("azure.func", is_set("FUNCTIONS_WORKER_RUNTIME")),
        ("gcp.func", is_set("K_SERVICE") || is_set("FUNCTION_NAME")),
        ("vercel", is_set("VERCEL")),
    ];
    let present: Vec<&'static str> =
        services.into_iter().filter(|(_, present)| *present).map(|(name, _)| name).collect();
    match present[..] {
        ["aws.lambda"] => FunctionEnvironment {
            service: Some("aws.lambda"),
            region: variable("AWS_REGION"),
            memory_mb: number("AWS_LAMBDA_FUNCTION_MEMORY_SIZE"),
            ..container
        },
        ["azure.func"] => FunctionEnvironment { service: Some("azure.func"), ..container },
        ["gcp.func"] => FunctionEnvironment {
            service: Some("gcp.func"),
            memory_mb: number("FUNCTION_MEMORY_MB"),
            timeout_sec: number("FUNCTION_TIMEOUT_SEC"),
            region: variable("FUNCTION_REGION"),
            ..container
        },
        ["vercel"] | ["aws.lambda", "vercel"] => {
            FunctionEnvironment { service: Some("vercel"), region: variable("VERCEL_REGION"), ..container }
        }
        _ => container,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment_of(variables: &[(&str, &str)]) -> FunctionEnvironment {
        let lookup =
            |name: &str| variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).to_owned());
        environment(lookup, false)
    }

    #[test]
    fn os_release_file_describes_the_operating_system() {
        let os = operating_system("NAME=Debian\nPRETTY_NAME=\"Debian GNU/Linux 12\"\nVERSION_ID=12\n");
        assert_eq!((&*os.name, &*os.version), ("Debian GNU/Linux 12", "12"));
        assert_eq!(os.architecture, consts::ARCH);
        assert_eq!(operating_system("").name, "");
    }

    #[test]
    fn function_service_is_recognised_by_its_variables() {
        let aws = [
            ("AWS_EXECUTION_ENV", "AWS_Lambda_java8"),
            ("AWS_REGION", "us-east-2"),
            ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "1024"),
        ];
        let expected = FunctionEnvironment {
            service: Some("aws.lambda"),
            region: Some("us-east-2".into()),
            memory_mb: Some(1024),
            ..FunctionEnvironment::default()
        };
        assert_eq!(environment_of(&aws), expected);
        assert_eq!(environment_of(&[("FUNCTIONS_WORKER_RUNTIME", "node")]).service, Some("azure.func"));
        let gcp = [("K_SERVICE", "s"), ("FUNCTION_MEMORY_MB", "512"), ("FUNCTION_TIMEOUT_SEC", "60")];
        let expected = FunctionEnvironment {
            service: Some("gcp.func"),
            memory_mb: Some(512),
            timeout_sec: Some(60),
            ..FunctionEnvironment::default()
        };
        assert_eq!(environment_of(&gcp), expected);
    }

    #[test]
    fn vercel_precedes_lambda_and_other_pairs_are_no_service() {
        let lambda = ("AWS_LAMBDA_RUNTIME_API", "a");
        assert_eq!(environment_of(&[lambda, ("VERCEL", "1")]).service, Some("vercel"));
        assert_eq!(environment_of(&[lambda, ("K_SERVICE", "s")]), FunctionEnvironment::default());
        assert_eq!(environment_of(&[("VERCEL", "1"), ("K_SERVICE", "s")]), FunctionEnvironment::default());
    }

    #[test]
    fn value_of_the_wrong_type_is_left_out() {
        let environment = environment_of(&[("K_SERVICE", "s"), ("FUNCTION_MEMORY_MB", "big")]);
        assert_eq!(environment, FunctionEnvironment { service: Some("gcp.func"), ..FunctionEnvironment::default() });
        assert_eq!(environment_of(&[("AWS_EXECUTION_ENV", "EC2")]), FunctionEnvironment::default());
    }

    #[test]
    fn container_is_recognised_with_and_without_a_service() {
        let found = environment(|name| (name == "KUBERNETES_SERVICE_HOST").then(|| "1".to_owned()), true);
        assert_eq!(found.container_runtime, Some("docker"));
        assert_eq!(found.container_orchestrator, Some("kubernetes"));
        assert_eq!(found.service, None);

        let lambda = [("AWS_EXECUTION_ENV", "AWS_Lambda_java8"), ("AWS_REGION", "us-east-2")];
        let both = environment_of(&[lambda[0], lambda[1], ("KUBERNETES_SERVICE_HOST", "1")]);
        let expected = FunctionEnvironment {
            service: Some("aws.lambda"),
            region: Some("us-east-2".into()),
            container_orchestrator: Some("kubernetes"),
            ..FunctionEnvironment::default()
        };
        assert_eq!(both, expected);
    }
}
