//! What only an API server can show. Runs where `SLESS_TEST_KUBECONFIG` names a cluster that has our definitions
//! (`kubectl apply -k crds/manifests`) and where no controller runs: the tests play its
//! part. What is tested acts as `SLESS_TEST_AS`, if that is set: an account with no more than deploy/base/api-rbac.yaml allows.
//!
//! `cargo test -p sless-backend-kubernetes --features cluster-tests`; `scripts/e2e` does it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests panic")]

mod away;
mod backend;
mod definitions;
mod support;
