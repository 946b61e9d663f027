//! The backend port on Kubernetes: [`KubernetesDefinitions`] writes and reads the objects that people define, which are the truth;
//! [`KubernetesBackend`] tells what the controller has made of them, and where the pods are that answer.
//!
//! What is asked for every call comes from memory, kept true by watches. What must be exact is read at the API server.

mod admin;
mod aside;
mod backend;
mod build_log;
mod calls;
mod cluster;
mod definitions;
mod error;
mod identity;
mod index;
mod mirror;
mod proxy_key;
mod settings;
mod slices;
mod status;
mod statuses;

pub use backend::KubernetesBackend;
pub use cluster::Cluster;
pub use definitions::KubernetesDefinitions;
pub use settings::Settings;
