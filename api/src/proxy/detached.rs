//! Calls that nobody waits for: sent by the API itself, their answers read and let go.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT, HOST, TE, TRAILER};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_body_util::BodyExt;
use sless_backend::{Endpoint, FunctionRef};
use uuid::Uuid;

use super::body::CallBody;
use super::{Call, Proxy, below, headers};

/// What is to be sent.
#[derive(Debug, Clone)]
pub(crate) struct Detached {
    pub(crate) id: Uuid,
    pub(crate) trigger: String,
    pub(crate) method: Method,
    /// As it was sent, nothing decoded.
    pub(crate) path: String,
    pub(crate) raw_query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sent {
    /// A supervisor has taken it, and makes its record.
    Taken,
    /// Nobody has; asking again makes sense.
    Busy(String),
    /// Nobody ever will.
    Refused(String),
}

impl Proxy {
    /// Sends a call to those who answer for the function, or to `endpoints`, and waits for its end.
    pub(crate) async fn send(
        &self,
        function: &FunctionRef,
        what: &Detached,
        endpoints: Option<&Arc<[Endpoint]>>,
    ) -> Sent {
        let query = Some(what.raw_query.as_str()).filter(|query| !query.is_empty());
        let Some(uri) = below(&what.path, query) else {
            return Sent::Refused("its path is not valid".to_owned());
        };
        let call = Call {
            method: what.method.clone(),
            uri,
            headers: self.headers(function, what),
            trailers: false,
            patience: None,
        };
        let response = match self.pass_on(function, call, CallBody::whole(what.body.clone()), endpoints).await
        {
            Ok(response) => response,
            // It may have been taken; if so, its record tells.
            Err(problem) if problem.detail == super::WENT_AWAY => return Sent::Taken,
            Err(problem) => return Sent::Busy(problem.detail),
        };
        let status = response.status();
        let rejected = response.headers().get("x-sless-status").is_some_and(|s| s == "rejected");
        let mut body = response.into_body();
        // To its end, so that the connection can be used again. An answer that breaks off is the record's to tell.
        while let Some(Ok(_)) = body.frame().await {}
        match (rejected, status.as_u16()) {
            (false, _) => Sent::Taken,
            (true, 429 | 503) => Sent::Busy(format!("the supervisor answered {status}")),
            (true, _) => Sent::Refused(format!("the supervisor answered {status}")),
        }
    }

    fn headers(&self, function: &FunctionRef, what: &Detached) -> HeaderMap {
        let mut all = what.headers.clone();
        // Whom it came from at that time is in the list that the proxy made then.
        let list = all.get("x-forwarded-for").and_then(|list| list.to_str().ok());
        let client: Option<IpAddr> = list.and_then(|list| list.rsplit(',').next()?.trim().parse().ok());
        headers::remove_hop_by_hop(&mut all);
        for name in [CONTENT_LENGTH, EXPECT, TE, TRAILER] {
            all.remove(name);
        }
        if !all.contains_key(HOST) {
            all.insert(HOST, HeaderValue::from_static("sless"));
        }
        let mut ours = |name: &'static str, text: &str| {
            // Ids, addresses and names of triggers are valid values.
            if let Ok(value) = HeaderValue::from_str(text) {
                all.insert(HeaderName::from_static(name), value);
            }
        };
        ours("x-sless-invocation-id", &what.id.to_string());
        ours("x-sless-trigger", &what.trigger);
        if let Some(client) = client {
            ours("x-sless-client-ip", &client.to_string());
        }
        all.insert("x-sless-proxy-token", headers::secret(&self.backend.proxy_token(function)));
        all
    }
}
