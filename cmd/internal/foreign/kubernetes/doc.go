// Package kubernetes renders deploy/kubernetes/chart as Helm does, and checks the objects
// against the types of Kubernetes, the Prometheus Operator, and our programs. It is a
// separate module, so that the product does not depend on them.
package kubernetes
