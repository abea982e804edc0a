// Package deploy is what docker compose needs beyond the programs: images,
// settings of the servers, alerts and a dashboard. Its tests hold them against
// the programs and servers they are for.
package deploy
