//! The backend port on Kubernetes.
