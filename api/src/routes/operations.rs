//! The table of all operations.

use http::Method;

use super::operation::Access::{Open, Role as Needs, Token};
use super::operation::Shape::{Any, List, Log, Metrics, Nothing, Object, Optional, Zip};
use super::operation::{Operation, Param};
use super::{
    builds, code, functions, invocations, logs, revisions, runs, secrets, system, tokens, triggers, upload,
};
use crate::auth::Role::{self, Admin, Deployer, Invoker, Viewer};

/// The role that a call with a token needs.
pub(super) const INVOKE: Role = Invoker;

const CODE_RUNTIME: Param = Param {
    name: "runtime",
    schema: r#"{"type": "string"}"#,
    about: "what it is for, if there is no function of the name yet",
};
const CODE_ENTRYPOINT: Param = Param {
    name: "entrypoint",
    schema: r#"{"type": "string"}"#,
    about: "where its handler is, if it is not where the function's is",
};
const LIMIT: Param = Param {
    name: "limit",
    schema: r#"{"type": "integer", "minimum": 1, "maximum": 500, "default": 50}"#,
    about: "how many",
};
const CURSOR: Param = Param {
    name: "cursor",
    schema: r#"{"type": "string", "minLength": 1}"#,
    about: "what the page before gave as 'next'",
};
const PAGE: &[Param] = &[LIMIT, CURSOR];

const fn moment(name: &'static str, about: &'static str) -> Param {
    Param { name, schema: r#"{"type": "string", "format": "date-time"}"#, about }
}

const HISTORY: &[Param] = &[
    LIMIT,
    CURSOR,
    Param {
        name: "status",
        schema: r#"{"type": "string", "enum": ["queued", "running", "success", "error", "timeout", "crashed", "out_of_memory", "init_failed", "cancelled", "lost"]}"#,
        about: "only those with this status",
    },
    Param {
        name: "trigger",
        schema: r#"{"type": "string", "enum": ["http", "invoke", "async", "cron", "rabbitmq", "job"]}"#,
        about: "only those with this trigger",
    },
    moment("since", "only those that began then or later"),
    moment("until", "only those that began before"),
];
const TAIL: Param = Param {
    name: "tail",
    schema: r#"{"type": "integer", "minimum": 1, "maximum": 10000, "default": 100}"#,
    about: "how many lines; with 'follow' none unless it is given",
};
const FOLLOW: Param = Param {
    name: "follow",
    schema: r#"{"type": "boolean", "default": false}"#,
    about: "what comes later too",
};

/// What callers ask.
pub(super) fn all() -> Vec<Operation> {
    let mut all = vec![
        Operation::get("/v1/whoami", Token, system::whoami)
            .about("Whose token this is")
            .gives(200, Object("Caller")),
    ];
    all.extend(functions());
    all.extend(triggers());
    all.extend(secrets_and_tokens());
    all.extend(records());
    all.extend(calls());
    all
}

fn functions() -> Vec<Operation> {
    const ALL: &str = "/v1/namespaces/{ns}/functions";
    const ONE: &str = "/v1/namespaces/{ns}/functions/{name}";
    let (input, output) = (Object("FunctionInput"), Object("Function"));
    vec![
        Operation::get(ALL, Needs(Viewer), functions::list)
            .about("Functions")
            .query(PAGE)
            .gives(200, List("Function")),
        Operation::post(ALL, Deployer, functions::create)
            .about("Make a function")
            .takes(Object("NewFunction"))
            .gives(201, output),
        Operation::get(ONE, Needs(Viewer), functions::read).about("A function").gives(200, output),
        Operation::put(ONE, Deployer, functions::put)
            .about("Make or replace a function")
            .takes(input)
            .gives(201, output)
            .gives(200, output),
        Operation::patch(ONE, Deployer, functions::patch)
            .about("Change some settings")
            .takes(Object("FunctionPatch"))
            .gives(200, output),
        Operation::delete(ONE, Deployer, functions::delete).about("Remove a function").gives(202, output),
        Operation::post("/v1/namespaces/{ns}/functions/{name}/upload", Deployer, upload::upload)
            .about("New code")
            .takes(Zip)
            .gives(202, Object("Uploaded")),
        Operation::post("/v1/namespaces/{ns}/functions/{name}/code", Deployer, code::keep_code)
            .about("Keep code for a Function that is applied to a cluster; changes nothing")
            .query(&[CODE_RUNTIME, CODE_ENTRYPOINT])
            .takes(Zip)
            .gives(201, Object("Source")),
        Operation::get("/v1/namespaces/{ns}/functions/{name}/build", Needs(Viewer), builds::read)
            .about("The last build")
            .gives(200, Object("Build")),
        Operation::get("/v1/namespaces/{ns}/functions/{name}/build/logs", Needs(Viewer), builds::logs)
            .about("The log of the last build")
            .query(&[FOLLOW])
            .gives(200, Log)
            .gives(204, Nothing),
        Operation::get("/v1/namespaces/{ns}/functions/{name}/revisions", Needs(Viewer), revisions::list)
            .about("Its revisions")
            .query(PAGE)
            .gives(200, List("Revision")),
        Operation::post("/v1/namespaces/{ns}/functions/{name}/rollback", Deployer, revisions::rollback)
            .about("Back to an earlier revision, code and settings, without a build")
            .takes(Object("Rollback"))
            .gives(202, output),
    ]
}

fn triggers() -> Vec<Operation> {
    const ALL: &str = "/v1/namespaces/{ns}/triggers";
    const ONE: &str = "/v1/namespaces/{ns}/triggers/{name}";
    let (input, output) = (Object("TriggerInput"), Object("Trigger"));
    vec![
        Operation::get(ALL, Needs(Viewer), triggers::list)
            .about("Triggers")
            .query(PAGE)
            .gives(200, List("Trigger")),
        Operation::post(ALL, Deployer, triggers::create)
            .about("Make a trigger")
            .takes(Object("NewTrigger"))
            .gives(201, output),
        Operation::get(ONE, Needs(Viewer), triggers::read).about("A trigger").gives(200, output),
        Operation::put(ONE, Deployer, triggers::put)
            .about("Make or replace a trigger")
            .takes(input)
            .gives(201, output)
            .gives(200, output),
        Operation::patch(ONE, Deployer, triggers::patch)
            .about("Change a trigger")
            .takes(Object("TriggerPatch"))
            .gives(200, output),
        Operation::delete(ONE, Deployer, triggers::delete).about("Remove a trigger").gives(202, output),
    ]
}

fn secrets_and_tokens() -> Vec<Operation> {
    const SECRETS: &str = "/v1/namespaces/{ns}/secrets";
    const SECRET: &str = "/v1/namespaces/{ns}/secrets/{name}";
    const TOKENS: &str = "/v1/namespaces/{ns}/tokens";
    const TOKEN: &str = "/v1/namespaces/{ns}/tokens/{name}";
    let secret = Object("Secret");
    vec![
        Operation::get(SECRETS, Needs(Viewer), secrets::list)
            .about("Secrets, without their values")
            .query(PAGE)
            .gives(200, List("Secret")),
        Operation::get(SECRET, Needs(Viewer), secrets::read)
            .about("A secret, without its values")
            .gives(200, secret),
        Operation::put(SECRET, Deployer, secrets::put)
            .about("Make or replace a secret")
            .takes(Object("SecretInput"))
            .gives(201, secret)
            .gives(200, secret),
        Operation::delete(SECRET, Deployer, secrets::delete)
            .about("Remove a secret that no function names")
            .gives(204, Nothing),
        Operation::get(TOKENS, Needs(Admin), tokens::list)
            .about("Tokens, without their texts")
            .query(PAGE)
            .gives(200, List("Token")),
        Operation::post(TOKENS, Admin, tokens::create)
            .about("Make a token; its text is shown this once")
            .takes(Object("TokenInput"))
            .gives(201, Object("NewToken")),
        Operation::get(TOKEN, Needs(Admin), tokens::read)
            .about("A token, without its text")
            .gives(200, Object("Token")),
        Operation::delete(TOKEN, Admin, tokens::delete)
            .about("Remove a token: refused from then on")
            .gives(204, Nothing),
    ]
}

fn records() -> Vec<Operation> {
    vec![
        Operation::get("/v1/namespaces/{ns}/functions/{name}/invocations", Needs(Viewer), invocations::list)
            .about("The history of a function")
            .query(HISTORY)
            .gives(200, List("Invocation")),
        Operation::get("/v1/namespaces/{ns}/functions/{name}/logs", Needs(Viewer), logs::of_function)
            .about("The last lines of its last calls")
            .query(&[TAIL, FOLLOW])
            .gives(200, Log)
            .gives(204, Nothing),
        Operation::get("/v1/namespaces/{ns}/invocations/{id}", Needs(Viewer), invocations::read)
            .about("A record, with request, result and error")
            .gives(200, Object("Record")),
        Operation::get("/v1/namespaces/{ns}/invocations/{id}/logs", Needs(Viewer), logs::of_invocation)
            .about("Its log")
            .query(&[FOLLOW])
            .gives(200, Log)
            .gives(204, Nothing),
        Operation::post("/v1/namespaces/{ns}/invocations/{id}/replay", Invoker, runs::replay)
            .about("Its exact request again, on the revision that answers or on the one that is named")
            .takes(Optional("Replay"))
            .gives(202, Object("Accepted")),
        Operation::post("/v1/namespaces/{ns}/invocations/{id}/cancel", Invoker, runs::cancel)
            .about("End it, if it waits or runs")
            .gives(202, Object("Accepted")),
    ]
}

/// Answered in front of the router, which would decode their paths.
fn calls() -> Vec<Operation> {
    let methods = [
        Method::GET,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::HEAD,
        Method::OPTIONS,
    ];
    let paths = [
        ("/v1/namespaces/{ns}/functions/{name}/invoke", Needs(INVOKE), "Call a function with a token"),
        ("/v1/namespaces/{ns}/functions/{name}/invoke/{path}", Needs(INVOKE), "Call a function with a token"),
        ("/fn/{ns}/{name}", Open, "Call a function that has an enabled http trigger"),
        ("/fn/{ns}/{name}/{path}", Open, "Call a function that has an enabled http trigger"),
    ];
    let all = paths.into_iter().flat_map(|path| methods.clone().map(|method| (method, path)));
    all.map(|(method, (path, access, about))| {
        Operation::elsewhere(method, path, access).about(about).takes(Any).gives(200, Any)
    })
    .collect()
}

/// What operators and Prometheus ask.
pub(super) fn admin() -> Vec<Operation> {
    vec![
        Operation::get("/health", Open, system::health)
            .about("Whether the process lives")
            .gives(200, Object("Health")),
        Operation::get("/ready", Open, system::ready)
            .about("Whether calls are taken")
            .gives(200, Object("Health"))
            .gives(503, Object("Health")),
        Operation::get("/metrics", Open, system::metrics).about("The API's own figures").gives(200, Metrics),
        Operation::get("/metrics/targets", Open, system::targets)
            .about("Prometheus' HTTP service discovery")
            .gives(200, Object("Targets")),
        Operation::get("/metrics/functions/{ns}/{name}/{n}", Open, system::function_metrics)
            .about("A supervisor's figures")
            .gives(200, Metrics),
    ]
}
