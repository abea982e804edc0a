package run

import (
	"fmt"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// WatchDisk shows how much room the disk of a data folder has, looked up at every scrape.
func WatchDisk(reg prometheus.Registerer, folder string) {
	gauge := func(name, help string, of func(free, size uint64) uint64) {
		promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{Name: "sluice_data_" + name, Help: help}, func() float64 {
			free, size, err := room(folder)
			if err != nil {
				return 0 // it is gone: that is no room
			}
			return float64(of(free, size))
		})
	}
	gauge("free_bytes", "Bytes that are free for Sluice on the disk of the data folder.", func(free, _ uint64) uint64 { return free })
	gauge("size_bytes", "Bytes of the disk of the data folder.", func(_, size uint64) uint64 { return size })
}

// room is how many bytes the disk of a folder has, and how many of them are free.
func room(folder string) (free, size uint64, err error) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(folder, &stat); err != nil {
		return 0, 0, fmt.Errorf("look at the disk of %s: %w", folder, err)
	}
	return stat.Bavail * uint64(stat.Bsize), stat.Blocks * uint64(stat.Bsize), nil
}
