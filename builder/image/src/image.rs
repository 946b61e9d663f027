//! Configuration and manifest of an image with more layers: <https://github.com/opencontainers/image-spec/blob/main/config.md>.

use serde_json::{Map, Value, json};

use crate::layer::{Layer, MEDIA_TYPE};

/// Of the manifest that is made.
pub(crate) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";

/// Why a base can't be built upon.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("the base's configuration is no JSON object of an image: {0}")]
    Config(&'static str),
    #[error("the base has {layers} layers, and its configuration tells of {diff_ids}")]
    Layers { layers: usize, diff_ids: usize },
}

/// A layer that comes on top.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Top<'a> {
    pub(crate) layer: &'a Layer,
    /// What it is, for the image's history.
    pub(crate) made_by: &'a str,
}

/// The base's configuration with more layers. What it says of anything else stays; times do not move, so that equal input gives equal bytes.
pub(crate) fn config(base: &str, layers: usize, tops: &[Top<'_>]) -> Result<Vec<u8>, ImageError> {
    let odd = ImageError::Config;
    let Ok(Value::Object(mut config)) = serde_json::from_str(base) else {
        return Err(odd("it does not parse"));
    };
    let created = config.get("created").cloned().unwrap_or(Value::Null);
    let diff_ids = list(&mut config, &["rootfs", "diff_ids"]).ok_or(odd("it has no rootfs.diff_ids"))?;
    if diff_ids.len() != layers {
        return Err(ImageError::Layers { layers, diff_ids: diff_ids.len() });
    }
    diff_ids.extend(tops.iter().map(|top| json!(top.layer.diff_id)));
    if let Some(history) = list(&mut config, &["history"]) {
        history.extend(tops.iter().map(|top| json!({ "created": created, "created_by": top.made_by })));
    }
    // A map of serde_json is in the order of its keys.
    Ok(Value::Object(config).to_string().into_bytes())
}

fn list<'a>(object: &'a mut Map<String, Value>, path: &[&str]) -> Option<&'a mut Vec<Value>> {
    let (last, above) = path.split_last()?;
    let mut at = object;
    for name in above {
        at = at.get_mut(*name)?.as_object_mut()?;
    }
    at.get_mut(*last)?.as_array_mut()
}

/// What names a blob in a manifest.
pub(crate) fn descriptor(media_type: &str, digest: &str, size: u64) -> Value {
    json!({ "mediaType": media_type, "digest": digest, "size": size })
}

/// The manifest: the base's layers, as it names them, and the new ones.
pub(crate) fn manifest(base_layers: Vec<Value>, config: (&str, u64), tops: &[Top<'_>]) -> Vec<u8> {
    let mut layers = base_layers;
    layers.extend(tops.iter().map(|top| descriptor(MEDIA_TYPE, &top.layer.digest, top.layer.size)));
    let (digest, size) = config;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": descriptor(CONFIG_TYPE, digest, size),
        "layers": layers,
    });
    manifest.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = r#"{"os":"linux","architecture":"amd64","created":"2026-01-01T00:00:00Z","config":{"Entrypoint":["/x"]},"rootfs":{"type":"layers","diff_ids":["sha256:a"]},"history":[{"created_by":"base"}],"odd":1}"#;

    fn layer() -> Layer {
        Layer { digest: "sha256:d".into(), diff_id: "sha256:i".into(), size: 7 }
    }

    #[test]
    fn layers_are_added_and_the_rest_stays() {
        let layer = layer();
        let tops = [Top { layer: &layer, made_by: "sless: code" }];
        let bytes = config(BASE, 1, &tops).unwrap();
        assert_eq!(bytes, config(BASE, 1, &tops).unwrap());
        let made: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(made["rootfs"]["diff_ids"], json!(["sha256:a", "sha256:i"]));
        assert_eq!(
            made["history"][1],
            json!({"created": "2026-01-01T00:00:00Z", "created_by": "sless: code"})
        );
        assert_eq!((&made["odd"], &made["config"]["Entrypoint"]), (&json!(1), &json!(["/x"])));
        let manifest: Value =
            serde_json::from_slice(&manifest(vec![descriptor("t", "sha256:b", 3)], ("sha256:c", 9), &tops))
                .unwrap();
        assert_eq!(manifest["layers"][1], json!({"mediaType": MEDIA_TYPE, "digest": "sha256:d", "size": 7}));
        assert_eq!(manifest["config"]["digest"], "sha256:c");
    }

    #[test]
    fn a_base_that_contradicts_itself_is_refused() {
        assert!(matches!(config(BASE, 2, &[]), Err(ImageError::Layers { layers: 2, diff_ids: 1 })));
        for odd in ["", "[]", "{}", r#"{"rootfs":{"diff_ids":1}}"#] {
            assert!(matches!(config(odd, 1, &[]), Err(ImageError::Config(_))), "{odd}");
        }
    }
}
