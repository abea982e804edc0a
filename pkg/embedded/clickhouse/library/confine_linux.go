package library

import (
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// envConfined is set in a process that was re-executed under Landlock, to the file
// descriptor of its inherited state: it cannot read the passwords of its users itself, and
// neither can the engine.
const envConfined = "EMBEDDED_CLICKHOUSE_CONFINED"

// oldestLandlock is the first version that lets files move between folders, as the engine
// does: Linux 5.19.
const oldestLandlock = 2

// Access rights for a file, and for a folder and all in it.
const (
	mayRead  = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	mayRun   = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_EXECUTE
	mayWrite = mayRead | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_DIR |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER
	onFiles = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
)

// readable are the paths that the Go runtime, the C library, and the engine read about the
// machine and this process, without its environment.
var readable = []string{
	"/sys", "/usr/share/zoneinfo",
	"/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/localtime", "/etc/timezone", "/etc/hosts", "/etc/host.conf",
	"/etc/resolv.conf", "/etc/nsswitch.conf",
	"/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/uptime", "/proc/vmstat", "/proc/mounts", "/proc/sys",
	"/proc/self/auxv", "/proc/self/cgroup", "/proc/self/cmdline", "/proc/self/io", "/proc/self/limits", "/proc/self/maps",
	"/proc/self/mountinfo", "/proc/self/mounts", "/proc/self/smaps_rollup", "/proc/self/stat", "/proc/self/statm", "/proc/self/status",
	"/dev/urandom", "/dev/random", "/dev/zero",
}

// Confine restricts this process to the engine's data folder, without outgoing
// connections, by Landlock. Landlock applies to a thread and its children, and this
// process already has threads. So it executes the program again in place, with the same
// process id, files, and arguments, and passes keep on as JSON. Confine returns only if
// the process cannot be confined.
func Confine(ctx context.Context, data, library string, keep any, log *slog.Logger) error {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || version < oldestLandlock {
		log.Warn("clickhouse: this kernel cannot confine the engine to its data folder: it needs Landlock (Linux 5.19)", "error", errno, "version", version)
		return nil
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("confine the engine: %w", err)
	}
	runtime.LockOSThread() // never unlocked: this thread ends with exec or the process
	if err := restrict(int(version), data, library, program); err != nil {
		return fmt.Errorf("confine the engine to %s: %w", data, err)
	}
	if ctx.Err() != nil { // exec would lose an earlier signal
		return ctx.Err()
	}
	fd, err := bequeath(keep)
	if err != nil {
		return fmt.Errorf("pass on the inherited state: %w", err)
	}
	err = syscall.Exec(program, os.Args, append(os.Environ(), envConfined+"="+strconv.Itoa(fd)))
	return fmt.Errorf("execute the program confined: %w", err)
}

// bequeath writes keep to a pipe that survives exec.
func bequeath(keep any) (fd int, err error) {
	text, err := json.Marshal(keep)
	if err != nil {
		return 0, err
	}
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil { // without O_CLOEXEC
		return 0, err
	}
	defer unix.Close(pipe[1])
	if err := unix.SetNonblock(pipe[1], true); err != nil {
		return 0, err
	}
	if n, err := unix.Write(pipe[1], text); err != nil || n < len(text) { // a pipe buffers 64 KiB, three users need 1
		return 0, fmt.Errorf("write %d of %d bytes: %w", n, len(text), err)
	}
	return pipe[0], nil
}

// Inherit reads the state passed on to this process, if it is confined.
func Inherit(kept any) (confined bool, err error) {
	text := os.Getenv(envConfined)
	if text == "" {
		return false, nil
	}
	os.Unsetenv(envConfined)
	fd, err := strconv.Atoi(text)
	if err != nil {
		return true, fmt.Errorf("%s is %q: %w", envConfined, text, err)
	}
	from := os.NewFile(uintptr(fd), "kept")
	defer from.Close()
	if err := json.NewDecoder(from).Decode(kept); err != nil {
		return true, fmt.Errorf("read the inherited state: %w", err)
	}
	return true, nil
}

// restrict applies a Landlock ruleset to this thread.
func restrict(version int, data, library, program string) error {
	handled := uint64(mayWrite | mayRun | unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK)
	rules := unix.LandlockRulesetAttr{Handled_access_fs: handled}
	if version < 3 {
		rules.Handled_access_fs &^= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if version >= 4 {
		rules.Handled_access_net = unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if version >= 6 {
		rules.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	// Older kernels have shorter structs and accept longer ones that end in zeros.
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&rules)), unsafe.Sizeof(rules), 0)
	if errno != 0 {
		return fmt.Errorf("create the Landlock ruleset: %w", errno)
	}
	defer unix.Close(int(fd))
	allow := func(path string, access uint64) error {
		return allowBeneath(int(fd), path, access&rules.Handled_access_fs)
	}
	if err := errors.Join(allow(data, mayWrite), allow(library, mayRead), allow(program, mayRun),
		allow("/dev/null", mayRead|unix.LANDLOCK_ACCESS_FS_WRITE_FILE|unix.LANDLOCK_ACCESS_FS_TRUNCATE)); err != nil {
		return err
	}
	if loader, err := loaderOf(program); err != nil {
		return err
	} else if loader != "" {
		if err := allow(loader, mayRun); err != nil {
			return err
		}
	}
	libraries, err := libraryFolders()
	if err != nil {
		return err
	}
	for _, path := range append(libraries, readable...) {
		if err := allow(path, mayRead); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return fmt.Errorf("restrict this thread: %w", errno)
	}
	return nil
}

// allowBeneath allows access to a file, or to a folder and all in it.
func allowBeneath(rules int, path string, access uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= onFiles
	}
	beneath := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(rules), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&beneath)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("%s: %w", path, errno)
	}
	return nil
}

// loaderOf is the dynamic loader of a program, "" if none.
func loaderOf(program string) (string, error) {
	file, err := elf.Open(program)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", program, err)
	}
	defer file.Close()
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			name := make([]byte, segment.Filesz)
			if _, err := segment.ReadAt(name, 0); err != nil {
				return "", fmt.Errorf("read %s: %w", program, err)
			}
			return strings.TrimRight(string(name), "\x00"), nil
		}
	}
	return "", nil
}

// libraryFolders are the folders of the shared libraries of this process: the engine needs
// more of them.
func libraryFolders() ([]string, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	var folders []string
	seen := map[string]bool{}
	for line := range strings.Lines(string(maps)) {
		_, path, found := strings.Cut(line, "/")
		path = "/" + strings.TrimSuffix(path, "\n")
		if folder := filepath.Dir(path); found && strings.Contains(filepath.Base(path), ".so") && !seen[folder] {
			seen[folder] = true
			folders = append(folders, folder)
		}
	}
	return folders, nil
}

// Confined reports whether this process was re-executed under Landlock, before Inherit: it
// cannot see files outside the data folder.
func Confined() bool { return os.Getenv(envConfined) != "" }
