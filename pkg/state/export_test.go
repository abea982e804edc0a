package state

import "github.com/prometheus/client_golang/prometheus"

// Ignored counts the conditional changes that were ignored.
func (a *Applier) Ignored() prometheus.Counter { return a.m.ignored }
