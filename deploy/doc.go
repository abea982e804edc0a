// Package deploy contains the files for docker compose: images, server settings, alerts
// and dashboards. Its tests run them with the programs and servers they are for.
package deploy
