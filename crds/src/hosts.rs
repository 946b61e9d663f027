//! Who may have which host: the one answer that the controller (which makes an Ingress) and the API (which refuses) both go by.

use std::collections::BTreeMap;

use kube::ResourceExt;

use crate::names::HOST_SUFFIXES;
use crate::{Trigger, TriggerType};

/// Suffixes as they are written: with commas between, with or without a dot before.
#[must_use]
pub fn parse_suffixes(text: &str) -> Vec<String> {
    let plain = |part: &str| part.trim().trim_matches('.').to_ascii_lowercase();
    text.split(',').map(plain).filter(|suffix| !suffix.is_empty()).collect()
}

/// Suffixes below which triggers of a namespace with these annotations may have hosts. Its own annotation counts alone, also an
/// empty one; `installation` is for namespaces without.
#[must_use]
pub fn allowed_suffixes(annotations: &BTreeMap<String, String>, installation: &[String]) -> Vec<String> {
    annotations.get(HOST_SUFFIXES).map_or_else(|| installation.to_vec(), |text| parse_suffixes(text))
}

/// Whether `host` lies below one of them; none is below itself.
#[must_use]
pub fn is_below(host: &str, suffixes: &[String]) -> bool {
    suffixes.iter().any(|suffix| {
        host.strip_suffix(suffix.as_str())
            .and_then(|rest| rest.strip_suffix('.'))
            .is_some_and(|l| !l.is_empty())
    })
}

/// Whether the trigger asks for `host`: of type http, enabled or not, and not being deleted.
#[must_use]
pub fn claims(trigger: &Trigger, host: &str) -> bool {
    trigger.spec.kind == TriggerType::Http
        && trigger.spec.host.as_deref() == Some(host)
        && trigger.metadata.deletion_timestamp.is_none()
}

/// Which trigger has `host`, of all that there are: the oldest that asks for it where it is `allowed`, by namespace; of those that are
/// equally old the first by namespace and name.
pub fn winner<'a>(
    host: &str,
    triggers: impl IntoIterator<Item = &'a Trigger>,
    allowed: impl Fn(&str) -> bool,
) -> Option<&'a Trigger> {
    let asking = triggers.into_iter().filter(|trigger| claims(trigger, host));
    asking
        .filter(|trigger| trigger.metadata.namespace.as_deref().is_some_and(&allowed))
        .min_by_key(|trigger| (trigger.creation_timestamp(), trigger.namespace(), trigger.name_any()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn trigger(namespace: &str, name: &str, created: &str, host: &str) -> Trigger {
        serde_json::from_value(json!({
            "apiVersion": "sless.kube5s.ru/v1alpha1", "kind": "Trigger",
            "metadata": {"namespace": namespace, "name": name, "creationTimestamp": created},
            "spec": {"type": "http", "functionRef": "f", "host": host}
        }))
        .unwrap()
    }

    #[test]
    fn the_namespaces_own_suffixes_count_alone() {
        let installation = vec!["example.org".to_owned()];
        let annotated = |text: &str| BTreeMap::from([(HOST_SUFFIXES.to_owned(), text.to_owned())]);
        assert_eq!(allowed_suffixes(&BTreeMap::new(), &installation), installation);
        assert_eq!(
            allowed_suffixes(&annotated(" a.example, .B.example. ,"), &installation),
            ["a.example", "b.example"]
        );
        assert!(allowed_suffixes(&annotated(""), &installation).is_empty());
    }

    #[test]
    fn below_means_one_label_more_at_least() {
        let suffixes = parse_suffixes("example.org,team.example");
        for good in ["shop.example.org", "a.b.example.org", "x.team.example"] {
            assert!(is_below(good, &suffixes), "{good}");
        }
        for bad in ["example.org", ".example.org", "badexample.org", "example.org.evil", "team.example", ""] {
            assert!(!is_below(bad, &suffixes), "{bad}");
        }
        assert!(!is_below("a.example.org", &[]));
    }

    #[test]
    fn the_oldest_one_has_a_host_then_the_first_by_name_wherever_it_is_allowed() {
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
        let mut all = vec![
            trigger("c", "a", new, "h.example"),
            trigger("b", "b", old, "h.example"),
            trigger("b", "a", old, "h.example"),
            trigger("a", "a", old, "other.example"),
            trigger("x", "x", "2025-01-01T00:00:00Z", "h.example"),
        ];
        let name =
            |found: Option<&Trigger>| found.map(|t| format!("{}/{}", t.namespace().unwrap(), t.name_any()));
        let not_x = |namespace: &str| namespace != "x";
        assert_eq!(name(winner("h.example", &all, not_x)).as_deref(), Some("b/a"));
        assert_eq!(name(winner("h.example", &all, |_| true)).as_deref(), Some("x/x"));
        all[2].metadata.deletion_timestamp = all[2].metadata.creation_timestamp.clone();
        assert_eq!(name(winner("h.example", &all, not_x)).as_deref(), Some("b/b"));
        all[1].spec.kind = TriggerType::Cron;
        assert_eq!(name(winner("h.example", &all, not_x)).as_deref(), Some("c/a"));
        assert_eq!(name(winner("none.example", &all, not_x)), None);
    }
}
