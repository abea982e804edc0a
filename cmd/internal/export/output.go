package export

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// output is the file of an export, named .part until it is complete.
type output struct {
	*bufio.Writer
	final string
	file  *os.File // nil for standard output
	gzip  *gzip.Writer
}

// create opens a file that must not exist.
func create(name string, stdout io.Writer) (*output, error) {
	o := &output{final: name}
	to := stdout
	if name != "-" {
		if _, err := os.Lstat(name); err == nil {
			return nil, fmt.Errorf("%s already exists: choose another name or remove it", name)
		}
		var err error
		if o.file, err = os.Create(name + ".part"); err != nil {
			return nil, err
		}
		to = o.file
	}
	if strings.HasSuffix(name, ".gz") {
		o.gzip = gzip.NewWriter(to)
		to = o.gzip
	}
	o.Writer = bufio.NewWriterSize(to, 1<<18)
	return o, nil
}

// keep syncs the complete file and renames it.
func (o *output) keep() error {
	err := o.Flush()
	if o.gzip != nil {
		err = errors.Join(err, o.gzip.Close())
	}
	if o.file == nil || err != nil {
		return err
	}
	if err = errors.Join(o.file.Sync(), o.file.Close()); err != nil {
		return err
	}
	file := o.file
	o.file = nil
	return os.Rename(file.Name(), o.final)
}

// discard removes an incomplete file.
func (o *output) discard() {
	if o.file != nil {
		_ = o.file.Close()
		_ = os.Remove(o.file.Name())
	}
}
