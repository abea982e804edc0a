// Package deploy contains the files for docker compose: images, server settings, alerts
// and dashboards. Its tests run them with our programs and the real servers.
package deploy
