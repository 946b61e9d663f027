//! Quotas as settings and annotations write them: `NAME=QUANTITY`, with commas between.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::config::list;

/// What a namespace's functions may use together.
pub(crate) type Quota = BTreeMap<String, Quantity>;

/// Enough for some dozens of functions, so that one tenant cannot fill a cluster by accident.
#[must_use]
pub(crate) fn default() -> Quota {
    [("pods", "200"), ("requests.cpu", "20"), ("requests.memory", "64Gi"), ("limits.memory", "64Gi")]
        .map(|(name, quantity)| (name.to_owned(), Quantity(quantity.to_owned())))
        .into()
}

/// # Errors
/// Which part is not as it has to be.
pub(crate) fn parse(text: &str) -> Result<Quota, String> {
    let mut quota = Quota::new();
    for part in list(text) {
        let rule = || format!("{part:?} is not NAME=QUANTITY, as in pods=50 or requests.memory=8Gi");
        let (name, quantity) = part.split_once('=').ok_or_else(rule)?;
        let (name, quantity) = (name.trim(), quantity.trim());
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'/');
        if name.is_empty() || !name.bytes().all(plain) || number(quantity).is_none() {
            return Err(rule());
        }
        quota.insert(name.to_owned(), Quantity(quantity.to_owned()));
    }
    Ok(quota)
}

/// The value of a quantity (<https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>).
#[must_use]
pub(crate) fn number(text: &str) -> Option<f64> {
    let digits =
        text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))).unwrap_or(text.len());
    let (digits, suffix) = text.split_at_checked(digits)?;
    let factor = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        "Ti" => 1_099_511_627_776.0,
        _ => return None,
    };
    digits.parse::<f64>().ok().map(|n| n * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_read_and_mistakes_named() {
        let quota = parse("pods=5, requests.memory=1Gi").unwrap();
        assert_eq!((quota["pods"].0.as_str(), quota["requests.memory"].0.as_str()), ("5", "1Gi"));
        for bad in ["pods", "pods=", "pods=many", "=5", "a b=5"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn equal_quantities_may_be_written_differently() {
        assert_eq!(number("1000m"), number("1"));
        assert_eq!(number("1024Mi"), number("1Gi"));
        assert_eq!(number("handler"), None);
        assert_eq!(number(""), None);
    }
}
