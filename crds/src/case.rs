//! The same names in two spellings: `timeout_sec` in the API, `timeoutSec` in Kubernetes.

/// `timeout_sec` → `timeoutSec`.
pub(crate) fn camel(snake: &str) -> String {
    let mut out = String::with_capacity(snake.len());
    let mut upper = false;
    for c in snake.chars() {
        if c == '_' {
            upper = true;
        } else if std::mem::take(&mut upper) {
            out.push(c.to_ascii_uppercase());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::camel;

    #[test]
    fn words_are_joined_by_capitals() {
        assert_eq!(camel("init_timeout_sec"), "initTimeoutSec");
        assert_eq!(camel("env"), "env");
        assert_eq!(camel("retry.max_backoff_sec"), "retry.maxBackoffSec");
    }
}
