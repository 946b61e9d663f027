//! `ANY /v1/namespaces/{ns}/functions/{name}/invoke[/{path}]`: a call with a token, trigger or not.
//!
//! Not behind the router, which decodes what follows `invoke`.

use std::net::IpAddr;

use http::{HeaderMap, Request, Response};
use sless_backend::FunctionRef;

use super::{Entered, operations};
use crate::app::App;
use crate::problem::Problem;
use crate::proxy::{Lingering, ResponseBody};

/// What the path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    ns: String,
    name: String,
    /// As it was sent.
    path: String,
}

impl Target {
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let (ns, rest) = path.strip_prefix("/v1/namespaces/")?.split_once('/')?;
        let (name, rest) = rest.strip_prefix("functions/")?.split_once('/')?;
        let path = rest.strip_prefix("invoke")?;
        (path.is_empty() || path.starts_with('/')).then(|| Self {
            ns: ns.to_owned(),
            name: name.to_owned(),
            path: path.to_owned(),
        })
    }
}

pub(crate) async fn call(
    app: &App,
    target: Target,
    request: Request<Lingering>,
    peer: IpAddr,
) -> Response<ResponseBody> {
    match function(app, &target, request.headers()).await {
        Ok(function) => app.proxy.invoke(&function, &target.path, request, peer).await,
        Err(problem) => refuse(&problem),
    }
}

/// The function, if the caller may call it: what the guard of the router does for others.
async fn function(app: &App, target: &Target, headers: &HeaderMap) -> Result<FunctionRef, Problem> {
    let caller = app.auth.caller(&*app.records, headers).await?;
    let namespace = caller.enter(&target.ns, operations::INVOKE)?;
    Entered { namespace, makes: caller.namespace.is_none() }.function(&target.name)
}

fn refuse(problem: &Problem) -> Response<ResponseBody> {
    problem.response(|bytes| ResponseBody::Bytes(bytes.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_behind_invoke_is_kept_as_it_was_sent() {
        let target = |path: &str| Target::parse(path).map(|t| (t.ns, t.name, t.path));
        let base = "/v1/namespaces/a/functions/f";
        let expected = |path: &str| Some(("a".to_owned(), "f".to_owned(), path.to_owned()));
        assert_eq!(target(&format!("{base}/invoke")), expected(""));
        assert_eq!(target(&format!("{base}/invoke/x//y%2Fz/")), expected("/x//y%2Fz/"));
        for other in ["/invoked", "/upload", ""] {
            assert_eq!(target(&format!("{base}{other}")), None);
        }
    }
}
