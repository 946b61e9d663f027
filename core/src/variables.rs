//! Variables of an environment, as a function's `env` and a secret's `data` hold them.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::FieldError;

/// All variables together, names too: well below what a process start takes.
const MAX_BYTES: usize = 256 << 10;
/// Linux takes no single one of 128 KiB (`MAX_ARG_STRLEN`), its name and the rest of the line included.
const MAX_VALUE_BYTES: usize = 100 << 10;

/// Reads an object of variables that a handler may have: none that begins with `SLESS_`.
///
/// # Errors
/// Names `field`, or the variable in it that is no string.
pub fn variables(field: &str, value: &Value) -> Result<BTreeMap<String, String>, FieldError> {
    let fail = |message: String| Err(FieldError::new(field, message));
    let Value::Object(entries) = value else {
        return fail("must be an object of strings".to_owned());
    };
    let mut variables = BTreeMap::new();
    for (name, value) in entries {
        let Value::String(value) = value else {
            return Err(FieldError::new(format!("{field}.{name}"), "must be a string"));
        };
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        if !name.bytes().all(plain) || name.as_bytes().first().is_none_or(u8::is_ascii_digit) {
            return fail(format!(
                "{name:?} is no name of a variable: letters, digits, '_', '.', '-', not a digit first"
            ));
        }
        if name.starts_with("SLESS_") {
            return fail(format!("{name}: names that begin with SLESS_ are reserved"));
        }
        if value.contains('\0') {
            return fail(format!("{name}: a variable's value can't hold a NUL character"));
        }
        if value.len() > MAX_VALUE_BYTES {
            return fail(format!("{name}: a variable's value has at most {MAX_VALUE_BYTES} bytes"));
        }
        variables.insert(name.clone(), value.clone());
    }
    if variables.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_BYTES {
        return fail(format!("all variables together must have at most {MAX_BYTES} bytes"));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn variables_are_taken_as_they_are_or_refused_by_name() {
        let good = json!({"A": "", "a.b-c_1": "x\n\u{e9}"});
        assert_eq!(serde_json::to_value(variables("env", &good).unwrap()).unwrap(), good);
        let (long, large) = ("x".repeat(MAX_VALUE_BYTES + 1), "x".repeat(MAX_VALUE_BYTES));
        for (bad, field, says) in [
            (json!([]), "data", "object"),
            (json!({"A": 1}), "data.A", "string"),
            (json!({"A=B": "x"}), "data", "A=B"),
            (json!({"": "x"}), "data", "name"),
            (json!({"1A": "x"}), "data", "1A"),
            (json!({"SLESS_X": "x"}), "data", "reserved"),
            (json!({"A": "a\0b"}), "data", "NUL"),
            (json!({"A": long}), "data", "A: "),
            (json!({"A": large, "B": large, "C": large}), "data", "together"),
        ] {
            let refused = variables("data", &bad).unwrap_err();
            assert!(refused.field == field && refused.message.contains(says), "{refused}");
        }
    }
}
