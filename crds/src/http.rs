//! A trigger of type http, as the API has it and as it is written here.

use serde_json::{Map, Value, json};
use sless_core::{FieldError, FunctionName, HttpTrigger};

use crate::{Cors, TriggerSpec, TriggerType};

impl TriggerSpec {
    /// Of type http, every field that it has written out.
    #[must_use]
    pub fn http(function: &FunctionName, enabled: bool, http: &HttpTrigger) -> Self {
        let cors = http.cors.as_ref().map(|cors| Cors {
            origins: cors.origins.clone(),
            methods: Some(cors.methods.clone()),
            headers: Some(cors.headers.clone()),
            max_age_sec: Some(cors.max_age_sec),
        });
        Self {
            kind: TriggerType::Http,
            function_ref: function.to_string(),
            enabled,
            host: http.host.as_ref().map(ToString::to_string),
            methods: (!http.methods.is_empty()).then(|| http.methods.clone()),
            cors,
            schedule: None,
            timezone: None,
            payload: None,
            headers: None,
            prewarm_seconds: None,
            overlap: None,
            catch_up: None,
            runner: None,
            connection: None,
            queue: None,
            passive: None,
            prefetch: None,
            max_attempts: None,
            backoff_sec: None,
            dead_letter: None,
        }
    }

    /// What a trigger of type http says; `None` if it is of another type.
    ///
    /// # Errors
    /// The first field that is not as it must be, by its name here.
    pub fn as_http(&self) -> Option<Result<HttpTrigger, FieldError>> {
        if self.kind != TriggerType::Http {
            return None;
        }
        let mut object = Map::new();
        object.insert("host".into(), json!(self.host));
        object.insert("methods".into(), json!(self.methods));
        let cors = self.cors.as_ref().map(|cors| {
            json!({"origins": cors.origins, "methods": cors.methods, "headers": cors.headers, "max_age_sec": cors.max_age_sec})
        });
        object.insert("cors".into(), cors.unwrap_or(Value::Null));
        Some(
            HttpTrigger::from_object(&object)
                .map_err(|e| FieldError::new(crate::case::camel(&e.field), e.message)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_api_says_is_read_back_the_same() {
        for object in [
            json!({}),
            json!({"host": "shop.example.org", "methods": ["GET", "M-SEARCH"]}),
            json!({"cors": {"origins": ["https://a.example"], "methods": ["GET"], "headers": ["x-a"], "max_age_sec": 5}}),
        ] {
            let http = HttpTrigger::from_object(object.as_object().unwrap()).unwrap();
            let spec = TriggerSpec::http(&"f".parse().unwrap(), false, &http);
            let written: TriggerSpec = serde_json::from_value(serde_json::to_value(&spec).unwrap()).unwrap();
            assert_eq!((&written, written.as_http().unwrap()), (&spec, Ok(http)));
        }
    }

    #[test]
    fn what_is_left_out_has_the_apis_defaults_and_what_is_wrong_is_named() {
        let spec = |rest: Value| {
            let mut object = json!({"type": "http", "functionRef": "f"});
            object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            serde_json::from_value::<TriggerSpec>(object).unwrap()
        };
        assert!(spec(json!({})).enabled);
        let cors = spec(json!({"cors": {"origins": ["*"]}})).as_http().unwrap().unwrap().cors.unwrap();
        assert_eq!((cors.methods, cors.max_age_sec), (vec!["*".to_owned()], 600));
        for (wrong, field) in [
            (json!({"host": "x"}), "host"),
            (json!({"cors": {"origins": ["*"], "maxAgeSec": 100_000}}), "cors.maxAgeSec"),
        ] {
            assert_eq!(spec(wrong).as_http().unwrap().unwrap_err().field, field);
        }
        assert_eq!(spec(json!({"type": "cron", "schedule": "* * * * *"})).as_http(), None);
    }
}
