//! The log of a build that runs, from its pod.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, LogParams};
use kube::{Api, Client, ResourceExt};
use sless_backend::{BackendError, FunctionRef, LogLine};
use sless_crds::names::{BUILDS, LABEL_FUNCTION, LABEL_NAMESPACE};

use crate::error::{answer, within};

/// Of a build's pod, in the order in which they run.
const CONTAINERS: [&str; 2] = ["install", "pack"];
/// A build that says more is cut.
const MOST_BYTES: i64 = 1 << 20;
/// Kubernetes' own label on the pods of a Job.
const LABEL_JOB: &str = "batch.kubernetes.io/job-name";

/// `None` if there is no pod of it.
pub(crate) async fn read(
    client: &Client,
    function: &FunctionRef,
    build: &str,
    from: usize,
) -> Result<Option<Vec<LogLine>>, BackendError> {
    // It comes from outside and goes into a selector.
    if build.is_empty() || build.len() > 63 || !build.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    {
        return Ok(None);
    }
    let pods = Api::<Pod>::namespaced(client.clone(), BUILDS);
    let (namespace, name) = (&function.namespace, &function.name);
    let selector = format!("{LABEL_JOB}={build},{LABEL_NAMESPACE}={namespace},{LABEL_FUNCTION}={name}");
    let found =
        within("find the pod of a build", pods.list(&ListParams::default().labels(&selector))).await?;
    let Some(pod) = found.items.into_iter().max_by_key(ResourceExt::creation_timestamp) else {
        return Ok(None);
    };
    let mut lines = Vec::new();
    for container in CONTAINERS {
        let params = LogParams {
            container: Some(container.to_owned()),
            limit_bytes: Some(MOST_BYTES),
            ..LogParams::default()
        };
        let asked = async {
            match pods.logs(&pod.name_any(), &params).await {
                Ok(text) => Ok(text),
                // It has not begun (400), or ended just now (404).
                Err(error) if answer(&error).is_some_and(|status| matches!(status.code, 400 | 404)) => {
                    Ok(String::new())
                }
                Err(error) => Err(error),
            }
        };
        lines.extend(parse(&within("read the log of a build", asked).await?));
    }
    Ok(Some(lines.split_off(from.min(lines.len()))))
}

/// The lines that are whole. Each is JSON; what a crash of the installer itself prints beside that is no line of a log.
fn parse(text: &str) -> impl Iterator<Item = LogLine> {
    let whole = text.rfind('\n').map_or("", |end| text.get(..end).unwrap_or_default());
    whole.lines().filter_map(|line| serde_json::from_str(line).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_are_told() {
        let line = |text: &str| format!(r#"{{"time":"t","stream":"stdout","text":"{text}"}}"#);
        let text = format!("{}\npanicked\n{}\n{}", line("a"), line("b"), line("c"));
        assert_eq!(parse(&text).map(|line| line.text).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(parse("").count(), 0);
    }
}
