// Package kubernetes renders deploy/kubernetes/chart as Helm would, and holds what
// comes out against the types of Kubernetes, the Prometheus Operator, and our
// programs. It is a module of its own: nothing of this is in the product.
package kubernetes
