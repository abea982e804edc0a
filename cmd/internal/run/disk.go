package run

import (
	"fmt"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// WatchDisk exports the disk space of a data folder, read at every scrape.
func WatchDisk(reg prometheus.Registerer, folder string) {
	gauge := func(name, help string, of func(free, size uint64) uint64) {
		promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{Name: "sluice_data_" + name, Help: help}, func() float64 {
			free, size, err := room(folder)
			if err != nil {
				return 0 // an unreadable disk has no space
			}
			return float64(of(free, size))
		})
	}
	gauge("free_bytes", "Free bytes on the disk of the data folder.", func(free, _ uint64) uint64 { return free })
	gauge("size_bytes", "Size in bytes of the disk of the data folder.", func(_, size uint64) uint64 { return size })
}

func room(folder string) (free, size uint64, err error) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(folder, &stat); err != nil {
		return 0, 0, fmt.Errorf("read the disk space of %s: %w", folder, err)
	}
	return stat.Bavail * uint64(stat.Bsize), stat.Blocks * uint64(stat.Bsize), nil
}
