// Package kubernetes builds deploy/kubernetes as kubectl would, and reads what
// comes out as the Kubernetes API and the Prometheus Operator would. It is a
// module of its own: nothing of this is in the product.
package kubernetes
