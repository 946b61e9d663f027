//! What only an API server can show. Runs where `SLESS_TEST_KUBECONFIG` names a cluster that has our definitions
//! (`kubectl apply -k crds/manifests`) and whose controller is not needed: the tests play its part.
//!
//! `cargo test -p sless-backend-kubernetes --features cluster-tests`; `scripts/e2e` does it.

mod backend;
mod definitions;
mod support;
