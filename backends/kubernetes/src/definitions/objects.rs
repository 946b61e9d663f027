//! What every object tells of itself beside its spec.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, Time};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use sless_backend::Moment;
use sless_crds::names::{CREATED_AT, MANAGER};

use crate::calls::CALLS;

/// Field manager of what somebody writes through the API.
pub(super) const API: &str = "sless-api";
/// So far may the clocks of the API and of the API server be apart.
const SKEW_MICROS: i64 = 10_000_000;
/// Microseconds in a second.
const SECOND: i64 = 1_000_000;
/// Of an id, what tells apart objects of the same microsecond.
const ID_BITS: u32 = 10;

fn micros(time: &Time) -> i64 {
    time.0.as_microsecond()
}

/// What [`CREATED_AT`] says, if it can be true: a copied object has the original's.
fn noted(meta: &ObjectMeta) -> Option<Moment> {
    let noted = Moment::parse(meta.annotations.as_ref()?.get(CREATED_AT)?)?;
    let created = meta.creation_timestamp.as_ref().map(micros)?;
    (noted.0.abs_diff(created) <= SKEW_MICROS.unsigned_abs()).then_some(noted)
}

/// When it was made: exactly where the API has made it, else to the second.
pub(super) fn created_at(meta: &ObjectMeta) -> Moment {
    noted(meta).unwrap_or_else(|| Moment(meta.creation_timestamp.as_ref().map_or(0, micros)))
}

/// Whether an entry is of more than what machines need to do their work.
fn says_something(entry: &ManagedFieldsEntry) -> bool {
    let Some(Value::Object(fields)) = entry.fields_v1.as_ref().map(|fields| &fields.0) else { return true };
    fields.iter().any(|(name, below)| match (name.as_str(), below) {
        ("f:metadata", Value::Object(below)) => {
            below.keys().any(|name| !matches!(name.as_str(), "f:finalizers" | "f:ownerReferences"))
        }
        _ => true,
    })
}

/// When somebody has written it last: neither the controller nor the API by itself.
pub(super) fn updated_at(meta: &ObjectMeta) -> Moment {
    let ours = |entry: &&ManagedFieldsEntry| {
        entry.subresource.as_deref().unwrap_or_default().is_empty()
            && !matches!(entry.manager.as_deref(), Some(CALLS | MANAGER))
            && says_something(entry)
    };
    let entries = meta.managed_fields.as_deref().unwrap_or_default().iter().filter(ours);
    let last = entries.filter_map(|entry| entry.time.as_ref()).map(|time| Moment(micros(time))).max();
    // To the second, and so before the moment of creation when nothing came after it.
    let created = created_at(meta);
    last.map_or(created, |last| last.max(created))
}

/// Orders objects by their creation. Those of one second without a better note lie in it by chance, but always the same.
pub(super) fn id(meta: &ObjectMeta) -> i64 {
    let hash = Sha256::digest(meta.uid.as_deref().unwrap_or_default().as_bytes());
    let bits = hash.iter().take(4).fold(0_i64, |bits, byte| bits << 8 | i64::from(*byte));
    let moment = match noted(meta) {
        Some(moment) => moment.0,
        None => created_at(meta).0.saturating_add((bits >> ID_BITS) % SECOND),
    };
    moment.saturating_mul(1 << ID_BITS).saturating_add(bits & ((1 << ID_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn meta(value: Value) -> ObjectMeta {
        let mut object = json!({"uid": "u", "creationTimestamp": "2026-01-01T00:00:01Z"});
        object.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn objects_are_ordered_by_their_creation() {
        let at = |text: &str| id(&meta(json!({"annotations": {CREATED_AT: text}})));
        assert!(at("2026-01-01T00:00:01.000001Z") < at("2026-01-01T00:00:01.000002Z"));
        let plain = |uid: &str| id(&meta(json!({"uid": uid})));
        assert!(plain("a") != plain("b") && plain("a") == plain("a"));
        let next = id(&meta(json!({"creationTimestamp": "2026-01-01T00:00:02Z"})));
        assert!((0..100).all(|n| plain(&n.to_string()) < next));
        assert!(id(&meta(json!({"creationTimestamp": "2200-01-01T00:00:02Z"}))) < i64::MAX, "for a while");
    }

    #[test]
    fn a_note_that_came_with_a_copy_does_not_count() {
        let copied = meta(json!({"annotations": {CREATED_AT: "2025-01-01T00:00:00.5Z"}}));
        assert_eq!(created_at(&copied).rfc3339(), "2026-01-01T00:00:01.000000Z");
        assert_eq!(
            created_at(&meta(json!({"annotations": {CREATED_AT: "2026-01-01T00:00:00.5Z"}}))).rfc3339(),
            "2026-01-01T00:00:00.500000Z"
        );
    }

    #[test]
    fn what_is_written_by_machines_is_no_update() {
        let entry = |manager: &str, subresource: &str, time: &str| json!({"manager": manager, "subresource": subresource, "time": time});
        let written = meta(json!({"managedFields": [
            entry(API, "", "2026-01-01T00:01:00Z"), entry("kubectl", "", "2026-01-01T00:02:00Z"), entry("kubectl", "status", "2026-01-01T00:03:00Z"),
            entry(MANAGER, "", "2026-01-01T00:04:00Z"), entry(CALLS, "", "2026-01-01T00:05:00Z")
        ]}));
        assert_eq!(updated_at(&written).rfc3339(), "2026-01-01T00:02:00.000000Z");
        let noted = meta(
            json!({"annotations": {CREATED_AT: "2026-01-01T00:00:01.7Z"}, "managedFields": [entry(API, "", "2026-01-01T00:00:01Z")]}),
        );
        assert_eq!(updated_at(&noted), created_at(&noted));
        let finalizer = meta(json!({"managedFields": [{"manager": "unknown", "time": "2026-01-01T00:01:00Z",
            "fieldsV1": {"f:metadata": {"f:finalizers": {".": {}, "v:\"x\"": {}}}}}]}));
        assert_eq!(updated_at(&finalizer), created_at(&finalizer));
    }
}
